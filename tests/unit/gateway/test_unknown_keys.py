"""Unknown keys: a dead key is remembered for a moment, and failed look-ups are limited, per address and in all."""

from collections.abc import Iterator

import pytest

from cadenza.core.errors import RateLimited, Unauthenticated
from cadenza.core.rates import NS_PER_S
from cadenza.gateway.unknown_keys import (
    DEAD_KEY_NS,
    LOOK_UPS_IN_ALL,
    LOOK_UPS_OF_ONE_ADDRESS,
    REMEMBERED_MAX,
    UnknownKeyLimiter,
)
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
    return UnknownKeyLimiter(Metrics(), clock)


def look_up_dead(limiter: UnknownKeyLimiter, digest: bytes, address: str) -> None:
    """A request with a dead key, as far as the store is asked."""
    limiter.check(digest, address)
    limiter.note_dead(digest, address)


def digests(count: int, name: str = "dead") -> Iterator[bytes]:
    return (b"%b %d" % (name.encode(), number) for number in range(count))


def flood(limiter: UnknownKeyLimiter, *addresses: str) -> int:
    """Try dead keys from each address until it is refused, and return how many look-ups were made."""
    granted = 0
    for address in addresses:
        for digest in digests(LOOK_UPS_OF_ONE_ADDRESS.burst + 1, f"from {address}"):
            try:
                look_up_dead(limiter, digest, address)
            except RateLimited:
                break
            granted += 1
    return granted


def networks(count: int) -> Iterator[str]:
    return (f"2001:db8:{number:x}::1" for number in range(count))


def wait_s_of(refused: RateLimited) -> float:
    return int(dict(refused.headers)[b"retry-after-ms"]) / 1000


def test_a_dead_key_is_remembered_for_a_moment(limiter: UnknownKeyLimiter, clock: Clock) -> None:
    """A key that was found dead is 401 without another look-up, until that time is over."""
    look_up_dead(limiter, b"dead", HOME)
    clock.advance(DEAD_KEY_S - 0.001)
    for address in (HOME, ELSEWHERE):
        with pytest.raises(Unauthenticated):
            limiter.check(b"dead", address)
    clock.advance(0.002)
    limiter.check(b"dead", HOME)


def test_the_look_ups_of_one_address_are_limited(limiter: UnknownKeyLimiter) -> None:
    """Beyond its burst an address is refused; another address is not."""
    assert flood(limiter, HOME) == LOOK_UPS_OF_ONE_ADDRESS.burst
    with pytest.raises(RateLimited):
        limiter.check(b"another", HOME)
    limiter.check(b"another", ELSEWHERE)


def test_a_look_up_is_granted_after_the_wait_that_was_told(limiter: UnknownKeyLimiter, clock: Clock) -> None:
    """And not much earlier."""
    flood(limiter, HOME)
    with pytest.raises(RateLimited) as refused:
        limiter.check(b"another", HOME)
    wait_s = wait_s_of(refused.value)
    assert 0 < wait_s <= 1 / LOOK_UPS_OF_ONE_ADDRESS.per_s
    clock.advance(wait_s - 0.002)
    with pytest.raises(RateLimited):
        limiter.check(b"another", HOME)
    clock.advance(0.002)
    limiter.check(b"another", HOME)


def test_the_look_ups_of_all_addresses_are_limited(limiter: UnknownKeyLimiter, clock: Clock) -> None:
    """A flood from many addresses is limited in all, and a new address waits for the rate of all."""
    assert flood(limiter, *(f"10.0.0.{number}" for number in range(50))) == LOOK_UPS_IN_ALL.burst
    with pytest.raises(RateLimited) as refused:
        limiter.check(b"another", ELSEWHERE)
    clock.advance(wait_s_of(refused.value))
    limiter.check(b"another", ELSEWHERE)


def test_an_ipv6_network_counts_as_one_address(limiter: UnknownKeyLimiter) -> None:
    """All addresses of one /64 share one limit; the next /64 has its own."""
    addresses = [f"2001:db8:0:1::{number:x}" for number in range(1, 50)]
    assert flood(limiter, *addresses) == LOOK_UPS_OF_ONE_ADDRESS.burst
    with pytest.raises(RateLimited):
        limiter.check(b"another", "2001:db8:0:1:ffff:ffff:ffff:ffff")
    limiter.check(b"another", "2001:db8:0:2::1")


