"""Limits of one key: set when the key is created or later, in part or whole, and removed again."""

import math
from contextlib import suppress

import msgspec
import pytest
from msgspec.structs import asdict

from cadenza.control.keys import RATE_MAX, KeyChange, KeyOrder, change_key, create_key, list_keys, revoke_key
from cadenza.core.codes import digest_key, make_key
from cadenza.core.errors import ControlError
from cadenza.core.rates import Rate, take_ticket
from cadenza.store.store import Store
from cadenza.store.tables import accounts, keys
from cadenza.store.tables.accounts import Account


class KeyLimits(msgspec.Struct, frozen=True):
    """The limits of one key, as an order or a change has them."""

    requests_per_second: float | None = None
    burst: int | None = None


NOW_MS = 1_800_000_000_000
EMAIL = "owner@example.org"
OWN = KeyLimits(2.5, 7)
FINE = [KeyLimits(), OWN, KeyLimits(burst=3), KeyLimits(0.001), KeyLimits(RATE_MAX, RATE_MAX), KeyLimits(1.0, 1)]
BAD_RATES = [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, RATE_MAX + 0.5, 1e300]
BAD_BURSTS = [0, -1, RATE_MAX + 1, 2**63, -(2**63)]
BAD = [KeyLimits(rate, 5) for rate in BAD_RATES] + [KeyLimits(5.0, burst) for burst in BAD_BURSTS]


@pytest.fixture(autouse=True)
async def owner(store: Store) -> None:
    await store.transact(lambda tx: accounts.add(tx, Account("acct_a", EMAIL, "forte", 0, 0, NOW_MS), "hash"))


async def create(store: Store, limits: KeyLimits | None = None) -> str:
    order = KeyOrder() if limits is None else KeyOrder(**asdict(limits))
    secret, _ = await create_key(store, EMAIL, order, NOW_MS)
    return secret


async def limits_of(store: Store, secret: str) -> KeyLimits:
    """Return the limits that a request with this key finds in the store."""
    found = await keys.look_up(store, digest_key(secret.encode()))
    assert found
    return KeyLimits(found.principal.requests_per_second, found.principal.burst)


async def test_a_key_is_created_with_its_limits(store: Store) -> None:
    """The next request finds the limits that were given, and none if none were given."""
    for limits in FINE:
        assert await limits_of(store, await create(store, limits)) == limits
    assert await limits_of(store, await create(store)) == KeyLimits()


async def test_limits_are_set_and_removed_by_id_prefix_or_key(store: Store) -> None:
    """Its id, its prefix and the key itself all find it; no other key is changed."""
    other, secret = await create(store, KeyLimits(9.0, 9)), await create(store)
    key = next(one for one in await list_keys(store, EMAIL, NOW_MS) if secret.startswith(one.prefix))
    for name in (key.id, key.prefix, secret):
        assert await change_key(store, name, KeyChange(**asdict(OWN)), NOW_MS) == msgspec.structs.replace(
            key, **asdict(OWN)
        )
        assert await limits_of(store, secret) == OWN
        await change_key(store, name, KeyChange(requests_per_second=None, burst=None), NOW_MS)
        assert await limits_of(store, secret) == KeyLimits()
    assert await limits_of(store, other) == KeyLimits(9.0, 9)


async def test_new_limits_replace_all_old_ones(store: Store) -> None:
    """A limit that is not given is removed, not kept."""
    secret = await create(store, KeyLimits(4.0, 4))
    for limits in FINE:
        await change_key(store, secret, KeyChange(**asdict(limits)), NOW_MS)
        assert await limits_of(store, secret) == limits


async def test_limits_out_of_bounds_are_refused(store: Store) -> None:
    """The refusal has the bounds; no key is created, and the existing one keeps its limits."""
    secret = await create(store, OWN)
    for limits in BAD:
        expected = "rate is above 0 and at most 1,000,000" if limits.burst == 5 else "burst is from 1 to 1,000,000"
        with pytest.raises(ControlError, match=expected):
            await change_key(store, secret, KeyChange(**asdict(limits)), NOW_MS)
        with pytest.raises(ControlError, match=expected):
            await create_key(store, EMAIL, KeyOrder(**asdict(limits)), NOW_MS)
    assert await limits_of(store, secret) == OWN
    assert len(await list_keys(store, EMAIL, NOW_MS)) == 1


async def test_an_accepted_rate_can_be_used(store: Store) -> None:
    """A very low rate is either refused or works."""
    for per_s in (1e-9, 1e-30, 1e-299, 1e-320, 5e-324):
        with suppress(ControlError):
            kept = await limits_of(store, await create(store, KeyLimits(per_s, 1)))
            assert kept.requests_per_second is not None
            rate = Rate(kept.requests_per_second, 1)
            whole_at_ns, first = take_ticket(0, 1, rate)
            _, second = take_ticket(whole_at_ns, 1, rate)
            assert (first.is_granted, second.is_granted) == (True, False)
            assert second.wait_s > 0


async def test_limits_for_an_unknown_key_are_refused(store: Store) -> None:
    """A name that matches no key changes nothing, and the message does not repeat a whole key."""
    secret = await create(store, OWN)
    for name in ("key_nobody", "sk-cdz-", "", make_key()):
        with pytest.raises(ControlError, match="No key matches") as refused:
            await change_key(store, name, KeyChange(requests_per_second=1.0, burst=1), NOW_MS)
        assert len(name) <= 12 or name not in refused.value.message
    assert await limits_of(store, secret) == OWN


async def test_limits_do_not_reactivate_a_key(store: Store) -> None:
    """A revoked key that gets limits stays revoked."""
    secret = await create(store)
    await revoke_key(store, secret, NOW_MS)
    assert (await change_key(store, secret, KeyChange(**asdict(OWN)), NOW_MS)).state == "revoked"
    assert [key.state for key in await list_keys(store, EMAIL, NOW_MS)] == ["revoked"]


async def test_listed_keys_have_their_limits(store: Store) -> None:
    """A listed key has the limits that it was created with."""
    await create(store, OWN)
    (key,) = await list_keys(store, EMAIL, NOW_MS)
    assert KeyLimits(key.requests_per_second, key.burst) == OWN
