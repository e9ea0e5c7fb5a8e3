"""References of idempotent commands. The row is written in the transaction that carries the command out."""

import msgspec
from sqlalchemy import bindparam, select, text

from cadenza.store.schema import command_references
from cadenza.store.statements import Statement
from cadenza.store.store import Transaction

ADD = Statement(
    text(
        "INSERT INTO command_references (digest, action, arguments_digest, subject, at)"
        " VALUES (:digest, :action, :arguments_digest, :subject, :at) ON CONFLICT (digest) DO NOTHING"
    )
)
FIND = Statement(select(command_references).where(command_references.c.digest == bindparam("digest")))


class ReferenceUse(msgspec.Struct, frozen=True):
    """The command that used a reference: what it was, and the id of what it made."""

    digest: bytes
    action: str
    arguments_digest: bytes
    subject: str
    at: int


def add(tx: Transaction, use: ReferenceUse) -> ReferenceUse | None:
    """Store that a reference is used. If it was used before, change nothing and return that use.

    Postgres waits for a transaction that is using the same reference.
    """
    if tx.change(ADD, msgspec.structs.asdict(use)):
        return None
    found = tx.row(FIND, {"digest": use.digest})
    assert found
    digest, action, arguments_digest, subject, at = found
    return ReferenceUse(bytes(digest), action, bytes(arguments_digest), subject, at)
