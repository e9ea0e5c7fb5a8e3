"""Random keys that the site signs with. The first process that needs one makes it; all others read it."""

import contextlib
import secrets

from sqlalchemy import bindparam, insert, select

from cadenza.store.schema import site_secrets
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreRefused, Transaction

SECRET_BYTES = 32
FIND = Statement(select(site_secrets.c.value).where(site_secrets.c.name == bindparam("of")))
INSERT = Statement(insert(site_secrets), "name", "value")


async def get_or_make(store: Store, name: str) -> bytes:
    found = await store.row(FIND, {"of": name})
    if found is None:
        made = {"name": name, "value": secrets.token_bytes(SECRET_BYTES)}

        def make(tx: Transaction) -> None:
            tx.change(INSERT, made)

        with contextlib.suppress(StoreRefused):  # another process made it first
            await store.transact(make)
        found = await store.row(FIND, {"of": name})
    assert found
    return bytes(found[0])
