"""Keys: shown once, listed without secrets, changed and revoked by id, prefix or the key itself."""

import itertools
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from cadenza.control.keys import (
    CapOrder,
    KeyChange,
    KeyOrder,
    change_key,
    create_key,
    list_keys,
    revoke_key,
)
from cadenza.core.codes import digest_key, is_well_formed, make_key
from cadenza.core.errors import ControlError
from cadenza.core.money import AMOUNT_NANO_MAX, format_dollars
from cadenza.core.public import to_public
from cadenza.core.rates import Rate, take_ticket
from cadenza.core.records import COMMAND_LINE, Actor, Cap, Owner, Principal
from cadenza.core.spans import DAY_MS
from cadenza.store.schema import caps, keys
from cadenza.store.statements import Statement
from cadenza.store.store import Store
from cadenza.store.tables import accounts, audit_events
from cadenza.store.tables import keys as rows
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.keys import Key, KeyCap, OwnedKey

NOW_MS = 1_800_000_000_000
OWNER, OTHER = Owner("acct_a", "owner@example.org"), Owner("acct_b", "other@example.org")
Action = Callable[[Store, Actor, str], Awaitable[object]]
ACTIONS: dict[str, Action] = {
    "rename": lambda store, by, key: change_key(store, by, key, KeyChange(name="new"), NOW_MS),
    "limit": lambda store, by, key: change_key(store, by, key, KeyChange(requests_per_second=1.0), NOW_MS),
    "cap": lambda store, by, key: change_key(store, by, key, KeyChange(cap=CapOrder("5")), NOW_MS),
    "revoke": lambda store, by, key: revoke_key(store, by, key, NOW_MS),
}


@pytest.fixture(autouse=True)
async def owners(store: Store) -> None:
    for one in (OWNER, OTHER):
        account = Account(one.account_id, one.name, "forte", 0, 0, NOW_MS)
        await store.transact(partial(accounts.add, account=account, password_hash="hash"))


async def create(store: Store, now_ms: int = NOW_MS, owner: Owner = OWNER, **options: Any) -> tuple[str, OwnedKey]:
    return await create_key(store, owner, KeyOrder(**{"name": "laptop", **options}), now_ms=now_ms)


async def states(store: Store, now_ms: int = NOW_MS, owner: Owner = OWNER) -> list[str]:
    return [key.state for key in await list_keys(store, owner, now_ms)]


async def found_by(store: Store, secret: str) -> Principal:
    """What the next request with this key finds in the store."""
    found = await rows.look_up(store, digest_key(secret.encode()))
    assert found
    return found.principal


async def give_prefix(store: Store, key_id: str, prefix: str) -> None:
    changed = Statement(keys.update().where(keys.c.id == key_id).values(prefix=prefix))
    await store.transact(lambda tx: tx.change(changed, {}))


async def test_a_key_is_created_with_its_secret(store: Store) -> None:
    """The secret is a well-formed key, its record has what was asked for, and its row the digest and the prefix."""
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
        email=OWNER.name,
        is_web=False,
    )
    [row] = await store.rows(Statement(select(keys)), {})
    assert dict(zip(keys.c.keys(), row, strict=True))["digest"] == digest_key(secret.encode())
    assert secret[12:] not in str(row)
    assert (await create(store))[1].scopes == ("inference", "models", "usage")


@pytest.mark.parametrize(("expires", "days"), [("30", 30), ("90", 90), ("365", 365), ("never", None)])
async def test_a_key_expires_after_its_days(store: Store, expires: str, days: int | None) -> None:
    """A key is active until the last millisecond of its days and expired from then on; it can be revoked then too."""
    _, key = await create(store, expires=expires)
    if days is None:
        assert key.expires_at is None
        return
    assert key.expires_at == NOW_MS + days * DAY_MS
    assert (await states(store, key.expires_at - 1), await states(store, key.expires_at)) == (["active"], ["expired"])
    assert (await revoke_key(store, COMMAND_LINE, key.id, key.expires_at)).key.state == "revoked"


async def test_an_impossible_order_is_refused(store: Store) -> None:
    """No key is created, and a key that was to be changed stays as it was."""
    with pytest.raises(ControlError, match="burst: must be"):
        await create(store, burst=0)
    assert await states(store) == []
    _, key = await create(store, requests_per_second=2.5, burst=7)
    with pytest.raises(ControlError, match="burst: must be"):
        await change_key(store, COMMAND_LINE, key.id, KeyChange(burst=0), NOW_MS)
    assert await list_keys(store, OWNER, NOW_MS) == [key]


async def test_keys_are_listed_oldest_first_for_their_owner_only(store: Store) -> None:
    """The list has the owner's keys, including revoked ones, with exactly the fields that may be shown."""
    _, newer = await create(store, now_ms=NOW_MS + 1)
    _, older = await create(store)
    await create(store, owner=OTHER)
    revoked = (await revoke_key(store, COMMAND_LINE, older.id, NOW_MS)).key
    listed = await list_keys(store, OWNER, NOW_MS)
    assert listed == [revoked, newer]
    shown = ["id", "name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at"]
    limits = ["cap", "created_by_token", "requests_per_second", "burst"]
    assert list(msgspec.to_builtins(to_public(Key, listed[0]))) == ["object", *shown, *limits]


