"""Random keys that the site signs with, and the one link that makes the first operator, by the digest of its secret.

The first process that needs a key makes it; all others read it. A store has at most one such link.
"""

import contextlib
import secrets

from sqlalchemy import bindparam, delete, insert, select

from cadenza.store.schema import site_secrets
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreRefused, Transaction

SECRET_BYTES = 32
OPERATOR_LINK = {"of": "operator link"}
_NAMED = site_secrets.c.name == bindparam("of")
FIND = Statement(select(site_secrets.c.value).where(_NAMED))
INSERT = Statement(insert(site_secrets), "name", "value")
REMOVE = Statement(delete(site_secrets).where(_NAMED))
TAKE = Statement(delete(site_secrets).where(_NAMED, site_secrets.c.value == bindparam("digest")))


async def get_or_make(store: Store, name: str) -> bytes:
    found = await store.row(FIND, {"of": name})
    if found is None:
        made = {"name": name, "value": secrets.token_bytes(SECRET_BYTES)}
        with contextlib.suppress(StoreRefused):  # another process made it first
            await store.transact(lambda tx: tx.change(INSERT, made))
        found = await store.row(FIND, {"of": name})
    assert found
    return bytes(found[0])


def replace_operator_link(tx: Transaction, digest: bytes) -> None:
    """Make this the link. An earlier one stops working."""
    remove_operator_link(tx)
    tx.change(INSERT, {"name": OPERATOR_LINK["of"], "value": digest})


def remove_operator_link(tx: Transaction) -> None:
    tx.change(REMOVE, OPERATOR_LINK)


def take_operator_link(tx: Transaction, digest: bytes) -> bool:
    """Use the link. Of two transactions that use it at once, one gets False."""
    return tx.change(TAKE, {**OPERATOR_LINK, "digest": digest}) == 1


async def is_operator_link(store: Store, digest: bytes) -> bool:
    found = await store.row(FIND, OPERATOR_LINK)
    return found is not None and bytes(found[0]) == digest
