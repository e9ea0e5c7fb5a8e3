"""Unknown keys: a dead key is remembered for a moment, and failed look-ups are limited, by address and in all."""

import time
from collections.abc import Iterator, Sized

import pytest

from cadenza.core.errors import RateLimited, Unauthenticated
from cadenza.core.rates import NS_PER_S
from cadenza.gateway.limits import (
    DEAD_KEY_S,
    REMEMBERED_MAX,
    STRANGERS_IN_ALL,
    STRANGERS_OF_ONE_ADDRESS,
    UnknownKeyLimiter,
)
from cadenza.observe import Metrics

HOME = "192.0.2.1"
ELSEWHERE = "198.51.100.7"
GOOD = b"a good key"


class Clock:
    """Monotonic time, which stands still until the test moves it."""

    def __init__(self) -> None:
        self.now_ns = time.monotonic_ns()

    def leap(self, time_s: float) -> None:
        self.now_ns += round(time_s * NS_PER_S)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic_ns", lambda: made.now_ns)
    monkeypatch.setattr(time, "monotonic", lambda: made.now_ns / NS_PER_S)
    return made


@pytest.fixture
def unknown_keys(clock: Clock) -> UnknownKeyLimiter:
    return UnknownKeyLimiter(Metrics())


def look_up_dead(unknown_keys: UnknownKeyLimiter, digest: bytes, address: str) -> None:
    """One request with a key that is none, as far as the store is asked."""
    unknown_keys.check(digest, address)
    unknown_keys.note_dead(digest, address)


def digests(count: int, name: str = "dead") -> Iterator[bytes]:
    return (b"%b %d" % (name.encode(), number) for number in range(count))


def flood(unknown_keys: UnknownKeyLimiter, *addresses: str) -> int:
    """How many look-ups these addresses were granted in this moment, each trying until it is refused."""
    granted = 0
    for address in addresses:
        for digest in digests(STRANGERS_OF_ONE_ADDRESS.burst + 1, f"from {address}"):
            try:
                look_up_dead(unknown_keys, digest, address)
            except RateLimited:
                break
            granted += 1
    return granted


def wait_s_of(refused: RateLimited) -> float:
    return int(dict(refused.headers)[b"retry-after-ms"]) / 1000


def test_a_dead_key_is_remembered_for_a_moment(unknown_keys: UnknownKeyLimiter, clock: Clock) -> None:
    """A key that was found dead is 401 without another look-up, until its time is over."""
    look_up_dead(unknown_keys, b"dead", HOME)
    clock.leap(DEAD_KEY_S - 0.001)
    for address in (HOME, ELSEWHERE):
        with pytest.raises(Unauthenticated):
            unknown_keys.check(b"dead", address)
    clock.leap(0.002)
    unknown_keys.check(b"dead", HOME)


def test_one_address_has_so_many_look_ups(unknown_keys: UnknownKeyLimiter) -> None:
    """Beyond its burst an address is told to come back; another one is not."""
    assert flood(unknown_keys, HOME) == STRANGERS_OF_ONE_ADDRESS.burst
    with pytest.raises(RateLimited):
        unknown_keys.check(b"another", HOME)
    unknown_keys.check(b"another", ELSEWHERE)


def test_the_wait_that_a_stranger_is_told_is_the_true_one(unknown_keys: UnknownKeyLimiter, clock: Clock) -> None:
    """Who waits exactly so long is looked up, and much earlier is refused again."""
    flood(unknown_keys, HOME)
    with pytest.raises(RateLimited) as refused:
        unknown_keys.check(b"another", HOME)
    wait_s = wait_s_of(refused.value)
    assert 0 < wait_s <= 1 / STRANGERS_OF_ONE_ADDRESS.per_s
    clock.leap(wait_s - 0.002)
    with pytest.raises(RateLimited):
        unknown_keys.check(b"another", HOME)
    clock.leap(0.002)
    unknown_keys.check(b"another", HOME)


