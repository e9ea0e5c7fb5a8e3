"""A rate of a key's own: given with the key or later, in part or whole, and taken away again."""

import math
from contextlib import suppress

import msgspec
import pytest

from cadenza.control.errors import ControlError
from cadenza.control.keys import RATE_MAX, KeyLimits, KeyOrder, create_key, limit_key, list_keys, revoke_key
from cadenza.core.apikey import digest_key, make_key
from cadenza.core.rates import Rate, take_ticket
from cadenza.store import accounts, keys
from cadenza.store.accounts import Account
from cadenza.store.database import Database

NOW_MS = 1_800_000_000_000
EMAIL = "owner@example.org"
OWN = KeyLimits(2.5, 7)
FINE = [KeyLimits(), OWN, KeyLimits(burst=3), KeyLimits(0.001), KeyLimits(RATE_MAX, RATE_MAX), KeyLimits(1.0, 1)]
BAD_RATES = [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, RATE_MAX + 0.5, 1e300]
BAD_BURSTS = [0, -1, RATE_MAX + 1, 2**63, -(2**63)]
BAD = [KeyLimits(rate, 5) for rate in BAD_RATES] + [KeyLimits(5.0, burst) for burst in BAD_BURSTS]


@pytest.fixture(autouse=True)
async def owner(db: Database) -> None:
    async with db.write() as conn:
        await accounts.insert(conn, Account("acct_a", EMAIL, "forte", 0, 0, NOW_MS), "hash")


async def create(db: Database, limits: KeyLimits | None = None) -> str:
    order = KeyOrder() if limits is None else KeyOrder(limits=limits)
    secret, _ = await create_key(db, EMAIL, order, NOW_MS)
    return secret


async def limits_of(db: Database, secret: str) -> KeyLimits:
    """What a request with this key finds in the store."""
    found = await keys.look_up(db, digest_key(secret.encode()))
    assert found
    return KeyLimits(found.requests_per_second, found.burst)


async def test_a_key_is_created_with_its_rate(db: Database) -> None:
    """What was ordered is what the next request finds; nothing ordered is nothing of its own."""
    for limits in FINE:
        assert await limits_of(db, await create(db, limits)) == limits
    assert await limits_of(db, await create(db)) == KeyLimits()


async def test_a_rate_is_given_and_taken_away_by_any_name_of_the_key(db: Database) -> None:
    """Its id, its prefix and the key itself all find it; no other key is touched."""
    other, secret = await create(db, KeyLimits(9.0, 9)), await create(db)
    key = next(one for one in await list_keys(db, EMAIL, NOW_MS) if secret.startswith(one.prefix))
    for name in (key.id, key.prefix, secret):
        assert await limit_key(db, name, OWN, NOW_MS) == key
        assert await limits_of(db, secret) == OWN
        await limit_key(db, name, KeyLimits(), NOW_MS)
        assert await limits_of(db, secret) == KeyLimits()
    assert await limits_of(db, other) == KeyLimits(9.0, 9)


async def test_a_new_rate_replaces_the_whole_of_the_old(db: Database) -> None:
    """What is not given is not kept from before: it is as for every key."""
    secret = await create(db, KeyLimits(4.0, 4))
    for limits in FINE:
        await limit_key(db, secret, limits, NOW_MS)
        assert await limits_of(db, secret) == limits


async def test_a_rate_that_is_none_is_refused(db: Database) -> None:
    """The refusal says the bounds; no key is made, and the one that there is stays as it was."""
    secret = await create(db, OWN)
    for limits in BAD:
        expected = "rate is above 0 and at most 1,000,000" if limits.burst == 5 else "burst is from 1 to 1,000,000"
        with pytest.raises(ControlError, match=expected):
            await limit_key(db, secret, limits, NOW_MS)
        with pytest.raises(ControlError, match=expected):
            await create_key(db, EMAIL, KeyOrder(limits=limits), NOW_MS)
    assert await limits_of(db, secret) == OWN
    assert len(await list_keys(db, EMAIL, NOW_MS)) == 1


async def test_a_rate_that_is_taken_can_be_used(db: Database) -> None:
    """However low a rate is, it is either refused in a sentence or good for requests."""
    for per_s in (1e-9, 1e-30, 1e-299, 1e-320, 5e-324):
        with suppress(ControlError):
            kept = await limits_of(db, await create(db, KeyLimits(per_s, 1)))
            assert kept.requests_per_second is not None
            rate = Rate(kept.requests_per_second, 1)
            whole_at_ns, first = take_ticket(0, 1, rate)
            _, second = take_ticket(whole_at_ns, 1, rate)
            assert (first.is_granted, second.is_granted) == (True, False)
            assert second.wait_s > 0


async def test_a_rate_for_nobody_is_refused(db: Database) -> None:
    """A name that matches no key changes nothing, and a whole key is not repeated."""
    secret = await create(db, OWN)
    for name in ("key_nobody", "sk-cdz-", "", make_key()):
        with pytest.raises(ControlError, match="No key matches") as refused:
            await limit_key(db, name, KeyLimits(1.0, 1), NOW_MS)
        assert len(name) <= 12 or name not in refused.value.message
    assert await limits_of(db, secret) == OWN


async def test_a_rate_brings_no_key_back(db: Database) -> None:
    """A revoked key stays revoked whatever rate it is given."""
    secret = await create(db)
    await revoke_key(db, secret, NOW_MS)
    assert (await limit_key(db, secret, OWN, NOW_MS)).state == "revoked"
    assert [key.state for key in await list_keys(db, EMAIL, NOW_MS)] == ["revoked"]


async def test_rates_are_not_among_the_listed_fields(db: Database) -> None:
    """The list of keys has exactly the fields of the contract, for a key with a rate of its own too."""
    await create(db, OWN)
    (key,) = await list_keys(db, EMAIL, NOW_MS)
    shown = ["id", "name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at"]
    assert list(msgspec.to_builtins(key)) == shown
