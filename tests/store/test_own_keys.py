"""Keys as their owner manages them, on both databases: pages, bounds, changes, and the audit log."""

import asyncio

import pytest

from cadenza.control.keys import (
    ACTIVE_KEYS_MAX,
    CapOrder,
    KeyChange,
    KeyOrder,
    change_key,
    create_key,
    get_key,
    page_keys,
    revoke_key,
)
from cadenza.core.errors import ControlError, Unknown
from cadenza.core.records import COMMAND_LINE, Owner
from cadenza.core.spans import DAY_MS
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Store
from cadenza.store.tables import audit_events
from cadenza.store.tables.keys import KeyCap, OwnedKey, list_newest, web_key
from tests.store.rows import NOW_MS, add_account, run_sql

OWNER, OTHER = Owner("acct_a", "acct_a@example.org"), Owner("acct_b", "acct_b@example.org")
BY = OWNER.name
ONE = (
    "INSERT INTO keys (id, account_id, name, prefix, digest, scopes, created_at) "
    "SELECT 'key_' || n, 'acct_a', '', '123456789012', {digest}, '', {created} FROM ({numbers}) AS numbers"
)


@pytest.fixture(autouse=True)
async def owners(store: Store) -> None:
    await add_account(store, OWNER.account_id)
    await add_account(store, OTHER.account_id)


async def create(store: Store, now_ms: int = NOW_MS, owner: Owner = OWNER, **options: object) -> OwnedKey:
    order = KeyOrder(**options)  # type: ignore[arg-type]
    return (await create_key(store, owner, order, now_ms))[1]


async def add_many(store: Store, count: int, created_at: int) -> None:
    """Many keys with one statement of each database."""
    counted = f"WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < {count}) SELECT n FROM t"
    digest = "randomblob(32)" if isinstance(store, SqliteStore) else "sha256(n::text::bytea)"
    await run_sql(store, ONE.format(digest=digest, created=created_at, numbers=counted))


async def audit_log(store: Store) -> list[tuple[str, str, str, str]]:
    """Oldest first: the event, who did it, to which key, and the detail."""
    return [
        (one.event, one.actor, one.subject, one.detail)
        for one in reversed(await audit_events.list_newest(store, OWNER.account_id))
    ]


async def test_pages_have_every_key_once(store: Store) -> None:
    """Newest first, also among keys of the same moment; the key of the web application is left out."""
    made = [await create(store, NOW_MS + number // 2) for number in range(5)]
    await create(store, owner=OTHER)
    await store.transact(lambda tx: web_key(tx, OWNER.account_id, NOW_MS + 9))
    expected = sorted(made, key=lambda key: (key.created_at, key.id), reverse=True)
    first = await page_keys(store, OWNER, NOW_MS, count=2)
    second = await page_keys(store, OWNER, NOW_MS, first.data[-1].id, count=2)
    third = await page_keys(store, OWNER, NOW_MS, second.data[-1].id, count=2)
    assert first.data + second.data + third.data == expected
    assert [first.has_more, second.has_more, third.has_more] == [True, True, False]


async def test_a_page_can_have_the_active_keys_only(store: Store) -> None:
    """Revoked and expired keys are left out, and an unknown or foreign place in the list has nothing after it."""
    active, revoked, expired = await create(store), await create(store), await create(store, expires="30")
    await revoke_key(store, OWNER, revoked.id, NOW_MS)
    later_ms = NOW_MS + 30 * DAY_MS
    assert [key.id for key in (await page_keys(store, OWNER, later_ms, is_active=True)).data] == [active.id]
    assert len((await page_keys(store, OWNER, later_ms)).data) == 3
    foreign = await create(store, owner=OTHER)
    for before in (foreign.id, "key_unknown"):
        assert (await page_keys(store, OWNER, NOW_MS, before)).data == []
    assert expired.expires_at == later_ms


async def test_every_change_is_in_the_audit_trail(store: Store) -> None:
    """Who did what to which key, without the name of the key and without what did not change."""
    key = await create(store, name="a private name", scopes=["usage"], expires="90")
    change = KeyChange(name="another", requests_per_second=2.5, cap=CapOrder("5", "month"))
    for _ in range(2):
        changed = await change_key(store, OWNER, key.id, change, NOW_MS)
    assert (changed.name, changed.requests_per_second, changed.burst) == ("another", 2.5, None)
    assert changed.cap == KeyCap(5 * 10**9, "month", 0)
    assert await get_key(store, OWNER, key.id, NOW_MS) == changed
    await change_key(store, OWNER, key.id, KeyChange(cap=None), NOW_MS)
    await revoke_key(store, COMMAND_LINE, key.prefix, NOW_MS)
    await revoke_key(store, OWNER, key.id, NOW_MS)
    assert await audit_log(store) == [
        ("key.create", BY, key.id, f"{key.prefix} usage, expires 90"),
        ("key.rename", BY, key.id, ""),
        ("key.limit", BY, key.id, "rate 2.5, burst usual"),
        ("key.cap", BY, key.id, "5.00 month"),
        ("key.cap", BY, key.id, "none"),
        ("key.revoke", COMMAND_LINE.name, key.id, key.prefix),
    ]


async def test_an_owner_knows_no_other_keys(store: Store) -> None:
    """Ids of other accounts, prefixes and secrets of one's own are as unknown as any text; nothing changes."""
    secret, own = await create_key(store, OWNER, KeyOrder("mine"), NOW_MS)
    await store.transact(lambda tx: web_key(tx, OWNER.account_id, NOW_MS))
    [web] = [one for one in await list_newest(store, "account_id", OWNER.account_id, NOW_MS, 9) if one.is_web]
    foreign = await create(store, owner=OTHER)
    for text in (foreign.id, web.id, web.prefix, own.prefix, secret, "key_unknown", "\x00", ""):
        for change in (
            get_key(store, OWNER, text, NOW_MS),
            change_key(store, OWNER, text, KeyChange(name="taken"), NOW_MS),
            revoke_key(store, OWNER, text, NOW_MS),
        ):
            with pytest.raises(Unknown):
                await change
    assert await get_key(store, OTHER, foreign.id, NOW_MS) == foreign
    assert [event for event, *_ in await audit_log(store)] == ["key.create"]


async def test_only_one_of_two_at_once_gets_the_last_place(store: Store) -> None:
    """An account with one place left for an active key gets one key, however many are created at once."""
    await add_many(store, ACTIVE_KEYS_MAX - 1, NOW_MS - 2 * DAY_MS)
    tries = await asyncio.gather(*(create(store) for _ in range(3)), return_exceptions=True)
    assert sum(isinstance(one, OwnedKey) for one in tries) == 1
    assert all(isinstance(one, OwnedKey) or "1,000 active keys" in str(one) for one in tries)
    await revoke_key(store, OWNER, "key_1", NOW_MS)
    await create(store)


async def test_keys_of_the_last_day_are_counted_even_if_revoked(store: Store) -> None:
    """Creating and revoking again and again ends after a thousand keys, until a day has passed."""
    await add_many(store, 1000, NOW_MS)
    await run_sql(store, f"UPDATE keys SET revoked_at = {NOW_MS}")
    with pytest.raises(ControlError, match="1,000 keys in 24 hours"):
        await create(store)
    await create(store, NOW_MS + DAY_MS)
