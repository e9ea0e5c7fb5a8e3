"""The body of a request: its parts in order, and its limits of size, time and memory."""

import asyncio

import pytest

from cadenza.http.body import (
    MIB,
    BodyLimits,
    BodyMemory,
    BodyMemoryFull,
    BodyState,
    BodyTimeout,
    BodyTooLarge,
    MinimumRate,
    RequestBody,
)
from tests.unit.http.memory_transport import MemoryTransport
from tests.unit.http.raw_client import WAIT_S
from tests.unit.upstreams.clock import Clock

SHORT = BodyLimits(time_s=5.0)
SMALL = BodyLimits(bytes_max=1000)


def new_body(*parts: bytes, limits: BodyLimits | None = None, is_complete: bool = False) -> RequestBody:
    body = RequestBody(limits or BodyLimits())
    for part in parts:
        body.feed(part)
    if is_complete:
        body.end()
    return body


async def read(transport: MemoryTransport) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return bytes(await transport.exchange.read_body(BodyMemory()))


def do_not_ask() -> None:
    raise AssertionError("the body was asked for")


async def test_the_parts_are_joined_in_order() -> None:
    """A body that arrives while it is read is put together as it was sent."""
    transport = MemoryTransport()
    transport.parts.extend([b"one ", b"two", b""])
    assert await read(transport) == b"one two"


@pytest.mark.parametrize("parts", [[], [b"one ", b"two"]])
async def test_a_complete_body_is_not_asked_for(parts: list[bytes]) -> None:
    """A body that is already there, empty or not, is returned at once, and counted."""
    transport = MemoryTransport(fields=[(b"content-length", b"7")])
    body = transport.exchange.body
    for part in parts:
        body.feed(part)
    body.end()
    assert await read(transport) == b"".join(parts)
    assert transport.asked_for_more == 0
    assert body.size_bytes == len(b"".join(parts))


@pytest.mark.parametrize("expects_continue", [True, False])
@pytest.mark.parametrize("parts", [[], [b"one"], [b"one", b"two"]])
def test_the_table_of_states(expects_continue: bool, parts: list[bytes]) -> None:
    """Bytes and the end lead to the states of the table, and nothing may follow the end."""
    first = BodyState.AWAITING_CONTINUE if expects_continue else BodyState.RECEIVING
    body = RequestBody(BodyLimits(), first)
    states = [body.state]
    for part in parts:
        body.feed(part)
        states.append(body.state)
    body.end()
    assert [*states, body.state] == [first, *[BodyState.RECEIVING for _ in parts], BodyState.COMPLETE]
    with pytest.raises(KeyError):
        body.feed(b"more")
    with pytest.raises(KeyError):
        body.end()


def test_an_unread_body_asks_the_connection_to_stop() -> None:
    """Past 64 KiB that the application has not read, the connection should stop reading."""
    body = new_body()
    is_full = list[bool]()
    for _ in range(3):
        body.feed(bytes(32 * 1024))
        is_full.append(body.is_full)
    assert is_full == [False, False, True]
    body.end()
    assert not body.is_full


async def test_reading_makes_room() -> None:
    """Once the application has read what was there, the next part is welcome."""
    unread_bytes_max = BodyLimits().unread_bytes_max
    body = new_body(bytes(unread_bytes_max + 1))
    asked = asyncio.Event()
    reading = asyncio.create_task(body.read(BodyMemory(), b"", asked.set))
    await asyncio.wait_for(asked.wait(), WAIT_S)
    body.feed(bytes(unread_bytes_max))
    assert not body.is_full
    body.end()
    assert len(await reading) == 2 * unread_bytes_max + 1


@pytest.mark.parametrize("length", [b"33554433", b"999999999999999999999999", b"9" * 5000])
async def test_an_announced_length_past_the_limit(length: bytes) -> None:
    """A body that is announced as too large is refused before a byte of it is read."""
    with pytest.raises(BodyTooLarge):
        await new_body().read(BodyMemory(), length, do_not_ask)


@pytest.mark.parametrize("length", [None, b"2", b"-1", b"many", b""])
async def test_an_unannounced_length_past_the_limit(length: bytes | None) -> None:
    """A body without a length, or with a false one, is refused as soon as it is past the limit."""
    transport = MemoryTransport(fields=[] if length is None else [(b"content-length", length)], limits=SMALL)
    transport.parts.extend([b"x" * 100] * 20)
    with pytest.raises(BodyTooLarge):
        await read(transport)
    assert transport.asked_for_more == 11


def test_a_complete_body_past_the_limit() -> None:
    """A body that is there already is refused too if it is too large."""
    with pytest.raises(BodyTooLarge):
        new_body(b"x" * 1001, limits=SMALL, is_complete=True).take(BodyMemory())


async def test_a_body_of_exactly_the_limit() -> None:
    """The limit itself is accepted: 32 MiB unless told otherwise."""
    assert BodyLimits().bytes_max == 32 * MIB
    transport = MemoryTransport(fields=[(b"content-length", b"1000")], limits=SMALL)
    transport.parts.extend([b"x" * 100] * 10 + [b""])
    assert len(await read(transport)) == 1000


