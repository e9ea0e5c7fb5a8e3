"""Keys and accounts in the store: found by digest, revoked once, with effect at once."""

import asyncio

import msgspec
import pytest

from cadenza.store.store import Store, Transaction
from cadenza.store.tables import keys
from cadenza.store.tables.keys import KeyState, OwnedKey, state_of
from tests.store.moves import opened
from tests.store.rows import NOW_MS, add_account, add_key, run_sql


async def find(store: Store, digest: bytes) -> OwnedKey:
    [key] = await store.transact(lambda tx: keys.find(tx, "digest", digest, NOW_MS))
    return key


async def test_a_key_is_found_by_its_digest(store: Store) -> None:
    """The record has the key, its scopes, its times and the address of its account."""
    await add_account(store)
    digest = await add_key(store, scopes=("usage", "inference"), expires_at=NOW_MS + 1)
    key = await find(store, digest)
    assert msgspec.structs.replace(key, prefix="") == OwnedKey(
        id="key_a",
        name="a name",
        prefix="",
        scopes=("inference", "usage"),
        state="active",
        created_at=NOW_MS,
        expires_at=NOW_MS + 1,
        last_used_at=None,
        requests_per_second=None,
        burst=None,
        cap=None,
        created_by_token=None,
        account_id="acct_a",
        email="acct_a@example.org",
        is_web=False,
    )


async def test_no_scopes_means_all_scopes(store: Store) -> None:
    """A key created with no scopes may do everything."""
    await add_account(store)
    assert (await find(store, await add_key(store))).scopes == ("inference", "models", "usage")


@pytest.mark.parametrize(
    ("expires_at", "revoked_at", "state"),
    [
        (None, None, "active"),
        (NOW_MS + 1, None, "active"),
        (NOW_MS, None, "expired"),
        (None, NOW_MS, "revoked"),
        (NOW_MS, NOW_MS, "revoked"),
    ],
)
def test_the_state_of_a_key(expires_at: int | None, revoked_at: int | None, state: KeyState) -> None:
    """A key expires at the very millisecond, and revoked wins over expired."""
    assert state_of(revoked_at, expires_at, NOW_MS) == state


async def test_the_first_revocation_stands(store: Store) -> None:
    """Revoking again changes nothing and says so."""
    await add_account(store)
    digest = await add_key(store)

    def revoke_three_times(tx: Transaction) -> list[bool]:
        asked = (("key_a", NOW_MS), ("key_a", NOW_MS + 1), ("key_nobody", NOW_MS))
        return [keys.revoke(tx, key_id, now_ms) for key_id, now_ms in asked]

    assert await store.transact(revoke_three_times) == [True, False, False]
    found = await keys.look_up(store, digest)
    assert found
    assert found.revoked_at == NOW_MS


async def test_the_last_use_never_moves_back(store: Store) -> None:
    """A later use is written, an earlier one is not, and an unknown key is ignored."""
    await add_account(store)
    digests = [await add_key(store, "key_a"), await add_key(store, "key_b")]
    for used in ({"key_a": 5, "key_b": 9}, {"key_b": 7, "key_a": 8, "key_nobody": 1}, {}):
        await keys.touch(store, used)
    assert [(await find(store, digest)).last_used_at for digest in digests] == [8, 9]


async def test_a_key_is_found_by_prefix_or_id(store: Store) -> None:
    """Its whole prefix and its id find it; a part of the prefix does not."""
    await add_account(store)
    key = await find(store, await add_key(store))
    places = (("id", key.id), ("prefix", key.prefix), ("prefix", key.prefix[:-1]))
    found = [await keys.list_newest(store, column, text, NOW_MS, 9) for column, text in places]
    assert found == [[key], [key], []]


async def test_keys_of_a_suspended_account_are_found_as_revoked(store: Store) -> None:
    """From the look-up after the suspension until the account is resumed; a revoked key stays revoked."""
    await add_account(store)
    digest, revoked = await add_key(store), await add_key(store, "key_b")
    await store.transact(lambda tx: keys.revoke(tx, "key_b", 3))
    states = list[tuple[KeyState, int | None]]()
    for suspended_at in ("NULL", "7", "NULL"):
        await run_sql(store, f"UPDATE accounts SET suspended_at = {suspended_at}")
        found, again = await keys.look_up(store, digest), await keys.look_up(store, revoked)
        assert found
        assert again
        assert (again.revoked_at, state_of(again.revoked_at, again.expires_at, NOW_MS)) == (3, "revoked")
        states.append((state_of(found.revoked_at, found.expires_at, NOW_MS), found.revoked_at))
    assert states == [("active", None), ("revoked", 7), ("active", None)]


async def test_an_account_has_one_key_of_the_web_application(store: Store, url: str) -> None:
    """It is made once, also by two at once, has every scope, and is found by its account and by its digest."""
    await add_account(store)
    assert await keys.find_web(store, "acct_a") is None
    async with opened(url) as beside:
        first, second = await asyncio.gather(
            *(one.transact(lambda tx: keys.web_key(tx, "acct_a", NOW_MS)) for one in (store, beside))
        )
    assert first == second == await keys.find_web(store, "acct_a")
    found = await keys.look_up(store, first)
    assert found is not None
    assert found.principal.scopes == {"inference", "models", "usage"}
    [web] = await keys.list_newest(store, "account_id", "acct_a", NOW_MS, 9)
    assert (web.id, web.is_web) == (found.principal.key_id, True)
    assert await keys.list_page(store, "acct_a", NOW_MS) == []
