"""The client's end of a connection, fed by hand: one read may bring a part of the body and its end."""

import asyncio
from contextlib import nullcontext

import pytest

from cadenza.http.client_connection import HEAD_BYTES_MAX, Broken, ClientConnection
from cadenza.http.flow import READING_TURNS
from tests.unit.upstreams.clock import Clock

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
PART = b"2\r\nhi\r\n"


class RecordingTransport(asyncio.Transport):
    """Takes everything, and knows whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Nothing is sent."""

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def get_write_buffer_size(self) -> int:
        return 0


async def open_response() -> tuple[ClientConnection, RecordingTransport]:
    """A response whose head has arrived."""
    connection, transport = ClientConnection(), RecordingTransport()
    connection.connection_made(transport)
    sending = asyncio.ensure_future(connection.send(b"GET / HTTP/1.1\r\n\r\n"))
    await asyncio.sleep(0)
    connection.data_received(HEAD)
    await sending
    return connection, transport


class Parts(list[bytes]):
    """A receiver that keeps every part."""

    def keep(self, data: bytes) -> bool:
        self.append(data)
        return True


async def test_a_part_is_handed_over_before_the_bytes_behind_it_break_the_response() -> None:
    """A part that arrives in one read with malformed bytes reaches the receiver; then the response is broken."""
    connection, transport = await open_response()
    parts = Parts()
    receiving = asyncio.create_task(connection.receive(parts.keep))
    await asyncio.sleep(0)
    connection.data_received(PART + b"zz\r\n")
    with pytest.raises(Broken):
        await receiving
    assert parts == [b"hi"]
    assert transport.is_aborted


async def test_an_exception_of_the_receiver_is_raised_though_the_response_ends_with_that_part() -> None:
    """A receiver that fails at the last part of a body fails its caller, although the body ends in the same read."""
    connection, _ = await open_response()

    def fail(_data: bytes) -> bool:
        raise ZeroDivisionError

    receiving = asyncio.create_task(connection.receive(fail))
    await asyncio.sleep(0)
    connection.data_received(PART + b"0\r\n\r\n")
    with pytest.raises(ZeroDivisionError):
        await receiving


async def test_a_head_above_the_limit_is_refused_though_its_body_came_with_it() -> None:
    """The size of a head is bounded also where head and body arrive in one read."""
    connection = ClientConnection()
    connection.connection_made(RecordingTransport())
    sending = connection.send(b"GET / HTTP/1.1\r\n\r\n")
    fields = b"x-long: %b\r\ncontent-length: 2\r\n" % (b"x" * HEAD_BYTES_MAX)
    connection.data_received(b"HTTP/1.1 200 OK\r\n%b\r\nhi" % fields)
    with pytest.raises(Broken):
        await sending


async def test_bytes_behind_a_complete_response_do_not_spoil_it() -> None:
    """A response with more bytes behind it in the same read is complete, and its connection is closed."""
    connection, transport = await open_response()
    parts = Parts()
    receiving = asyncio.create_task(connection.receive(parts.keep))
    await asyncio.sleep(0)
    connection.data_received(PART + b"0\r\n\r\n" + b"more")
    assert not await receiving
    assert parts == [b"hi"]
    assert transport.is_aborted
    assert not connection.end_exchange()


async def test_a_receiver_that_stops_is_not_given_the_next_part() -> None:
    """Parts that arrive after a stop wait for the next call, and the end of the body after them."""
    connection, _ = await open_response()
    parts = list[bytes]()

    def keep_one(data: bytes) -> bool:
        parts.append(data)
        return False

    receiving = asyncio.create_task(connection.receive(keep_one))
    await asyncio.sleep(0)
    connection.data_received(PART)
    connection.data_received(PART + b"0\r\n\r\n")
    assert await receiving
    assert parts == [b"hi"]
    assert await connection.receive(keep_one)
    assert not await connection.receive(keep_one)
    assert parts == [b"hi", b"hi"]


async def test_each_part_moves_the_deadline_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part gives the next one the whole idle time; if none arrives in it, TimeoutError is raised."""
    clock = Clock(asyncio.get_running_loop(), monkeypatch, is_stopped=True)
    connection, _ = await open_response()
    receiving = asyncio.create_task(connection.receive(Parts().keep, idle_s=10))
    for _ in range(3):
        await clock.leap(9)
        connection.data_received(PART)
    await clock.leap(9)
    assert not receiving.done()
    await clock.leap(1)
    with pytest.raises(TimeoutError):
        await receiving


async def test_no_part_moves_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that keep arriving do not prevent the TimeoutError at the deadline of the whole body."""
    loop = asyncio.get_running_loop()
    clock = Clock(loop, monkeypatch, is_stopped=True)
    connection, _ = await open_response()
    receiving = asyncio.create_task(connection.receive(Parts().keep, loop.time() + 25, 10))
    for _ in range(3):
        await clock.leap(8)
        connection.data_received(PART)
    assert not receiving.done()
    await clock.leap(1)
    with pytest.raises(TimeoutError):
        await receiving


@pytest.mark.parametrize(("turns", "is_read"), [(READING_TURNS - 1, True), (READING_TURNS, False)])
async def test_what_arrived_by_the_deadline_is_read(monkeypatch: pytest.MonkeyPatch, turns: int, is_read: bool) -> None:
    """What is read in the first turns after the deadline is handed over; later parts are left, and it is closed."""
    loop = asyncio.get_running_loop()
    clock = Clock(loop, monkeypatch, is_stopped=True)
    connection, transport = await open_response()
    parts, deadline_s = Parts(), loop.time() + 10
    receiving = asyncio.create_task(connection.receive(parts.keep, deadline_s))
    await asyncio.sleep(0)

    def arrive(turns_left: int) -> None:
        if turns_left:
            loop.call_soon(arrive, turns_left - 1)
        else:
            connection.data_received(PART + b"0\r\n\r\n")

    loop.call_at(deadline_s, arrive, turns)
    await clock.leap(10)
    with nullcontext() if is_read else pytest.raises(TimeoutError):
        await receiving
    assert parts == [b"hi"] * is_read
    assert connection.end_exchange() == is_read
    assert transport.is_aborted != is_read


async def test_a_kept_connection_has_the_deadline_of_its_next_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline that is earlier than what is left of the last exchange raises TimeoutError on time."""
    loop = asyncio.get_running_loop()
    clock = Clock(loop, monkeypatch, is_stopped=True)
    connection, _ = await open_response()
    parts = Parts()
    receiving = asyncio.create_task(connection.receive(parts.keep, loop.time() + 1000, 100))
    await asyncio.sleep(0)
    connection.data_received(PART)
    connection.data_received(b"0\r\n\r\n")
    assert not await receiving
    assert connection.end_exchange()
    for idle_s in (10, 5, 2):
        sending = connection.send(b"GET / HTTP/1.1\r\n\r\n", loop.time() + idle_s)
        connection.data_received(HEAD)
        await sending
        receiving = asyncio.create_task(connection.receive(parts.keep, loop.time() + 1000, idle_s))
        await clock.leap(idle_s - 1)
        connection.data_received(PART)
        await clock.leap(idle_s - 1)
        assert not receiving.done()
        connection.data_received(b"0\r\n\r\n")
        assert not await receiving
        assert connection.end_exchange()
    sending = connection.send(b"GET / HTTP/1.1\r\n\r\n", loop.time() + 1)
    await clock.leap(1)
    with pytest.raises(TimeoutError):
        await sending
