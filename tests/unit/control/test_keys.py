"""Keys: shown once, listed without secrets, revoked by id, prefix or the key itself."""

import re
from functools import partial
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from cadenza.control.keys import KeyOrder, create_key, list_keys, revoke_key
from cadenza.core.codes import digest_key, is_well_formed, make_key
from cadenza.core.errors import ControlError
from cadenza.core.public import to_public
from cadenza.core.spans import DAY_MS
from cadenza.store.schema import keys
from cadenza.store.statements import Statement
from cadenza.store.store import Store
from cadenza.store.tables import accounts
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.keys import Key, OwnedKey

NOW_MS = 1_800_000_000_000
EMAIL = "owner@example.org"
OTHER = "other@example.org"


@pytest.fixture(autouse=True)
async def owners(store: Store) -> None:
    for account_id, email in (("acct_a", EMAIL), ("acct_b", OTHER)):
        account = Account(account_id, email, "forte", 0, 0, NOW_MS)
        await store.transact(partial(accounts.add, account=account, password_hash="hash"))


async def create(store: Store, now_ms: int = NOW_MS, **options: Any) -> tuple[str, OwnedKey]:
    chosen = {"email": EMAIL, "name": "laptop", "scopes": (), "expires": "never", **options}
    email = chosen.pop("email")
    return await create_key(store, email, KeyOrder(**chosen), now_ms=now_ms)


async def give_prefix(store: Store, key_id: str, prefix: str) -> None:
    changed = Statement(keys.update().where(keys.c.id == key_id).values(prefix=prefix))
    await store.transact(lambda tx: tx.change(changed, {}))


async def test_a_key_is_created_with_its_secret(store: Store) -> None:
    """The secret is a well-formed key, and its record has what was asked for."""
    secret, key = await create(store, scopes=["usage", "inference", "usage"], expires="30")
    assert is_well_formed(secret.encode())
    assert re.fullmatch(r"key_[A-Za-z0-9_-]{24}", key.id)
    assert key == OwnedKey(
        id=key.id,
        name="laptop",
        prefix=secret[:12],
        scopes=("inference", "usage"),
        state="active",
        created_at=NOW_MS,
        expires_at=NOW_MS + 30 * DAY_MS,
        last_used_at=None,
        requests_per_second=None,
        burst=None,
        cap=None,
        created_by_token=None,
        account_id="acct_a",
        email=EMAIL,
        is_web=False,
    )


async def test_only_the_digest_is_stored(store: Store) -> None:
    """The row has the SHA-256 of the key and its first 12 characters, and nowhere the key."""
    secret, _ = await create(store)
    [row] = await store.rows(Statement(select(keys)), {})
    assert dict(zip(keys.c.keys(), row, strict=True))["digest"] == digest_key(secret.encode())
    assert secret[12:] not in str(row)


async def test_a_key_without_scopes_names_them_all(store: Store) -> None:
    """A key without scopes has full access, and its view names every scope."""
    _, key = await create(store)
    assert key.scopes == ("inference", "models", "usage")


@pytest.mark.parametrize(("expires", "days"), [("30", 30), ("90", 90), ("365", 365), ("never", None)])
async def test_a_key_expires_after_its_days(store: Store, expires: str, days: int | None) -> None:
    """A key is active until the last millisecond of its days and expired from then on."""
    _, key = await create(store, expires=expires)
    if days is None:
        assert key.expires_at is None
        return
    assert key.expires_at == NOW_MS + days * DAY_MS
    assert [view.state for view in await list_keys(store, EMAIL, key.expires_at - 1)] == ["active"]
    assert [view.state for view in await list_keys(store, EMAIL, key.expires_at)] == ["expired"]


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
async def test_an_impossible_key_is_refused(store: Store, options: dict[str, Any], reason: str) -> None:
    """The refusal names what is possible, and no key is created."""
    with pytest.raises(ControlError, match=reason):
        await create(store, **options)
    assert await list_keys(store, EMAIL, NOW_MS) == []