async def begin_to_read(transport: MemoryTransport, clock: Clock) -> "asyncio.Task[bytes]":
    reading = asyncio.create_task(read(transport))
    await clock.leap(0)
    return reading


async def test_a_body_that_stops_arriving(clock: Clock) -> None:
    """A client that sends a part and then nothing is refused after the time limit; what it sent is counted."""
    transport = MemoryTransport(limits=SHORT)
    transport.parts.append(b"x" * 1500)
    reading = await begin_to_read(transport, clock)
    await clock.leap(SHORT.time_s - 1)
    assert not reading.done()
    await clock.leap(2)
    with pytest.raises(BodyTimeout):
        await reading
    assert transport.exchange.body.size_bytes == 1500


async def test_a_body_that_trickles(clock: Clock) -> None:
    """A byte now and then does not extend the time limit."""
    transport = MemoryTransport(limits=SHORT)
    transport.parts.extend([b"x"] * 10_000)
    transport.pause_s = SHORT.time_s / 10
    reading = await begin_to_read(transport, clock)
    for _ in range(9):
        await clock.leap(transport.pause_s)
    assert (transport.asked_for_more, reading.done()) == (10, False)
    await clock.leap(2 * transport.pause_s)
    with pytest.raises(BodyTimeout):
        await reading


async def test_a_slow_but_steady_body(clock: Clock) -> None:
    """A large body may take longer than a small one, as long as it keeps the minimum rate."""
    transport = MemoryTransport(limits=BodyLimits(time_s=5.0, bytes_per_s_min=1024))
    transport.parts.extend([bytes(64 * 1024)] * 4 + [b""])
    transport.pause_s = 4.0
    reading = await begin_to_read(transport, clock)
    for _ in range(5):
        assert not reading.done()
        await clock.leap(transport.pause_s)
    assert len(await reading) == 256 * 1024


def test_fast_bytes_earn_no_time() -> None:
    """A body that was fast and then trickles has one window from its last fast bytes, not from its size."""
    pace = MinimumRate(BodyLimits(time_s=20.0, bytes_per_s_min=1000), 100.0)
    assert pace.deadline_s(100.0, 0) == 120.0
    assert pace.deadline_s(105.0, 10_000_000) == 125.0
    for second in range(106, 125):
        assert pace.deadline_s(second, 10_000_000 + second) == 125.0


def test_a_body_at_the_minimum_rate_is_always_in_time() -> None:
    """And one that is a little slower misses the window."""

    def is_in_time(bytes_per_s: int) -> bool:
        pace = MinimumRate(BodyLimits(time_s=20.0, bytes_per_s_min=1000), 0.0)
        return all(pace.deadline_s(tenth / 10, tenth * bytes_per_s // 10) > tenth / 10 for tenth in range(10_000))

    assert (is_in_time(1100), is_in_time(900)) == (True, False)


def test_a_pause_shorter_than_the_window_is_made_up_for() -> None:
    """A line that stalls and then recovers is not cut, if the window has enough bytes."""
    pace = MinimumRate(BodyLimits(time_s=20.0, bytes_per_s_min=1000), 0.0)
    assert pace.deadline_s(1.0, 5_000) == 20.0
    assert pace.deadline_s(19.0, 21_000) == 21.0
    assert pace.deadline_s(20.5, 26_000) == 39.0


async def test_a_body_that_would_not_fit_is_refused_before_it_is_read() -> None:
    """The announced length is compared with the memory that is free."""
    with pytest.raises(BodyMemoryFull):
        await new_body().read(BodyMemory(999), b"1000", do_not_ask)


def test_a_body_is_released_once() -> None:
    """The memory of a body is given back with its release, and not again."""
    memory = BodyMemory(10)
    body = new_body(b"abc", is_complete=True)
    body.release()
    body.take(memory)
    assert memory.free_bytes == 7
    body.release()
    body.release()
    assert memory.free_bytes == 10


def test_bodies_share_a_bounded_memory() -> None:
    """Where other bodies fill the memory, one more is refused, and is accepted once there is room."""
    memory = BodyMemory(10)
    memory.take(8)
    body = new_body(b"abc", is_complete=True)
    with pytest.raises(BodyMemoryFull):
        body.take(memory)
    assert body.size_bytes == 0
    memory.release(1)
    assert body.take(memory) == b"abc"
    assert body.size_bytes == 3


async def test_a_body_takes_memory_part_by_part() -> None:
    """A body that fills the memory while it arrives is refused, and has taken what size_bytes says."""
    memory = BodyMemory(250)
    transport = MemoryTransport()
    transport.parts.extend([b"x" * 100] * 5)
    with pytest.raises(BodyMemoryFull):
        await transport.exchange.read_body(memory)
    assert transport.exchange.body.size_bytes == 200
    memory.take(50)
    with pytest.raises(BodyMemoryFull):
        memory.take(1)
    memory.release(250)
    memory.take(250)
