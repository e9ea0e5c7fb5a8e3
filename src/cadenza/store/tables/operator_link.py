"""The one link that makes the first operator, by the digest of its secret. A store has at most one."""

from sqlalchemy import bindparam, delete

from cadenza.store.schema import site_secrets
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from cadenza.store.tables.site_secrets import FIND, INSERT

NAME = {"of": "operator link"}
_NAMED = site_secrets.c.name == bindparam("of")
REMOVE = Statement(delete(site_secrets).where(_NAMED))
TAKE = Statement(delete(site_secrets).where(_NAMED, site_secrets.c.value == bindparam("digest")))


def replace(tx: Transaction, digest: bytes) -> None:
    """Make this the link. An earlier one stops working."""
    remove(tx)
    tx.change(INSERT, {"name": NAME["of"], "value": digest})


def remove(tx: Transaction) -> None:
    tx.change(REMOVE, NAME)


def take(tx: Transaction, digest: bytes) -> bool:
    """Use the link. Of two that use it at the same instant, one gets False."""
    return tx.change(TAKE, {**NAME, "digest": digest}) == 1


async def is_live(store: Store, digest: bytes) -> bool:
    found = await store.row(FIND, NAME)
    return found is not None and bytes(found[0]) == digest