async def test_keys_are_listed_oldest_first_for_their_owner_only(store: Store) -> None:
    """The list has the owner's keys, including revoked ones, with exactly the fields that may be shown."""
    _, newer = await create(store, now_ms=NOW_MS + 1, email="OWNER@example.org")
    _, older = await create(store)
    await create(store, email=OTHER)
    revoked = (await revoke_key(store, older.id, NOW_MS)).key
    listed = await list_keys(store, EMAIL, NOW_MS)
    assert listed == [revoked, newer]
    shown = ["id", "name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at"]
    limits = ["requests_per_second", "burst", "cap", "created_by_token"]
    assert list(msgspec.to_builtins(to_public(Key, listed[0]))) == ["object", *shown, *limits]


@pytest.mark.parametrize("by", ["id", "prefix", "key"])
async def test_a_key_is_revoked_by_id_prefix_or_key(store: Store, by: str) -> None:
    """Its id, its prefix and the key itself all find it, and a second revocation says that it was revoked before."""
    secret, key = await create(store)
    await create(store, email=OTHER)
    name = {"id": key.id, "prefix": key.prefix, "key": secret}[by]
    first, second = await revoke_key(store, name, NOW_MS), await revoke_key(store, name, NOW_MS + 1)
    assert (first.was_revoked, second.was_revoked) == (False, True)
    assert first.key == msgspec.structs.replace(key, state="revoked")
    assert await list_keys(store, EMAIL, NOW_MS) == [first.key]
    assert [view.state for view in await list_keys(store, OTHER, NOW_MS)] == ["active"]


async def test_an_expired_key_can_be_revoked(store: Store) -> None:
    """A key that has expired is revoked like any other."""
    _, key = await create(store, expires="30")
    assert (await revoke_key(store, key.id, NOW_MS + 31 * DAY_MS)).key.state == "revoked"


@pytest.mark.parametrize("text", ["", "key_nobody", "sk-cdz-", "\udc80", "a\x00b"])
async def test_a_name_that_matches_nothing_is_refused(store: Store, text: str) -> None:
    """Nothing is revoked for an unknown name."""
    await create(store)
    with pytest.raises(ControlError, match="No key matches"):
        await revoke_key(store, text, NOW_MS)
    assert [view.state for view in await list_keys(store, EMAIL, NOW_MS)] == ["active"]


@pytest.mark.parametrize("mistyped", [False, True])
async def test_a_refusal_does_not_repeat_a_whole_key(store: Store, *, mistyped: bool) -> None:
    """A message shows only the prefix of something that looks like a key."""
    secret = make_key() + "x" * mistyped
    with pytest.raises(ControlError, match=secret[:12]) as caught:
        await revoke_key(store, secret, NOW_MS)
    assert secret[:13] not in caught.value.message


async def test_a_prefix_of_several_active_keys_is_refused(store: Store) -> None:
    """The refusal names the ids of the matching keys, and none is revoked."""
    _, first = await create(store)
    _, second = await create(store, now_ms=NOW_MS + 1)
    await give_prefix(store, second.id, first.prefix)
    with pytest.raises(ControlError, match=f"{first.id}, {second.id}"):
        await revoke_key(store, first.prefix, NOW_MS)
    assert [view.state for view in await list_keys(store, EMAIL, NOW_MS)] == ["active", "active"]


async def test_a_prefix_selects_the_one_active_key(store: Store) -> None:
    """A revoked key with the same prefix is ignored."""
    _, first = await create(store)
    _, second = await create(store, now_ms=NOW_MS + 1)
    await revoke_key(store, first.id, NOW_MS)
    await give_prefix(store, second.id, first.prefix)
    revocation = await revoke_key(store, first.prefix, NOW_MS)
    assert (revocation.key.id, revocation.was_revoked) == (second.id, False)
