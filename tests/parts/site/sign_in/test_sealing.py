"""The secrets of authenticator apps are encrypted at rest, by a key that is not in the store."""

import asyncio
import stat
from base64 import b32decode

import pytest
from sqlalchemy import select

from cadenza.core.errors import ControlError
from cadenza.parts.site.sign_in.second_factor import (
    SEALED_BYTES,
    SECRET_BYTES,
    STEP_S,
    Code,
    Sealer,
    begin_totp,
    code_at,
    confirm_totp,
    use_second_factor,
)
from cadenza.parts.site.tables import second_factors
from cadenza.store import schema
from cadenza.store.statements import Statement
from cadenza.store.store import Store
from cadenza.store.tables.accounts import Account
from tests.parts.site.sign_in.conftest import NOW_MS

STEP_MS = STEP_S * 1000
SECRET = b"s" * SECRET_BYTES
KEY = "a key from the environment, of 32 characters or more"
ROWS = Statement(select(schema.totp.c.secret))


async def stored_secret(store: Store) -> bytes:
    [(found,)] = await store.rows(ROWS, {})
    return bytes(found)


def code(secret: bytes, now_ms: int = NOW_MS) -> Code:
    return Code.parse(code_at(secret, now_ms // STEP_MS))


async def test_the_store_has_no_secret_of_an_app(store: Store, account: Account) -> None:
    """Neither before nor after its first code; and the app works."""
    sealer = Sealer(store)
    secret = b32decode((await begin_totp(store, sealer, account)).text.replace(" ", ""))
    assert secret not in await stored_secret(store)
    await confirm_totp(store, sealer, account, code(secret).text, NOW_MS)
    assert len(await stored_secret(store)) == SEALED_BYTES
    await use_second_factor(store, Sealer(store), account, code(secret, NOW_MS + STEP_MS), NOW_MS + STEP_MS)


async def test_a_secret_from_before_the_key_is_encrypted_when_it_is_used(store: Store, account: Account) -> None:
    """It works, and is stored as it is no longer."""
    await store.transact(lambda tx: second_factors.replace_totp(tx, account.id, SECRET))
    await store.transact(lambda tx: second_factors.use_step(tx, account.id, 1, NOW_MS))
    for now_ms in (NOW_MS, NOW_MS + STEP_MS):
        await use_second_factor(store, Sealer(store), account, code(SECRET, now_ms), now_ms)
        assert SECRET not in await stored_secret(store)


async def test_the_file_of_the_key_is_private_and_made_once(store: Store) -> None:
    """Of several processes that need it at the same instant, all get the same key."""
    sealed = await asyncio.gather(*(asyncio.to_thread(Sealer(store).seal, SECRET, "acct") for _ in range(8)))
    assert {Sealer(store).open(one, "acct") for one in sealed} == {SECRET}
    assert len(set(sealed)) == 8
    assert store.path
    [file] = [path for path in store.path.parent.iterdir() if path.name.endswith("-key")]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not [path for path in store.path.parent.iterdir() if "-key." in path.name]


async def test_a_key_of_the_environment_needs_no_file(store: Store) -> None:
    """It is the same on every machine of a fleet; another key, or another account, opens nothing."""
    sealed = Sealer(store, KEY).seal(SECRET, "acct")
    assert Sealer(store, KEY).open(sealed, "acct") == SECRET
    assert store.path
    assert not [path for path in store.path.parent.iterdir() if path.name.endswith("-key")]
    for key, account_id in ((KEY + "x", "acct"), (KEY, "other"), (None, "acct")):
        with pytest.raises(ControlError, match="another key"):
            Sealer(store, key).open(sealed, account_id)
