"""Strangers: a dead key is remembered for a moment, and look-ups that find none are limited, by address and in all."""

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
    Strangers,
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
def strangers(clock: Clock) -> Strangers:
    return Strangers(Metrics())


def look_up_dead(strangers: Strangers, digest: bytes, address: str) -> None:
    """One request with a key that is none, as far as the store is asked."""
    strangers.check(digest, address)
    strangers.note_dead(digest, address)


def digests(count: int, name: str = "dead") -> Iterator[bytes]:
    return (b"%b %d" % (name.encode(), number) for number in range(count))


def flood(strangers: Strangers, *addresses: str) -> int:
    """How many look-ups these addresses were granted in this moment, each trying until it is refused."""
    granted = 0
    for address in addresses:
        for digest in digests(STRANGERS_OF_ONE_ADDRESS.burst + 1, f"from {address}"):
            try:
                look_up_dead(strangers, digest, address)
            except RateLimited:
                break
            granted += 1
    return granted


def wait_s_of(refused: RateLimited) -> float:
    return int(dict(refused.headers)[b"retry-after-ms"]) / 1000


def test_a_dead_key_is_remembered_for_a_moment(strangers: Strangers, clock: Clock) -> None:
    """A key that was found dead is 401 without another look-up, until its time is over."""
    look_up_dead(strangers, b"dead", HOME)
    clock.leap(DEAD_KEY_S - 0.001)
    for address in (HOME, ELSEWHERE):
        with pytest.raises(Unauthenticated):
            strangers.check(b"dead", address)
    clock.leap(0.002)
    strangers.check(b"dead", HOME)


def test_one_address_has_so_many_look_ups(strangers: Strangers) -> None:
    """Beyond its burst an address is told to come back; another one is not."""
    assert flood(strangers, HOME) == STRANGERS_OF_ONE_ADDRESS.burst
    with pytest.raises(RateLimited):
        strangers.check(b"another", HOME)
    strangers.check(b"another", ELSEWHERE)


def test_the_wait_that_a_stranger_is_told_is_the_true_one(strangers: Strangers, clock: Clock) -> None:
    """Who waits exactly so long is looked up, and much earlier is refused again."""
    flood(strangers, HOME)
    with pytest.raises(RateLimited) as refused:
        strangers.check(b"another", HOME)
    wait_s = wait_s_of(refused.value)
    assert 0 < wait_s <= 1 / STRANGERS_OF_ONE_ADDRESS.per_s
    clock.leap(wait_s - 0.002)
    with pytest.raises(RateLimited):
        strangers.check(b"another", HOME)
    clock.leap(0.002)
    strangers.check(b"another", HOME)


def test_all_addresses_together_have_so_many_look_ups(strangers: Strangers, clock: Clock) -> None:
    """A flood from many addresses is bounded in all, and those that come after it wait for the rate of all."""
    assert flood(strangers, *(f"10.0.0.{number}" for number in range(50))) == STRANGERS_IN_ALL.burst
    with pytest.raises(RateLimited) as refused:
        strangers.check(b"another", ELSEWHERE)
    clock.leap(wait_s_of(refused.value))
    strangers.check(b"another", ELSEWHERE)


def test_subscriber_of_ipv6_is_one_address(strangers: Strangers) -> None:
    """All addresses of one /64 share one limit; the next /64 has its own."""
    addresses = [f"2001:db8:0:1::{number:x}" for number in range(1, 50)]
    assert flood(strangers, *addresses) == STRANGERS_OF_ONE_ADDRESS.burst
    with pytest.raises(RateLimited):
        strangers.check(b"another", "2001:db8:0:1:ffff:ffff:ffff:ffff")
    strangers.check(b"another", "2001:db8:0:2::1")


def test_address_of_ipv4_is_its_own_on_a_socket_of_ipv6(strangers: Strangers) -> None:
    """Addresses of IPv4, as a listener on both shows them, are told apart, and are those that they are without it."""
    assert flood(strangers, f"::ffff:{HOME}") == STRANGERS_OF_ONE_ADDRESS.burst
    strangers.check(b"another", f"::ffff:{ELSEWHERE}")
    with pytest.raises(RateLimited):
        strangers.check(b"another", HOME)


@pytest.mark.parametrize("address", ["", "a socket", "fe80::1%eth0", "256.256.256.256"])
def test_odd_addresses_are_limited_too(strangers: Strangers, address: str) -> None:
    """Whatever the server says of where a request came from, it has a limit like any other."""
    assert flood(strangers, address) == STRANGERS_OF_ONE_ADDRESS.burst


def test_a_live_key_passes_in_a_flood(strangers: Strangers) -> None:
    """A key that was live lately is always looked up, from the very address of the flood too."""
    strangers.note_live(GOOD)
    flood(strangers, HOME, *(f"10.0.0.{number}" for number in range(50)))
    for address in (HOME, ELSEWHERE):
        strangers.check(GOOD, address)


def test_a_known_dead_key_is_401_in_a_flood(strangers: Strangers) -> None:
    """Who is known to be dead is told so, and not to come back."""
    look_up_dead(strangers, b"dead", HOME)
    flood(strangers, HOME)
    with pytest.raises(Unauthenticated):
        strangers.check(b"dead", HOME)


def test_live_keys_use_up_nothing(strangers: Strangers) -> None:
    """As many good keys as there are may come from one address at once."""
    for digest in digests(2 * STRANGERS_IN_ALL.burst, "good"):
        strangers.check(digest, HOME)
        strangers.note_live(digest)


def test_a_key_that_was_live_and_is_dead_is_a_stranger(strangers: Strangers, clock: Clock) -> None:
    """After its revocation a key is remembered as dead, and later limited as any other."""
    strangers.note_live(GOOD)
    strangers.check(GOOD, HOME)
    strangers.note_dead(GOOD, HOME)
    with pytest.raises(Unauthenticated):
        strangers.check(GOOD, HOME)
    clock.leap(DEAD_KEY_S + 0.001)
    flood(strangers, HOME)
    with pytest.raises(RateLimited):
        strangers.check(GOOD, HOME)


def test_memory_of_strangers_is_bounded(strangers: Strangers, clock: Clock) -> None:
    """However many keys and addresses come by, only so many are remembered."""
    for number, digest in enumerate(digests(REMEMBERED_MAX + 2000)):
        strangers.note_dead(digest, f"2001:db8:{number:x}::1")
        strangers.note_live(b"live " + digest)
        clock.leap(0.01)
    sizes = {name: len(kept) for name, kept in vars(strangers).items() if isinstance(kept, Sized)}
    assert sizes
    assert max(sizes.values()) == REMEMBERED_MAX, sizes