def test_all_addresses_together_have_so_many_look_ups(unknown_keys: UnknownKeyLimiter, clock: Clock) -> None:
    """A flood from many addresses is bounded in all, and those that come after it wait for the rate of all."""
    assert flood(unknown_keys, *(f"10.0.0.{number}" for number in range(50))) == STRANGERS_IN_ALL.burst
    with pytest.raises(RateLimited) as refused:
        unknown_keys.check(b"another", ELSEWHERE)
    clock.leap(wait_s_of(refused.value))
    unknown_keys.check(b"another", ELSEWHERE)


def test_subscriber_of_ipv6_is_one_address(unknown_keys: UnknownKeyLimiter) -> None:
    """All addresses of one /64 share one limit; the next /64 has its own."""
    addresses = [f"2001:db8:0:1::{number:x}" for number in range(1, 50)]
    assert flood(unknown_keys, *addresses) == STRANGERS_OF_ONE_ADDRESS.burst
    with pytest.raises(RateLimited):
        unknown_keys.check(b"another", "2001:db8:0:1:ffff:ffff:ffff:ffff")
    unknown_keys.check(b"another", "2001:db8:0:2::1")


def test_address_of_ipv4_is_its_own_on_a_socket_of_ipv6(unknown_keys: UnknownKeyLimiter) -> None:
    """Addresses of IPv4, as a listener on both shows them, are told apart, and are those that they are without it."""
    assert flood(unknown_keys, f"::ffff:{HOME}") == STRANGERS_OF_ONE_ADDRESS.burst
    unknown_keys.check(b"another", f"::ffff:{ELSEWHERE}")
    with pytest.raises(RateLimited):
        unknown_keys.check(b"another", HOME)


@pytest.mark.parametrize("address", ["", "a socket", "fe80::1%eth0", "256.256.256.256"])
def test_odd_addresses_are_limited_too(unknown_keys: UnknownKeyLimiter, address: str) -> None:
    """Whatever the server says of where a request came from, it has a limit like any other."""
    assert flood(unknown_keys, address) == STRANGERS_OF_ONE_ADDRESS.burst


def test_a_live_key_passes_in_a_flood(unknown_keys: UnknownKeyLimiter) -> None:
    """A key that was live lately is always looked up, from the very address of the flood too."""
    unknown_keys.note_live(GOOD)
    flood(unknown_keys, HOME, *(f"10.0.0.{number}" for number in range(50)))
    for address in (HOME, ELSEWHERE):
        unknown_keys.check(GOOD, address)


def test_a_known_dead_key_is_401_in_a_flood(unknown_keys: UnknownKeyLimiter) -> None:
    """Who is known to be dead is told so, and not to come back."""
    look_up_dead(unknown_keys, b"dead", HOME)
    flood(unknown_keys, HOME)
    with pytest.raises(Unauthenticated):
        unknown_keys.check(b"dead", HOME)


def test_live_keys_use_up_nothing(unknown_keys: UnknownKeyLimiter) -> None:
    """As many good keys as there are may come from one address at once."""
    for digest in digests(2 * STRANGERS_IN_ALL.burst, "good"):
        unknown_keys.check(digest, HOME)
        unknown_keys.note_live(digest)


def test_a_key_that_was_live_and_is_dead_is_a_stranger(unknown_keys: UnknownKeyLimiter, clock: Clock) -> None:
    """After its revocation a key is remembered as dead, and later limited as any other."""
    unknown_keys.note_live(GOOD)
    unknown_keys.check(GOOD, HOME)
    unknown_keys.note_dead(GOOD, HOME)
    with pytest.raises(Unauthenticated):
        unknown_keys.check(GOOD, HOME)
    clock.leap(DEAD_KEY_S + 0.001)
    flood(unknown_keys, HOME)
    with pytest.raises(RateLimited):
        unknown_keys.check(GOOD, HOME)


def test_memory_of_strangers_is_bounded(unknown_keys: UnknownKeyLimiter, clock: Clock) -> None:
    """However many keys and addresses come by, only so many are remembered."""
    for number, digest in enumerate(digests(REMEMBERED_MAX + 2000)):
        unknown_keys.note_dead(digest, f"2001:db8:{number:x}::1")
        unknown_keys.note_live(b"live " + digest)
        clock.leap(0.01)
    sizes = {name: len(kept) for name, kept in vars(unknown_keys).items() if isinstance(kept, Sized)}
    assert sizes
    assert max(sizes.values()) == REMEMBERED_MAX, sizes
