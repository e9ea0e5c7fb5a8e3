"""Keys and accounts in the store: found by digest, revoked once and at once, used ever later."""

import msgspec
import pytest

from cadenza.store import accounts, keys
from cadenza.store.database import Database
from cadenza.store.keys import KeyRecord, KeyState, state_of
from tests.store.processes import run_at_once
from tests.store.rows import NOW_MS, add_account, add_key


async def find(db: Database, digest: bytes) -> KeyRecord:
    async with db.read() as conn:
        key = await keys.find_by_digest(conn, digest)
    assert key is not None
    return key


async def test_a_key_is_found_with_all_that_authentication_needs(db: Database) -> None:
    """One look-up gives the key, its scopes, its times and what its account prefers."""
    await add_account(db)
    digest = await add_key(db, scopes=("usage", "inference"), expires_at=NOW_MS + 1)
    key = await find(db, digest)
    assert msgspec.structs.replace(key, prefix="") == KeyRecord(
        id="key_a",
        account_id="acct_a",
        name="a name",
        prefix="",
        scopes=frozenset({"inference", "usage"}),
        preferred_class="forte",
        created_at=NOW_MS,
        expires_at=NOW_MS + 1,
        revoked_at=None,
        last_used_at=None,
        requests_per_second=None,
        burst=None,
    )


async def test_no_scopes_are_all_scopes(db: Database) -> None:
    """A key created with no scopes may do everything."""
    await add_account(db)
    assert (await find(db, await add_key(db))).scopes == {"inference", "models", "usage"}


async def test_an_unknown_digest_finds_nothing(db: Database) -> None:
    """A digest that was never stored belongs to no key."""
    async with db.read() as conn:
        assert await keys.find_by_digest(conn, b"d" * 32) is None


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
    key = KeyRecord("key_a", "acct_a", "", "", frozenset(), "forte", 0, expires_at, revoked_at, None, None, None)
    assert state_of(key, NOW_MS) == state


async def test_the_first_revocation_stands(db: Database) -> None:
    """Revoking again changes nothing and says so."""
    await add_account(db)
    digest = await add_key(db)
    async with db.write() as conn:
        assert await keys.revoke(conn, "key_a", NOW_MS)
        assert not await keys.revoke(conn, "key_a", NOW_MS + 1)
        assert not await keys.revoke(conn, "key_nobody", NOW_MS)
    assert (await find(db, digest)).revoked_at == NOW_MS


async def test_a_revocation_by_another_process_is_seen_at_once(db: Database, url: str) -> None:
    """A read on a database that was open all along sees the key revoked."""
    await add_account(db)
    digest = await add_key(db)
    async with db.read() as conn:
        before = await keys.find_by_digest(conn, digest)
        assert await run_at_once(("revoke", url, "key_a", str(NOW_MS))) == ["True"]
        after = await keys.find_by_digest(conn, digest)
    assert before is not None
    assert after is not None
    assert (before.revoked_at, after.revoked_at) == (None, NOW_MS)
    assert (await find(db, digest)).revoked_at == NOW_MS


async def test_the_last_use_never_moves_back(db: Database) -> None:
    """A later use is noted, an earlier one is not, and a key that is gone is no fault."""
    await add_account(db)
    digests = [await add_key(db, "key_a"), await add_key(db, "key_b")]
    for used in ({"key_a": 5, "key_b": 9}, {"key_b": 7, "key_a": 8, "key_nobody": 1}, {}):
        await keys.touch(db, used)
    assert [(await find(db, digest)).last_used_at for digest in digests] == [8, 9]


async def test_keys_are_listed_oldest_first(db: Database) -> None:
    """An account's keys, and no others, come in the order of their creation."""
    await add_account(db)
    await add_account(db, "acct_b")
    await add_key(db, "key_new", created_at=NOW_MS + 1)
    await add_key(db, "key_old")
    await add_key(db, "key_other", account_id="acct_b")
    async with db.read() as conn:
        assert [key.id for key in await keys.list_for_account(conn, "acct_a")] == ["key_old", "key_new"]


async def test_a_key_is_found_by_prefix_or_id(db: Database) -> None:
    """Either name finds it, a part of one does not."""
    await add_account(db)
    key = await find(db, await add_key(db))
    async with db.read() as conn:
        for text in (key.id, key.prefix):
            assert await keys.find_by_prefix_or_id(conn, text) == [key]
        assert await keys.find_by_prefix_or_id(conn, key.prefix[:-1]) == []


async def test_accounts_are_counted_and_listed_oldest_first(db: Database) -> None:
    """The list has every account once, in the order of creation."""
    newer = await add_account(db, "acct_a", created_at=NOW_MS + 1)
    older = await add_account(db, "acct_b")
    async with db.read() as conn:
        assert await accounts.list_all(conn) == [older, newer]
        assert await accounts.count(conn) == 2


async def test_an_account_is_found_by_email(db: Database) -> None:
    """The email finds the account and, by its own door, the password's hash."""
    account = await add_account(db)
    async with db.read() as conn:
        assert await accounts.find_by_email(conn, account.email) == account
        assert await accounts.find_with_password(conn, account.email) == (account, "hash")
        assert await accounts.find_by_email(conn, "nobody@example.org") is None
        assert await accounts.find_with_password(conn, "nobody@example.org") is None
