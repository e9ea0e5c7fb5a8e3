"""An exchange: the table of its reply's states, the bytes of replies, and what an interruption does."""

import asyncio
from collections.abc import Callable

import pytest

from cadenza.http.body import BodyLimits, BodyMemory, BodyTimeout
from cadenza.http.exchange import CONTINUE, Exchange, Interruption, ReplyState, Request
from tests.unit.http.memory_transport import MemoryTransport

Method = Callable[[Exchange], object]
HEADERS = b"content-type: text/plain\r\n"


def respond(exchange: Exchange) -> None:
    exchange.respond(200, HEADERS, b"hi")


def start(exchange: Exchange) -> None:
    exchange.start_stream(HEADERS)


def write(exchange: Exchange) -> bool:
    return exchange.write(b"part")


def finish(exchange: Exchange) -> None:
    exchange.finish_stream(b"end")


def abort(exchange: Exchange) -> None:
    exchange.abort_stream(b"end")


def disconnect(exchange: Exchange) -> None:
    exchange.interrupt(Interruption.DISCONNECT)


def shut_down(exchange: Exchange) -> None:
    exchange.interrupt(Interruption.SHUTDOWN)


PENDING, STREAMING, COMPLETE, ABANDONED = ReplyState
PATHS: dict[ReplyState, list[list[Method]]] = {
    PENDING: [[]],
    STREAMING: [[start], [start, write]],
    COMPLETE: [[respond], [start, finish], [start, abort]],
    ABANDONED: [[disconnect], [start, disconnect]],
}
TABLE: dict[ReplyState, dict[Method, ReplyState | None]] = {
    PENDING: {respond: COMPLETE, start: STREAMING, write: None, finish: None, abort: None, disconnect: ABANDONED},
    STREAMING: {
        respond: None,
        start: None,
        write: STREAMING,
        finish: COMPLETE,
        abort: COMPLETE,
        disconnect: ABANDONED,
    },
    COMPLETE: {respond: None, start: None, write: None, finish: None, abort: None, disconnect: COMPLETE},
    ABANDONED: dict.fromkeys([respond, start, write, finish, abort, disconnect], ABANDONED),
}
CASES = [
    (path, act, state, after) for state, row in TABLE.items() for act, after in row.items() for path in PATHS[state]
]


@pytest.mark.parametrize(
    ("path", "act", "state", "after"),
    CASES,
    ids=[f"{state.name} by {len(path)}, {act.__name__}" for path, act, state, _ in CASES],
)
def test_the_table_of_states(path: list[Method], act: Method, state: ReplyState, after: ReplyState | None) -> None:
    """Every transition leads to the state of the table, and every dash in it is found by an assertion."""
    transport = MemoryTransport()
    exchange = transport.exchange
    for step in path:
        step(exchange)
    assert exchange.state is state
    written, completed = list(transport.written), list(transport.completed)
    if after is None:
        with pytest.raises(KeyError):
            act(exchange)
        after = state
    else:
        act(exchange)
    assert exchange.state is after
    if state in (COMPLETE, ABANDONED) or (after is state and act is not write):
        assert (transport.written, transport.completed) == (written, completed)
    assert len(transport.completed) == (after is COMPLETE)


@pytest.mark.parametrize("path", [[], [start]], ids=["pending", "streaming"])
def test_an_abandoned_reply_has_no_effect(path: list[Method]) -> None:
    """After a disconnect nothing is written, write says so, and the status stays what the client may have seen."""
    transport = MemoryTransport()
    exchange = transport.exchange
    for act in [*path, disconnect]:
        act(exchange)
    status, written = exchange.status, list(transport.written)
    assert exchange.write(b"lost") is False
    respond(exchange)
    finish(exchange)
    assert (exchange.status, transport.written) == (status, written)


def test_a_whole_reply_is_one_write() -> None:
    """The status, the headers, the length and the body go to the transport together."""
    transport = MemoryTransport()
    respond(transport.exchange)
    assert len(transport.written) == 1
    assert transport.head[0] == b"HTTP/1.1 200 OK"
    assert transport.head[2:] == [b"content-type: text/plain", b"content-length: 2"]
    assert transport.sent_body == b"hi"
    assert transport.completed == [True]
    assert transport.exchange.status == 200
    assert transport.exchange.first_byte_s is not None


