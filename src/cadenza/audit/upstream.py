"""The other end of everything that an audited service asks: models, a search engine, web pages, and a trace collector.

It listens on loopback in the process of the audit. `play` chooses what the next requests are answered with. A reply
whose function returns before it is complete is broken off: the connection is aborted.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from cadenza.http.body import BodyMemory
from cadenza.http.connection import ConnectionSettings
from cadenza.http.connections import Connections
from cadenza.http.events import write_event
from cadenza.http.exchange import Exchange
from cadenza.server.acceptor import Acceptor
from cadenza.server.server import bind

JSON = b"content-type: application/json\r\n"
EVENTS = b"content-type: text/event-stream\r\n"
HTML = b"content-type: text/html; charset=utf-8\r\n"
PROTOBUF = b"content-type: application/x-protobuf\r\n"
BODY_BYTES_MAX = 64 * 1024 * 1024
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
READ_S = 0.01  # for the service to read the last bytes before the connection is aborted
SILENCE_S = 120.0  # longer than the audit waits for anything


class ModelAsk(NamedTuple):
    """A request to a model, the needle that its reply must have, and whether it asks for a stream."""

    exchange: Exchange
    needle: str
    is_stream: bool


PlayReply = Callable[[ModelAsk], Awaitable[None]]


def _chunk(needle: str, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return write_event(_encode({**_names(needle), "object": "chat.completion.chunk", "choices": [choice]}))


def _names(needle: str) -> dict[str, Any]:
    """The upstream's own id of a reply and name of its model, which must not be stored either."""
    return {"id": needle, "model": needle, "system_fingerprint": needle, "created": 1, "usage": USAGE}


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _send(ask: ModelAsk, message: Mapping[str, Any], finish: str) -> None:
    exchange, needle, is_stream = ask
    if is_stream:
        exchange.start_stream(EVENTS, first=_chunk(needle, {"role": "assistant"}))
        exchange.write(_chunk(needle, _as_delta(message)))
        exchange.finish_stream(_chunk(needle, {}, finish) + b"data: [DONE]\n\n")
    else:
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
        exchange.respond(200, JSON, _encode({**_names(needle), "object": "chat.completion", "choices": [choice]}))


