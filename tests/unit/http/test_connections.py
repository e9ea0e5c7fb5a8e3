"""The open connections: what there is room for, and which one makes room."""

import asyncio

from cadenza.http.connections import Connections, ConnectionsLimits, Room
from tests.unit.upstreams.clock import Clock

LIMITS = ConnectionsLimits(served_max=3, refused_max=2, lingering_max=1)


class Stub:
    """A connection that only notes that it was aborted."""

    is_aborted = False
    peer = "192.0.2.1"

    def abort(self) -> None:
        self.is_aborted = True

    def shut(self) -> None:
        """Nothing runs on it."""


def fill(connections: Connections, count: int) -> list[Stub]:
    made = [Stub() for _ in range(count)]
    for one in made:
        connections.add(one)
    return made


async def test_the_one_that_was_quiet_for_longest_makes_room(clock: Clock) -> None:
    """A full server closes the connection whose last request is the longest ago, and no other."""
    connections = Connections(LIMITS)
    first, second, third = fill(connections, 3)
    for one in (second, first, third):
        connections.quiet.pop(one)
        connections.quiet[one] = asyncio.get_running_loop().time()
    await clock.leap(LIMITS.quiet_s_min + 1)
    assert connections.find_room(0) is Room.SERVE
    assert [one.is_aborted for one in (first, second, third)] == [False, True, False]
    assert len(connections) == 2


async def test_a_connection_that_is_new_keeps_its_place(clock: Clock) -> None:
    """Its request may be on its way, so the next client waits for a moment."""
    connections = Connections(LIMITS)
    made = fill(connections, 3)
    assert connections.find_room(0) is Room.NONE
    assert not any(one.is_aborted for one in made)
    await clock.leap(LIMITS.quiet_s_min + 1)
    assert connections.find_room(0) is Room.SERVE


async def test_busy_connections_are_never_closed(clock: Clock) -> None:
    """If all are busy, some more are accepted to be refused, and the others wait."""
    connections = Connections(LIMITS)
    made = fill(connections, 3)
    for one in made:
        connections.quiet.pop(one)
    await clock.leap(1000)
    assert connections.find_room(0) is Room.REFUSE
    for one in fill(connections, 2):
        connections.quiet.pop(one)
    assert connections.find_room(0) is Room.NONE
    assert not any(one.is_aborted for one in made)
    connections.remove(made[0])
    assert connections.find_room(0) is Room.REFUSE


async def test_connections_that_arrive_take_places() -> None:
    """A connection that was accepted a moment ago counts before it is open."""
    connections = Connections(LIMITS)
    fill(connections, 2)
    assert connections.find_room(0) is Room.SERVE
    assert connections.find_room(1) is Room.NONE


async def test_places_to_linger_are_given_back() -> None:
    """A connection that is gone leaves its place to another."""
    connections = Connections(LIMITS)
    first, second = fill(connections, 2)
    assert connections.may_linger(first)
    assert not connections.may_linger(second)
    connections.remove(first)
    assert connections.may_linger(second)


async def test_an_address_may_have_a_part_of_them() -> None:
    """An address is crowded once it has its maximum, and no more after one of its connections is gone."""
    connections = Connections(ConnectionsLimits(by_address_max=2))
    first, second = Stub(), Stub()
    connections.add(first)
    assert not connections.is_crowded(first.peer)
    connections.add(second)
    assert connections.is_crowded(first.peer)
    assert not connections.is_crowded("192.0.2.2")
    connections.remove(first)
    assert not connections.is_crowded(first.peer)


async def test_an_owner_may_have_a_part_of_them() -> None:
    """A connection belongs to its last owner; one that would be too many is told so."""
    connections = Connections(ConnectionsLimits(by_owner_max=2))
    stubs = [Stub() for _ in range(3)]
    for stub in stubs:
        connections.add(stub)
    assert [connections.claim(stub, "key_a") for stub in stubs] == [True, True, False]
    assert connections.claim(stubs[0], "key_b")
    assert connections.claim(stubs[2], "key_a")
    connections.remove(stubs[1])
    assert connections.claim(stubs[0], "key_a")