def test_a_stream_has_one_last_chunk() -> None:
    """A write without bytes is no chunk, and a stream that ends without further bytes has one end."""
    transport = MemoryTransport()
    start(transport.exchange)
    transport.exchange.write(b"one")
    transport.exchange.write(b"")
    transport.exchange.finish_stream(b"")
    assert transport.sent_body == b"3\r\none\r\n0\r\n\r\n"


async def test_100_continue_is_not_sent_within_a_reply() -> None:
    """An application that reads the body after it began to reply gets it without an interim reply."""
    transport = MemoryTransport(fields=[(b"expect", b"100-continue")])
    transport.parts.extend([b"body", b""])
    start(transport.exchange)
    assert await transport.exchange.read_body(BodyMemory()) == b"body"
    assert CONTINUE not in transport.written


@pytest.mark.parametrize(("value", "is_http_1_0"), [(b"nothing", False), (b"", False), (b"100-continue", True)])
def test_no_100_continue_is_expected(value: bytes, is_http_1_0: bool) -> None:
    """Other values of Expect do not count, and HTTP/1.0 has no interim replies."""
    assert not Request("POST", "/", b"", [(b"expect", value)], is_http_1_0=is_http_1_0).expects_continue


async def test_a_body_that_is_late_closes_the_connection() -> None:
    """After a body that did not arrive in time no other request can follow."""
    transport = MemoryTransport(limits=BodyLimits(time_s=0.01))
    with pytest.raises(BodyTimeout):
        await transport.exchange.read_body(BodyMemory())
    assert not transport.exchange.keep_alive


@pytest.mark.parametrize("first", [disconnect, shut_down])
@pytest.mark.parametrize("second", [disconnect, shut_down])
def test_an_exchange_is_interrupted_once(first: Method, second: Method) -> None:
    """The task is cancelled once, for the first reason; a disconnect abandons the reply even if it comes second."""
    transport = MemoryTransport()
    first(transport.exchange)
    second(transport.exchange)
    assert transport.cancelled == 1
    reason = Interruption.DISCONNECT if first is disconnect else Interruption.SHUTDOWN
    assert transport.exchange.interruption is reason
    assert (transport.exchange.state is ABANDONED) == (disconnect in (first, second))


@pytest.mark.parametrize("interrupt", [disconnect, shut_down])
def test_a_complete_reply_is_not_interrupted(interrupt: Method) -> None:
    """What an application does after its reply goes on."""
    transport = MemoryTransport()
    respond(transport.exchange)
    interrupt(transport.exchange)
    assert (transport.cancelled, transport.exchange.interruption) == (0, None)


class Work:
    """Waits in a task of its own until it is cancelled, and goes on if it may."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.absorbed: list[Interruption | None] = []
        self.has_begun = asyncio.Event()
        self.task = transport.task = asyncio.create_task(self._run(transport.exchange))

    async def _run(self, exchange: Exchange) -> None:
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.absorbed.append(exchange.absorb_cancellation())
            if self.absorbed == [None]:
                raise
            await asyncio.sleep(0)


@pytest.mark.parametrize("reason", Interruption)
async def test_an_interruption_is_absorbed(reason: Interruption) -> None:
    """The interrupted task learns the reason, goes on, and has no cancellation left behind."""
    transport = MemoryTransport()
    work = Work(transport)
    await work.has_begun.wait()
    transport.exchange.interrupt(reason)
    await work.task
    assert work.absorbed == [reason]
    assert work.task.cancelling() == 0


@pytest.mark.parametrize("is_disconnected", [False, True])
async def test_another_cancellation_is_not_absorbed(is_disconnected: bool) -> None:
    """A cancellation by anyone else stays one, even if the client disconnects at the same time."""
    transport = MemoryTransport()
    work = Work(transport)
    await work.has_begun.wait()
    if is_disconnected:
        disconnect(transport.exchange)
    work.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work.task
    assert work.absorbed == [None]