def _as_delta(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls", ()))]
    return {**message, "tool_calls": calls} if calls else dict(message)


def _message(make: Callable[[str], Mapping[str, Any]], finish: str = "stop") -> PlayReply:
    async def play(ask: ModelAsk) -> None:
        _send(ask, make(ask.needle), finish)

    return play


def _status(status: int, make: Callable[[str], bytes], headers: Callable[[str], bytes] = lambda _: JSON) -> PlayReply:
    async def play(ask: ModelAsk) -> None:
        ask.exchange.respond(status, headers(ask.needle), make(ask.needle))

    return play


def _begun(make_rest: Callable[[str], bytes]) -> PlayReply:
    """A stream that begins with the needle, goes on with other bytes, and breaks off."""

    async def play(ask: ModelAsk) -> None:
        ask.exchange.start_stream(EVENTS, first=_chunk(ask.needle, {"role": "assistant", "content": ask.needle}))
        ask.exchange.write(make_rest(ask.needle))
        await asyncio.sleep(READ_S)

    return play


async def _stay_silent(_ask: ModelAsk) -> None:
    await asyncio.sleep(SILENCE_S)


async def _begin_and_stay(ask: ModelAsk) -> None:
    """A stream that begins and then says nothing."""
    ask.exchange.start_stream(EVENTS, first=_chunk(ask.needle, {"role": "assistant", "content": f"{ask.needle} "}))
    await asyncio.sleep(SILENCE_S)


async def _break_off(_ask: ModelAsk) -> None:
    """No reply at all."""


def _error(needle: str) -> bytes:
    return _encode({"error": {"message": needle, "type": needle, "code": needle, "param": needle}})


def _call(needle: str) -> Mapping[str, Any]:
    function = {"name": "look_up", "arguments": json.dumps({"text": needle})}
    return {"content": None, "tool_calls": [{"id": f"call {needle}", "type": "function", "function": function}]}


def _text(needle: str) -> bytes:
    return needle.encode()


GOOD = _message(lambda needle: {"content": f"An answer: {needle}."})
TOOL_CALL = _message(_call, "tool_calls")
SILENT = _stay_silent
HALF = _begin_and_stay
# What an upstream may answer, by its name in the report. The first ones are answers, the others are faults.
ANSWERS: Mapping[str, PlayReply] = MappingProxyType(
    {
        "text, and the upstream's own names": GOOD,
        "a tool call": TOOL_CALL,
        "reasoning": _message(lambda needle: {"content": "Yes.", "reasoning_content": needle}),
        "a refusal": _message(lambda needle: {"content": None, "refusal": needle}),
        "an unknown finish reason": _status(
            200,
            lambda needle: _encode(
                {"choices": [{"index": 0, "message": {"content": "Yes."}, "finish_reason": needle}], "usage": needle}
            ),
        ),
    }
)
FAULTS: Mapping[str, PlayReply] = MappingProxyType(
    {
        "400": _status(400, _error),
        "401": _status(401, _error),
        "404": _status(404, _error),
        "429, with a header": _status(
            429, _text, lambda needle: b"retry-after: %b\r\n" % needle.encode("ascii", "ignore")
        ),
        "500": _status(500, _text),
        "200 with an error": _status(200, _error),
        "200 that is not JSON": _status(200, _text),
        "200 with JSON of another form": _status(200, lambda needle: _encode({needle: [needle]})),
        "no reply": _break_off,
        "a stream that breaks off": _begun(lambda _: b""),
        "a stream with an error": _begun(lambda needle: b"data: " + _error(needle) + b"\n\n"),
        "a stream with malformed events": _begun(lambda needle: b"data: {" + needle.encode() + b"\n\n"),
    }
)


class AuditUpstream:
    """What is answered, and what was asked."""

    def __init__(self) -> None:
        self.port = 0
        self.counts = {"model": 0, "search engine": 0, "web page": 0, "trace collector": 0}  # of requests
        self.spans: list[bytes] = []  # what its trace collector got
        self._play: PlayReply = GOOD
        self._needle = "nothing in particular"
        self._reached = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def play(self, reply: PlayReply, needle: str) -> None:
        """Answer like this from now on."""
        self._play, self._needle = reply, needle
        self._reached.clear()

    async def until_asked(self, within_s: float) -> None:
        """Return once a model was asked since `play`; TimeoutError if none is."""
        async with asyncio.timeout(within_s):
            await self._reached.wait()

    async def serve(self, exchange: Exchange) -> None:
        body = bytes(await exchange.read_body(BodyMemory(BODY_BYTES_MAX)))
        path = exchange.request.path
        if path.endswith("/chat/completions"):
            self.counts["model"] += 1
            self._reached.set()
            await self._play(ModelAsk(exchange, self._needle, b'"stream":true' in body))
        elif path.startswith("/page"):
            self.counts["web page"] += 1
            exchange.respond(200, HTML, f"<html><body><p>{self._needle} {self._needle}.</p></body></html>".encode())
        elif "search" in path:
            self.counts["search engine"] += 1
            exchange.respond(200, JSON, _encode(self._found()))
        elif path in {"/v1/traces", "/v1/metrics"}:
            self.counts["trace collector"] += 1
            self.spans.append(body)
            exchange.respond(200, PROTOBUF, b"")
        else:
            exchange.respond(404, JSON, b"{}")

    def _found(self) -> dict[str, Any]:
        """One result, in the forms of all engines."""
        text = {"content": self._needle, "description": self._needle}
        hits = [{"url": f"{self.url}/page/1", "title": self._needle, **text}]
        return {"type": "search", "results": hits, "web": {"results": hits}}


@asynccontextmanager
async def audit_upstream() -> AsyncIterator[AuditUpstream]:
    """Listen on a port of loopback until the block ends."""
    upstream, listener, connections = AuditUpstream(), bind("127.0.0.1", 0), Connections()
    upstream.port = listener.getsockname()[1]
    acceptor = Acceptor(listener, upstream.serve, upstream.serve, ConnectionSettings(), connections)
    try:
        yield upstream
    finally:
        acceptor.close()
        for connection in connections:
            connection.abort()
