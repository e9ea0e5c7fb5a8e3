"""Floods of unknown keys against a real store: how many look-ups reach it, one after the other and at once."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cadenza.core.codes import make_key
from cadenza.core.errors import CadenzaError
from cadenza.core.rates import NS_PER_S, Rate
from cadenza.fleet.changes import make_change
from cadenza.gateway.auth import identify
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.unknown_keys import DEAD_KEY_NS, LOOK_UPS_OF_ONE_ADDRESS
from cadenza.store.tables import keys
from tests.unit.gateway.client import Client
from tests.unit.gateway.funded_store import KEY_ID, FundedStore, WatchedStore
from tests.unit.gateway.gateways import make_gateway

HOME = "192.0.2.1"
FLOOD = 1000
NO_NEED = Rate(NS_PER_S / DEAD_KEY_NS, 0)  # one look-up, and another only when the key was forgotten


@pytest.fixture
async def gateway(funded: FundedStore) -> Gateway:
    """Made in the event loop, which it keeps."""
    return make_gateway(funded.store, funded.observer)


@pytest.fixture
def store(funded: FundedStore) -> WatchedStore:
    return funded.store


async def present(gateway: Gateway, key: str, address: str = HOME) -> int:
    """Present a key from an address: 200, or the status of the refusal."""
    exchange = Client(address).open([(b"authorization", b"Bearer " + key.encode())])
    try:
        await identify(gateway, exchange)
    except CadenzaError as error:
        return error.status
    return 200


async def flood_until_refused(gateway: Gateway) -> None:
    for _ in range(FLOOD):
        if await present(gateway, make_key()) == 429:
            return
    raise AssertionError("a flood was never refused")


@contextmanager
def limited_look_ups(store: WatchedStore, rate: Rate) -> Iterator[None]:
    """The block looks keys up in the store no more often than the rate allows in the time that the block takes."""
    before, started_s = look_ups(store), time.monotonic()
    yield
    earned = rate.per_s * (time.monotonic() - started_s)
    assert look_ups(store) - before <= rate.burst + earned + 1


def look_ups(store: WatchedStore) -> int:
    return store.statements.count(keys.LOOK_UP)


async def test_most_of_a_flood_never_reaches_the_store(gateway: Gateway, store: WatchedStore) -> None:
    """Of a thousand unknown keys, the store is asked for the burst of one address and a few more."""
    with limited_look_ups(store, LOOK_UPS_OF_ONE_ADDRESS):
        statuses = Counter([await present(gateway, make_key()) for _ in range(FLOOD)])
    asked = look_ups(store)
    assert asked >= LOOK_UPS_OF_ONE_ADDRESS.burst
    assert statuses == {401: asked, 429: FLOOD - asked}


@pytest.mark.parametrize("is_one_key", [False, True])
async def test_a_flood_at_once_is_limited(gateway: Gateway, store: WatchedStore, is_one_key: bool) -> None:
    """A thousand unknown keys in the same instant, different ones or one and the same, are limited no less."""
    sent = [make_key()] * FLOOD if is_one_key else [make_key() for _ in range(FLOOD)]
    with limited_look_ups(store, LOOK_UPS_OF_ONE_ADDRESS):
        statuses = Counter(await asyncio.gather(*(present(gateway, key) for key in sent)))
    assert 401 in statuses
    assert statuses.keys() <= {401, 429}


async def test_a_dead_key_that_is_repeated_is_looked_up_once(gateway: Gateway, store: WatchedStore) -> None:
    """It is 401 every time."""
    key = make_key()
    with limited_look_ups(store, NO_NEED):
        assert {await present(gateway, key) for _ in range(100)} == {401}


async def test_a_live_key_is_served_during_a_flood_from_its_own_address(gateway: Gateway, funded: FundedStore) -> None:
    """A key that was served before is let in between unknown keys, one after the other and at once."""
    live = funded.secret
    assert await present(gateway, live) == 200
    await flood_until_refused(gateway)
    assert await present(gateway, live) == 200
    together = await asyncio.gather(*(present(gateway, live if number % 2 else make_key()) for number in range(200)))
    assert set(together[1::2]) == {200}


async def test_a_revoked_key_is_refused_at_once_and_looked_up_once(
    gateway: Gateway, funded: FundedStore, store: WatchedStore
) -> None:
    """The first request after the revocation asks the store; the next ones are answered from memory."""
    assert await present(gateway, funded.secret) == 200
    await make_change(store, lambda tx: keys.revoke(tx, KEY_ID, 1))
    with limited_look_ups(store, NO_NEED):
        assert {await present(gateway, funded.secret) for _ in range(50)} == {401}
