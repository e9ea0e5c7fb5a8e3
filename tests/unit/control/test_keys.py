"""Keys: shown once, listed without secrets, revoked by any of their names."""

import re
from typing import Any

import msgspec
import pytest
from sqlalchemy import select, text

from cadenza.control.errors import ControlError
from cadenza.control.keys import DAY_MS, KeyOrder, KeyView, create_key, list_keys, revoke_key
from cadenza.core.apikey import digest_key, is_well_formed, make_key
from cadenza.store import accounts
from cadenza.store.accounts import Account
from cadenza.store.database import Database
from cadenza.store.schema import keys

NOW_MS = 1_800_000_000_000
EMAIL = "owner@example.org"
OTHER = "other@example.org"


@pytest.fixture(autouse=True)
async def owners(db: Database) -> None:
    async with db.write() as conn:
        for number, email in enumerate((EMAIL, OTHER)):
            await accounts.insert(conn, Account(f"acct_{number}", email, "forte", 0, 0, NOW_MS), "hash")


async def create(db: Database, now_ms: int = NOW_MS, **options: Any) -> tuple[str, KeyView]:
    chosen = {"email": EMAIL, "name": "laptop", "scopes": (), "expires": "never", **options}
    email = chosen.pop("email")
    return await create_key(db, email, KeyOrder(**chosen), now_ms=now_ms)


async def give_prefix(db: Database, key_id: str, prefix: str) -> None:
    async with db.write() as conn:
        await conn.execute(keys.update().where(keys.c.id == key_id).values(prefix=prefix))


async def test_a_key_is_created_with_its_secret(db: Database) -> None:
    """The secret is a well-formed key, and its record says what was asked for."""
    secret, key = await create(db, scopes=["usage", "inference", "usage"], expires="30")
    assert is_well_formed(secret.encode())
    assert re.fullmatch(r"key_[A-Za-z0-9_-]{24}", key.id)
    assert key == KeyView(
        id=key.id,
        name="laptop",
        prefix=secret[:12],
        scopes=("inference", "usage"),
        state="active",
        created_at=NOW_MS,
        expires_at=NOW_MS + 30 * DAY_MS,
        last_used_at=None,
    )


async def test_only_the_digest_is_stored(db: Database) -> None:
    """The store holds the key's SHA-256 and its first 12 characters, and nowhere the key."""
    secret, _ = await create(db)
    async with db.read() as conn:
        assert (await conn.execute(select(keys.c.digest))).scalar_one() == digest_key(secret.encode())
        assert secret[12:] not in str((await conn.execute(text("SELECT * FROM keys"))).one())


async def test_a_key_without_scopes_names_them_all(db: Database) -> None:
    """No scopes is full access, and the list says so."""
    _, key = await create(db)
    assert key.scopes == ("inference", "models", "usage")


@pytest.mark.parametrize(("expires", "days"), [("30", 30), ("90", 90), ("365", 365), ("never", None)])
async def test_a_key_expires_after_its_days(db: Database, expires: str, days: int | None) -> None:
    """A key is active until the last millisecond of its days and expired from then on."""
    _, key = await create(db, expires=expires)
    if days is None:
        assert key.expires_at is None
        return
    assert key.expires_at == NOW_MS + days * DAY_MS
    assert [view.state for view in await list_keys(db, EMAIL, key.expires_at - 1)] == ["active"]
    assert [view.state for view in await list_keys(db, EMAIL, key.expires_at)] == ["expired"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scopes": ["admin"]}, "inference, models, usage"),
        ({"expires": "31"}, "30, 90, 365, never"),
        ({"email": "nobody@example.org"}, "no account"),
        ({"name": "two\nlines"}, "one line"),
        ({"name": "x" * 101}, "100 characters"),
    ],
)
async def test_an_impossible_key_is_refused(db: Database, options: dict[str, Any], reason: str) -> None:
    """The refusal names what is possible, and no key is made."""
    with pytest.raises(ControlError, match=reason):
        await create(db, **options)
    assert await list_keys(db, EMAIL, NOW_MS) == []


