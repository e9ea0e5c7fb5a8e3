"""The limits of unknown keys over both kinds of shared state."""

import asyncio

import pytest

from cadenza.fleet.shared import SharedState
from cadenza.gateway.unknown_keys import LOOK_UPS_OF_ONE_ADDRESS, UnknownKeyLimiter
from cadenza.observe import Metrics

HOME = "192.0.2.1"
BURST = LOOK_UPS_OF_ONE_ADDRESS.burst


@pytest.fixture
def limiter(state: SharedState) -> UnknownKeyLimiter:
    return UnknownKeyLimiter(Metrics(), state.networks)


async def test_one_key_at_the_same_time_needs_one_ticket(limiter: UnknownKeyLimiter) -> None:
    """However many requests present a new key in the same instant, none is refused."""
    await asyncio.gather(*(limiter.begin(b"live", HOME) for _ in range(3 * BURST)))
    limiter.found_live(b"live")
    await limiter.begin(b"another", HOME)


async def test_a_cancelled_request_does_not_hold_up_others_with_its_key(limiter: UnknownKeyLimiter) -> None:
    """The next one asks for the ticket."""
    tasks = [asyncio.create_task(limiter.begin(b"live", HOME)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    assert await asyncio.gather(*tasks[1:]) == [None, None]