@pytest.mark.parametrize("by", ["id", "prefix", "key"])
async def test_a_key_is_changed_and_revoked_by_id_prefix_or_key(store: Store, by: str) -> None:
    """Each finds it and no other key. A part of a change leaves the rest; a second revocation says so."""
    secret, key = await create(store)
    await create(store, owner=OTHER)
    name = {"id": key.id, "prefix": key.prefix, "key": secret}[by]
    changes: list[dict[str, Any]] = [
        {"name": "server"},
        {"requests_per_second": 2.5, "burst": 7},
        {"cap": CapOrder("0.000000009", "month")},
        {"burst": None},
        {"requests_per_second": None, "cap": None},
    ]
    for change in changes:
        cap = {"cap": change["cap"] and KeyCap(9, "month", 0)} if "cap" in change else {}
        key = msgspec.structs.replace(key, **{**change, **cap})
        for _ in range(2):  # the second changes nothing
            assert await change_key(store, COMMAND_LINE, name, KeyChange(**change), NOW_MS) == key
        found = await found_by(store, secret)
        assert (found.requests_per_second, found.burst) == (key.requests_per_second, key.burst)
        assert found.is_capped == (key.cap is not None)
    first, second = (
        await revoke_key(store, COMMAND_LINE, name, NOW_MS),
        await revoke_key(store, COMMAND_LINE, name, NOW_MS + 1),
    )
    assert (first.was_revoked, second.was_revoked) == (False, True)
    assert first.key == msgspec.structs.replace(key, state="revoked")
    assert (await change_key(store, COMMAND_LINE, name, KeyChange(burst=1), NOW_MS)).state == "revoked"
    assert (await states(store), await states(store, owner=OTHER)) == (["revoked"], ["active"])
    events = [one.event.removeprefix("key.") for one in await audit_events.list_newest(store, "acct_a")]
    assert events[::-1] == ["create", "rename", "limit", "cap", "limit", "limit", "cap", "revoke", "limit"]


async def test_a_name_that_matches_nothing_is_refused(store: Store) -> None:
    """Nothing is changed for an unknown name, and the message has only the prefix of what looks like a key."""
    _, key = await create(store)
    names = ("", "key_nobody", "sk-cdz-", "\udc80", "a\x00b", make_key(), make_key() + "x")
    for text, action in itertools.product(names, ACTIONS.values()):
        with pytest.raises(ControlError, match="No key matches") as caught:
            await action(store, COMMAND_LINE, text)
        assert len(text) <= 12 or text[:13] not in caught.value.message
    assert await list_keys(store, OWNER, NOW_MS) == [key]


async def test_a_prefix_of_several_keys(store: Store) -> None:
    """While several are active it is refused with their ids; it means the only active one after that."""
    _, first = await create(store)
    _, second = await create(store, now_ms=NOW_MS + 1)
    await give_prefix(store, second.id, first.prefix)
    with pytest.raises(ControlError, match=f"{first.id}, {second.id}"):
        await revoke_key(store, COMMAND_LINE, first.prefix, NOW_MS)
    assert await states(store) == ["active", "active"]
    await revoke_key(store, COMMAND_LINE, first.id, NOW_MS)
    revocation = await revoke_key(store, COMMAND_LINE, first.prefix, NOW_MS)
    assert (revocation.key.id, revocation.was_revoked) == (second.id, False)


async def test_an_accepted_rate_can_be_used(store: Store) -> None:
    """A very low rate is either refused or works."""
    for per_s in (1e-9, 1e-30, 1e-299, 1e-320, 5e-324):
        with suppress(ControlError):
            kept = await found_by(store, (await create(store, requests_per_second=per_s, burst=1))[0])
            assert kept.requests_per_second is not None
            rate = Rate(kept.requests_per_second, 1)
            whole_at_ns, first = take_ticket(0, 1, rate)
            _, second = take_ticket(whole_at_ns, 1, rate)
            assert (first.is_granted, second.is_granted, second.wait_s > 0) == (True, False, True)


async def test_a_key_is_created_with_its_cap(store: Store) -> None:
    """Its view shows the cap and that nothing is spent, and its first request finds it."""
    for cap in (Cap(0), Cap(7, "month"), Cap(AMOUNT_NANO_MAX)):
        secret, key = await create(store, cap=CapOrder(format_dollars(cap.limit_nano), cap.period))
        assert key.cap == KeyCap(cap.limit_nano, cap.period, 0)
        assert (await found_by(store, secret)).is_capped


async def test_what_was_spent_last_month_is_not_shown(store: Store) -> None:
    """A monthly cap shows what is spent in the month of now, also before the first request of the month."""
    _, key = await create(store, cap=CapOrder("0.000000009", "month"))
    await store.transact(lambda tx: tx.change(Statement(caps.update().values(spent_nano=4)), {}))
    listed = [(await list_keys(store, OWNER, now_ms))[0].cap for now_ms in (NOW_MS, NOW_MS + 31 * DAY_MS)]
    assert [cap and cap.spent_nano for cap in (key.cap, *listed)] == [0, 4, 0]