def test_a_mapped_ipv4_address_counts_as_the_ipv4_address(limiter: UnknownKeyLimiter) -> None:
    """Addresses like ::ffff:192.0.2.1, as a dual-stack socket shows them, have a limit each."""
    assert flood(limiter, f"::ffff:{HOME}") == LOOK_UPS_OF_ONE_ADDRESS.burst
    limiter.check(b"another", f"::ffff:{ELSEWHERE}")
    with pytest.raises(RateLimited):
        limiter.check(b"another", HOME)


@pytest.mark.parametrize("address", ["", "a socket", "fe80::1%eth0", "256.256.256.256"])
def test_a_text_that_is_not_an_address_is_limited_too(limiter: UnknownKeyLimiter, address: str) -> None:
    """Whatever the server reports as the peer has a limit like an address."""
    assert flood(limiter, address) == LOOK_UPS_OF_ONE_ADDRESS.burst


def test_a_live_key_passes_during_a_flood(limiter: UnknownKeyLimiter) -> None:
    """A key that was live lately is always looked up, even from the address of the flood."""
    limiter.note_live(LIVE)
    flood(limiter, HOME, *(f"10.0.0.{number}" for number in range(50)))
    for address in (HOME, ELSEWHERE):
        limiter.check(LIVE, address)


def test_a_known_dead_key_is_401_during_a_flood(limiter: UnknownKeyLimiter) -> None:
    """It is not told to retry."""
    look_up_dead(limiter, b"dead", HOME)
    flood(limiter, HOME)
    with pytest.raises(Unauthenticated):
        limiter.check(b"dead", HOME)


def test_live_keys_use_up_no_look_ups(limiter: UnknownKeyLimiter) -> None:
    """Any number of live keys may come from one address at once."""
    for digest in digests(2 * LOOK_UPS_IN_ALL.burst, "live"):
        limiter.check(digest, HOME)
        limiter.note_live(digest)


def test_a_revoked_key_is_limited_like_an_unknown_one(limiter: UnknownKeyLimiter, clock: Clock) -> None:
    """After its revocation a key is remembered as dead, and later limited."""
    limiter.note_live(LIVE)
    limiter.check(LIVE, HOME)
    limiter.note_dead(LIVE, HOME)
    with pytest.raises(Unauthenticated):
        limiter.check(LIVE, HOME)
    clock.advance(DEAD_KEY_S + 0.001)
    flood(limiter, HOME)
    with pytest.raises(RateLimited):
        limiter.check(LIVE, HOME)


def test_only_so_many_keys_are_remembered(limiter: UnknownKeyLimiter) -> None:
    """Beyond the bound the oldest dead key and the oldest live key are forgotten."""
    for digest in digests(REMEMBERED_MAX + 1):
        limiter.note_dead(digest, HOME)
    for digest in digests(REMEMBERED_MAX + 1, "live"):
        limiter.note_live(digest)
    with pytest.raises(RateLimited):  # forgotten: it would be looked up, if the flood allowed it
        limiter.check(b"dead 0", HOME)
    with pytest.raises(Unauthenticated):
        limiter.check(b"dead 1", HOME)
    assert (limiter.is_live(b"live 0"), limiter.is_live(b"live 1")) == (False, True)


@pytest.mark.parametrize(("others", "is_forgotten"), [(REMEMBERED_MAX - 1, False), (REMEMBERED_MAX, True)])
def test_only_so_many_addresses_are_remembered(
    limiter: UnknownKeyLimiter, clock: Clock, others: int, is_forgotten: bool
) -> None:
    """Beyond the bound the address that was not seen for the longest time has its whole limit again."""
    flood(limiter, HOME)
    for address in networks(others):
        limiter.note_dead(b"dead", address)
    clock.advance(2 / LOOK_UPS_IN_ALL.per_s)
    if is_forgotten:
        limiter.check(b"another", HOME)
    else:
        with pytest.raises(RateLimited):
            limiter.check(b"another", HOME)
