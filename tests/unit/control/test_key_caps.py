"""Spend caps of keys as owners set them, names, and keys of other accounts."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from cadenza.control.keys import (
    CapOrder,
    KeyChange,
    KeyOrder,
    change_key,
    create_key,
    create_own_key,
    list_keys,
    list_own_keys,
    revoke_key,
)
from cadenza.core.codes import digest_key
from cadenza.core.errors import ControlError, Unknown
from cadenza.core.money import AMOUNT_NANO_MAX, format_dollars
from cadenza.core.records import Cap
from cadenza.store.schema import caps
from cadenza.store.statements import Statement
from cadenza.store.store import Store
from cadenza.store.tables import accounts, keys
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.keys import KeyCap, OwnedKey

NOW_MS = 1_800_000_000_000
MONTH_MS = 31 * 24 * 60 * 60 * 1000
OWNERS = {"acct_a": "owner@example.org", "acct_b": "other@example.org"}

Action = Callable[[Store, str, str | None], Awaitable[object]]
ACTIONS: dict[str, Action] = {
    "rename": lambda store, key, owner: change_key(store, key, KeyChange(name="new"), NOW_MS, owner),
    "limit": lambda store, key, owner: change_key(store, key, KeyChange(requests_per_second=1.0), NOW_MS, owner),
    "cap": lambda store, key, owner: change_key(store, key, KeyChange(cap=CapOrder("5")), NOW_MS, owner),
    "revoke": lambda store, key, owner: revoke_key(store, key, NOW_MS, owner),
}


@pytest.fixture(autouse=True)
async def owners(store: Store) -> None:
    for account_id, email in OWNERS.items():
        account = Account(account_id, email, "forte", 0, 0, NOW_MS)
        await store.transact(partial(accounts.add, account=account, password_hash="hash"))


def order_of(cap: Cap) -> CapOrder:
    return CapOrder(format_dollars(cap.limit_nano), cap.period)


async def create(store: Store, cap: CapOrder | None = None) -> tuple[str, OwnedKey]:
    return await create_key(store, OWNERS["acct_a"], KeyOrder("laptop", cap=cap), NOW_MS)


async def is_capped(store: Store, secret: str) -> bool:
    """Whether a request with this key finds that it is capped."""
    found = await keys.look_up(store, digest_key(secret.encode()))
    assert found
    return found.principal.is_capped


@pytest.mark.parametrize("cap", [Cap(0), Cap(5_000_000_000), Cap(7, "month"), Cap(AMOUNT_NANO_MAX)])
async def test_a_key_is_created_with_its_cap(store: Store, cap: Cap) -> None:
    """Its view shows the cap and that nothing is spent, and its first request finds it."""
    secret, key = await create(store, order_of(cap))
    assert key.cap == KeyCap(cap.limit_nano, cap.period, 0)
    assert await list_keys(store, OWNERS["acct_a"], NOW_MS) == [key]
    assert await is_capped(store, secret)


async def test_a_cap_is_set_changed_and_removed(store: Store) -> None:
    """The next request of the key finds it; the view shows it."""
    secret, key = await create(store)
    assert not await is_capped(store, secret)
    for cap in (Cap(5), Cap(9, "month"), None):
        view = await change_key(store, key.id, KeyChange(cap=order_of(cap) if cap else None), NOW_MS)
        assert view.cap == (cap and KeyCap(cap.limit_nano, cap.period, 0))
        assert await is_capped(store, secret) == (cap is not None)
        assert await list_keys(store, OWNERS["acct_a"], NOW_MS) == [view]


async def test_what_was_spent_last_month_is_not_shown(store: Store) -> None:
    """A monthly cap shows what is spent in the month of now, also before the first request of the month."""
    _, key = await create(store, order_of(Cap(9, "month")))
    spent = Statement(caps.update().values(spent_nano=4))
    await store.transact(lambda tx: tx.change(spent, {}))
    caps_of = [(await list_keys(store, OWNERS["acct_a"], now_ms))[0].cap for now_ms in (NOW_MS, NOW_MS + MONTH_MS)]
    assert [cap and cap.spent_nano for cap in (key.cap, *caps_of)] == [0, 4, 0]


@pytest.mark.parametrize("cap", [CapOrder("-1"), CapOrder("1000000001"), CapOrder("five"), CapOrder("0.0000000001")])
async def test_an_impossible_cap_is_refused(store: Store, cap: CapOrder) -> None:
    """Neither a new key nor an old one gets it."""
    _, key = await create(store)
    with pytest.raises(ControlError, match="cap"):
        await create(store, cap)
    with pytest.raises(ControlError, match="cap"):
        await change_key(store, key.id, KeyChange(cap=cap), NOW_MS)
    assert await list_keys(store, OWNERS["acct_a"], NOW_MS) == [key]


async def test_a_key_is_renamed(store: Store) -> None:
    """The view has the new name; a name of two lines is refused."""
    _, key = await create(store)
    assert (await change_key(store, key.prefix, KeyChange(name="server"), NOW_MS)).name == "server"
    with pytest.raises(ControlError, match="one line"):
        await change_key(store, key.id, KeyChange(name="two\nlines"), NOW_MS)
    assert [view.name for view in await list_keys(store, OWNERS["acct_a"], NOW_MS)] == ["server"]


@pytest.mark.parametrize("action", ACTIONS)
async def test_an_owner_acts_on_own_keys_only(store: Store, action: str) -> None:
    """A key of another account is as unknown as one that does not exist, by id, prefix or the key itself."""
    secret, key = await create(store)
    for name in (key.id, key.prefix, secret, "key_nobody"):
        with pytest.raises(Unknown, match="No key matches"):
            await ACTIONS[action](store, name, "acct_b")
    assert await list_keys(store, OWNERS["acct_a"], NOW_MS) == [key]
    await ACTIONS[action](store, key.id, "acct_a")
    assert await list_keys(store, OWNERS["acct_a"], NOW_MS) != [key]


async def test_an_owner_creates_and_lists_by_account(store: Store) -> None:
    """By the account's id, without its email address."""
    _, key = await create_own_key(store, "acct_a", KeyOrder("phone"), NOW_MS, by=OWNERS["acct_a"])
    assert await list_own_keys(store, "acct_a", NOW_MS) == [key]
    assert await list_own_keys(store, "acct_b", NOW_MS) == []


@pytest.mark.parametrize("action", ACTIONS)
async def test_the_key_of_the_web_application_is_not_the_owners(store: Store, action: str) -> None:
    """It is listed only if it is asked for, and cannot be changed or revoked."""
    await store.transact(lambda tx: keys.web_key(tx, "acct_a", NOW_MS))
    assert await list_own_keys(store, "acct_a", NOW_MS) == []
    [web] = await keys.list_newest(store, "account_id", "acct_a", NOW_MS, 9)
    assert (web.name, web.is_web, web.prefix) == ("Web chat", True, "web-chat----")
    for name in (web.id, web.prefix):
        with pytest.raises(Unknown):
            await ACTIONS[action](store, name, "acct_a")
    assert await keys.list_newest(store, "account_id", "acct_a", NOW_MS, 9) == [web]
