"""Unknown keys: a dead key is remembered for a moment, and look-ups that find nothing are limited for each address."""

from collections.abc import Iterator

import pytest

from cadenza.core.errors import RateLimited, Unauthenticated
from cadenza.core.rates import NS_PER_S
from cadenza.fleet.shared import MemoryRates
from cadenza.gateway.unknown_keys import DEAD_KEY_NS, LOOK_UPS_OF_ONE_ADDRESS, REMEMBERED_MAX, UnknownKeyLimiter
from cadenza.observe import Metrics
from tests.unit.gateway.clock import Clock

HOME = "192.0.2.1"
ELSEWHERE = "198.51.100.7"
LIVE = b"a live key"
DEAD_KEY_S = DEAD_KEY_NS / NS_PER_S


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> UnknownKeyLimiter:
    return UnknownKeyLimiter(Metrics(), MemoryRates(clock), clock)


async def look_up_dead(limiter: UnknownKeyLimiter, digest: bytes, address: str) -> None:
    """A request with a dead key, as far as the store is asked."""
    await limiter.begin(digest, address)
    limiter.found_dead(digest)


def digests(count: int, name: str = "dead") -> Iterator[bytes]:
    return (b"%b %d" % (name.encode(), number) for number in range(count))


async def flood(limiter: UnknownKeyLimiter, *addresses: str) -> int:
    """Try dead keys from each address until it is refused, and return how many look-ups were made."""
    granted = 0
    for address in addresses:
        for digest in digests(LOOK_UPS_OF_ONE_ADDRESS.burst + 1, f"from {address}"):
            try:
                await look_up_dead(limiter, digest, address)
            except RateLimited:
                break
            granted += 1
    return granted


def networks(count: int) -> Iterator[str]:
    return (f"2001:db8:{number:x}::1" for number in range(count))


def wait_s_of(refused: RateLimited) -> float:
    return int(dict(refused.headers)[b"retry-after-ms"]) / 1000


async def test_a_dead_key_is_remembered_for_a_moment(limiter: UnknownKeyLimiter, clock: Clock) -> None:
    """A key that was found dead is 401 without another look-up, until that time is over."""
    await look_up_dead(limiter, b"dead", HOME)
    clock.advance(DEAD_KEY_S - 0.001)
    for address in (HOME, ELSEWHERE):
        with pytest.raises(Unauthenticated):
            await limiter.begin(b"dead", address)
    clock.advance(0.002)
    await limiter.begin(b"dead", HOME)


async def test_the_look_ups_of_one_address_are_limited(limiter: UnknownKeyLimiter) -> None:
    """Beyond its burst an address is refused; another address is not."""
    assert await flood(limiter, HOME) == LOOK_UPS_OF_ONE_ADDRESS.burst
    with pytest.raises(RateLimited):
        await limiter.begin(b"another", HOME)
    await limiter.begin(b"another", ELSEWHERE)


async def test_a_look_up_is_granted_after_the_wait_that_was_told(limiter: UnknownKeyLimiter, clock: Clock) -> None:
    """And not much earlier."""
    await flood(limiter, HOME)
    with pytest.raises(RateLimited) as refused:
        await limiter.begin(b"another", HOME)
    wait_s = wait_s_of(refused.value)
    assert 0 < wait_s <= 1 / LOOK_UPS_OF_ONE_ADDRESS.per_s
    clock.advance(wait_s - 0.002)
    with pytest.raises(RateLimited):
        await limiter.begin(b"another", HOME)
    clock.advance(0.002)
    await limiter.begin(b"another", HOME)


async def test_a_flood_from_many_addresses_costs_others_nothing(limiter: UnknownKeyLimiter) -> None:
    """Each address has the whole of its own limit, however many others there are in other networks."""
    addresses = [f"10.0.{number}.1" for number in range(50)]
    assert await flood(limiter, *addresses) == len(addresses) * LOOK_UPS_OF_ONE_ADDRESS.burst
    assert await flood(limiter, ELSEWHERE) == LOOK_UPS_OF_ONE_ADDRESS.burst


