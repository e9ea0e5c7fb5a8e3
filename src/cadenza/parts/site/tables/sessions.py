"""Signed-in browsers, by the digest of their session cookie."""

from typing import Literal

import msgspec
from sqlalchemy import bindparam, delete, insert, select

from cadenza.store.schema import accounts, sessions
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction, change_row
from cadenza.store.tables.accounts import COLUMNS as ACCOUNT_COLUMNS
from cadenza.store.tables.accounts import HAS_REQUESTS, Account, read_account

FORGOTTEN_MAX = 100  # in a transaction that adds one
Stage = Literal["second_factor", "complete"]


class Session(msgspec.Struct, frozen=True):
    """A browser that gave the password and, if its stage is complete, the second factor that the account requires."""

    digest: bytes
    account_id: str
    stage: Stage
    agent: str
    created_at: int
    used_at: int
    proved_at: int  # when the password or a second factor was last given
    expires_at: int


COLUMNS = [sessions.c[name] for name in Session.__struct_fields__]
_OF_DIGEST = sessions.c.digest == bindparam("session")
_OF_ACCOUNT = sessions.c.account_id == bindparam("account")
INSERT = Statement(insert(sessions), *Session.__struct_fields__)
FIND = Statement(select(*COLUMNS, HAS_REQUESTS, *ACCOUNT_COLUMNS).join_from(sessions, accounts).where(_OF_DIGEST))
LIST = Statement(select(*COLUMNS).where(_OF_ACCOUNT).order_by(sessions.c.used_at.desc(), sessions.c.digest))
REMOVE = Statement(delete(sessions).where(_OF_DIGEST))
_OF_STAGE = sessions.c.stage == bindparam("of_stage")
_KEPT = (
    select(sessions.c.digest)
    .where(_OF_ACCOUNT, _OF_STAGE)
    .order_by(sessions.c.used_at.desc(), sessions.c.digest)
    .limit(bindparam("kept"))
)
REMOVE_OLDEST = Statement(delete(sessions).where(_OF_ACCOUNT, _OF_STAGE, sessions.c.digest.not_in(_KEPT)))
_EXPIRED = select(sessions.c.digest).where(sessions.c.expires_at < bindparam("now")).limit(FORGOTTEN_MAX)
FORGET = Statement(delete(sessions).where(sessions.c.digest.in_(_EXPIRED)))


def add(tx: Transaction, session: Session) -> None:
    tx.change(INSERT, msgspec.structs.asdict(session))


async def find(store: Store, digest: bytes) -> tuple[Session, Account, bool] | None:
    """The session, its account, and whether the account ever made a request."""
    row = await store.row(FIND, {"session": digest})
    if row is None:
        return None
    end = len(COLUMNS)
    return Session(*row[:end]), read_account(row[end + 1 :]), bool(row[end])


async def list_for_account(store: Store, account_id: str) -> list[Session]:
    return [Session(*row) for row in await store.rows(LIST, {"account": account_id})]


async def touch(store: Store, digest: bytes, now_ms: int) -> None:
    await store.transact(lambda tx: change_row(tx, sessions, digest, used_at=now_ms), is_single=True)


def remove(tx: Transaction, digest: bytes) -> bool:
    return tx.change(REMOVE, {"session": digest}) == 1


def remove_oldest(tx: Transaction, account_id: str, stage: Stage, kept: int) -> None:
    """End the least recently used sessions of an account in this stage, and keep `kept`."""
    tx.change(REMOVE_OLDEST, {"account": account_id, "of_stage": stage, "kept": kept})


def forget_expired(tx: Transaction, now_ms: int) -> None:
    """Some of them: the retention limits remove the rest."""
    tx.change(FORGET, {"now": now_ms})