async def test_keys_are_listed_oldest_first_for_their_owner_only(db: Database) -> None:
    """The list has the owner's keys, the dead ones too, with exactly the fields that may be shown."""
    _, newer = await create(db, now_ms=NOW_MS + 1, email="OWNER@example.org")
    _, older = await create(db)
    await create(db, email=OTHER)
    revoked = (await revoke_key(db, older.id, NOW_MS)).key
    listed = await list_keys(db, EMAIL, NOW_MS)
    assert listed == [revoked, newer]
    shown = ["id", "name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at"]
    assert list(msgspec.to_builtins(listed[0])) == shown


@pytest.mark.parametrize("by", ["id", "prefix", "key"])
async def test_a_key_is_revoked_by_any_of_its_names(db: Database, by: str) -> None:
    """Its id, its prefix and the key itself all find it, and a second time says that it was revoked already."""
    secret, key = await create(db)
    await create(db, email=OTHER)
    name = {"id": key.id, "prefix": key.prefix, "key": secret}[by]
    first, second = await revoke_key(db, name, NOW_MS), await revoke_key(db, name, NOW_MS + 1)
    assert (first.was_revoked, second.was_revoked) == (False, True)
    assert first.key == msgspec.structs.replace(key, state="revoked")
    assert await list_keys(db, EMAIL, NOW_MS) == [first.key]
    assert [view.state for view in await list_keys(db, OTHER, NOW_MS)] == ["active"]


async def test_an_expired_key_can_be_revoked(db: Database) -> None:
    """A key that has expired is revoked like any other."""
    _, key = await create(db, expires="30")
    assert (await revoke_key(db, key.id, NOW_MS + 31 * DAY_MS)).key.state == "revoked"


@pytest.mark.parametrize("text", ["", "key_nobody", "sk-cdz-", "\udc80", "a\x00b"])
async def test_a_name_that_matches_nothing_is_refused(db: Database, text: str) -> None:
    """Nothing is revoked for an unknown name."""
    await create(db)
    with pytest.raises(ControlError, match="No key matches"):
        await revoke_key(db, text, NOW_MS)
    assert [view.state for view in await list_keys(db, EMAIL, NOW_MS)] == ["active"]


@pytest.mark.parametrize("mistyped", [False, True])
async def test_a_refusal_does_not_repeat_a_whole_key(db: Database, *, mistyped: bool) -> None:
    """Of something like a key, a message shows the prefix and no more."""
    secret = make_key() + "x" * mistyped
    with pytest.raises(ControlError, match=secret[:12]) as caught:
        await revoke_key(db, secret, NOW_MS)
    assert secret[:13] not in caught.value.message


async def test_a_prefix_of_several_active_keys_is_refused(db: Database) -> None:
    """Where a prefix is not enough, the refusal names the ids to choose from and revokes nothing."""
    _, first = await create(db)
    _, second = await create(db, now_ms=NOW_MS + 1)
    await give_prefix(db, second.id, first.prefix)
    with pytest.raises(ControlError, match=f"{first.id}, {second.id}"):
        await revoke_key(db, first.prefix, NOW_MS)
    assert [view.state for view in await list_keys(db, EMAIL, NOW_MS)] == ["active", "active"]


async def test_a_prefix_means_the_one_active_key(db: Database) -> None:
    """A dead key with the same prefix does not stand in the way of the live one."""
    _, first = await create(db)
    _, second = await create(db, now_ms=NOW_MS + 1)
    await revoke_key(db, first.id, NOW_MS)
    await give_prefix(db, second.id, first.prefix)
    revocation = await revoke_key(db, first.prefix, NOW_MS)
    assert (revocation.key.id, revocation.was_revoked) == (second.id, False)