@pytest.mark.parametrize(
    ("network", "factor"), [("2001:db8:0:{:x}00::1", 4), ("2001:db8:0:{:x}::1", 2), ("10.0.0.{}", 4)]
)
async def test_a_wide_network_has_few_limits(limiter: UnknownKeyLimiter, network: str, factor: int) -> None:
    """A /48, a /56 or a /24 gets a few times what one address gets, however many of its addresses are used."""
    addresses = [network.format(number) for number in range(1, 37)]
    assert await flood(limiter, *addresses) == factor * LOOK_UPS_OF_ONE_ADDRESS.burst
    await limiter.begin(b"another", ELSEWHERE)


async def test_a_live_key_is_remembered_during_a_flood(limiter: UnknownKeyLimiter) -> None:
    """A key that was live lately needs no ticket, not even from the address of the flood."""
    limiter.found_live(LIVE)
    await flood(limiter, HOME)
    assert limiter.is_live(LIVE)


async def test_one_key_at_the_same_time_needs_one_ticket(limiter: UnknownKeyLimiter) -> None:
    """Requests that present the key while it is looked up take no further tickets; later ones do."""
    for _ in range(3 * LOOK_UPS_OF_ONE_ADDRESS.burst):
        await limiter.begin(LIVE, HOME)
    limiter.found_live(LIVE)
    assert await flood(limiter, HOME) == LOOK_UPS_OF_ONE_ADDRESS.burst


async def test_look_ups_at_the_same_time_are_limited(limiter: UnknownKeyLimiter) -> None:
    """The ticket is taken before the look-up: look-ups whose result is still unknown count too."""
    for digest in digests(LOOK_UPS_OF_ONE_ADDRESS.burst):
        await limiter.begin(digest, HOME)
    with pytest.raises(RateLimited):
        await limiter.begin(b"another", HOME)


@pytest.mark.parametrize(("is_given_back", "left"), [(True, LOOK_UPS_OF_ONE_ADDRESS.burst), (False, 0)])
async def test_a_look_up_without_a_result(limiter: UnknownKeyLimiter, is_given_back: bool, left: int) -> None:
    """A store that fails costs the address nothing; a client that disconnects does."""
    for digest in digests(LOOK_UPS_OF_ONE_ADDRESS.burst, "unanswered"):
        await limiter.begin(digest, HOME)
        (limiter.release if is_given_back else limiter.spend)(digest)
    assert await flood(limiter, HOME) == left


async def test_a_revoked_key_is_limited_like_an_unknown_one(limiter: UnknownKeyLimiter, clock: Clock) -> None:
    """After its revocation a key is remembered as dead, and later limited."""
    limiter.found_live(LIVE)
    limiter.found_dead(LIVE)
    assert not limiter.is_live(LIVE)
    with pytest.raises(Unauthenticated):
        await limiter.begin(LIVE, HOME)
    clock.advance(DEAD_KEY_S + 0.001)
    await flood(limiter, HOME)
    with pytest.raises(RateLimited):
        await limiter.begin(LIVE, HOME)


async def test_only_so_many_keys_are_remembered(limiter: UnknownKeyLimiter) -> None:
    """Beyond the bound the oldest dead key and the oldest live key are forgotten."""
    for digest in digests(REMEMBERED_MAX + 1):
        limiter.found_dead(digest)
    for digest in digests(REMEMBERED_MAX + 1, "live"):
        limiter.found_live(digest)
    await limiter.begin(b"dead 0", HOME)  # forgotten: it is looked up again
    with pytest.raises(Unauthenticated):
        await limiter.begin(b"dead 1", HOME)
    assert (limiter.is_live(b"live 0"), limiter.is_live(b"live 1")) == (False, True)


async def test_an_address_stays_limited_however_many_others_come(limiter: UnknownKeyLimiter) -> None:
    """Networks that are full again are forgotten before one that is not."""
    await flood(limiter, HOME)
    for number, address in enumerate(networks(2 * REMEMBERED_MAX)):
        await look_up_dead(limiter, b"from elsewhere %d" % number, address)
    with pytest.raises(RateLimited):
        await limiter.begin(b"another", HOME)
