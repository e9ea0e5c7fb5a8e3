"""Any OpenAI-compatible endpoint: one pool of connections per provider.

A reply is read as it comes and hardly ahead of the client, so back-pressure reaches the upstream; leaving the
`async with` closes the connection at once, which is what stops the upstream from generating.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import msgspec

from cadenza.core.records import Route
from cadenza.http.client import Broken, Connection, HttpClient, Unanswered, Unreachable
from cadenza.http.events import EventReader, EventTooLarge
from cadenza.upstreams.base import Ask, Fault, FaultKind, PassOn, Piece, Probe, classify_status
from cadenza.upstreams.dialect import ChunkReader, read_whole

WHOLE_BYTES_MAX = 64 * 1024 * 1024
AFTER_FINISH_S = 5.0  # a finished reply need not wait longer for a count that may never come
TOKENS_PER_IDLE = 1024  # a non-streaming reply is silent while it is made: one idle time more per so many tokens
DRAIN_S = 0.1
EVENTS_PER_TOKEN = 2  # an upstream sends a token or more with an event; one that sends far less does not keep its limit
EVENTS_MORE = 256
PROBE_S = 10.0

# The switch for zero retention, where a provider's API has one.
RETENTION_FIELDS: dict[str, dict[str, Any]] = {
    "openai": {"store": False},
    "openrouter": {"provider": {"zdr": True, "data_collection": "deny"}},
    "plain": {},
}
# What vLLM must be told to go on with a last message of the assistant; llama.cpp does so by itself.
CONTINUE_FIELDS = {"continue_final_message": True, "add_generation_prompt": False}


class OpenAIUpstream:
    """An endpoint that speaks the OpenAI chat-completions format."""

    def __init__(
        self, base_url: str, api_key: str | None = None, dialect: str = "plain", proxy: str | None = None
    ) -> None:
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self._http = HttpClient(base_url, headers, proxy)
        self._dialect = dialect

    async def start(self) -> None:
        """Nothing to start: connections are made when they are needed."""

    async def stop(self) -> None:
        await self._http.close()

    async def retire(self) -> None:
        await self._http.close()  # what is under way ends with its own connection

    def open(self, route: Route, ask: Ask) -> "HttpReply":
        return HttpReply(self._http, route, ask, self._body(route, ask))

    async def probe(self) -> Probe:
        try:
            async with asyncio.timeout(PROBE_S), self._http.request("GET", "/models", b"", PROBE_S) as response:
                body = await _whole(response)
        except (TimeoutError, Unreachable, Broken, Fault):
            return Probe(reachable=False, detail="no answer")
        if response.status != 200:
            return Probe(reachable=False, detail=f"answers {response.status} to GET /models")
        try:
            named = msgspec.json.decode(body, type=_ModelNames).data
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return Probe(reachable=True, detail="answers, but names no models")
        return Probe(reachable=True, detail="answers", models=tuple(model.id for model in named))

    def _body(self, route: Route, ask: Ask) -> bytes:
        body: dict[str, Any] = {"model": route.model, "messages": ask.messages, **ask.sampling, **ask.tools}
        if ask.begun:
            body["messages"] = [*ask.messages, {"role": "assistant", "content": ask.begun}]
            body |= CONTINUE_FIELDS
        if (limit := ask.output_limit(route)) is not None:
            body["max_completion_tokens" if self._dialect == "openai" else "max_tokens"] = limit
        if ask.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode(body | RETENTION_FIELDS[self._dialect])


class HttpReply:
    """A reply on the wire: a stream of events, or one JSON body, whichever the upstream chose to send.

    Entering asks the upstream and waits for its first piece; leaving, in any way, ends the exchange. A class and no
    generator, here and wherever a request is inside: the event loop keeps book of generators (3.5 µs each, where a
    class takes 0.9).
    """

    def __init__(self, http: HttpClient, route: Route, ask: Ask, body: bytes) -> None:
        self._http = http
        self._body = body
        self._timeouts = timeouts = route.timeouts
        self._clock = clock = asyncio.get_running_loop().time
        self._until_s = clock() + timeouts.total_s  # by then it must have ended; sooner once it is finished
        self._first_s = timeouts.first_token_s + (0 if ask.stream else _making_s(route, ask))
        tokens = ask.output_limit(route) or route.max_output_tokens
        self._events_left = tokens * EVENTS_PER_TOKEN + EVENTS_MORE
        self._events = EventReader()
        self._chunks = ChunkReader()
        self._waiting: list[Piece] = []  # read, but not handed out yet
        self._pass_on: PassOn | None = None
        self._is_finished = False  # a finish reason was seen
        self._is_ended = False  # nothing more will be read
        self._is_done = False  # its terminator was seen
        self._fault: Fault | None = None  # handed out after the pieces that came before it

    async def __aenter__(self) -> Self:
        until_s = min(self._until_s, self._clock() + self._first_s)
        try:
            self._response = await self._http.begin(
                "POST", "/chat/completions", self._body, self._timeouts.connect_s, until_s
            )
            try:
                await self._begin(until_s)
            except BaseException:
                self._http.end(self._response)
                raise
        except TimeoutError:
            raise Fault(FaultKind.TIMED_OUT) from None
        except (Unreachable, Unanswered):
            raise Fault(FaultKind.UNREACHABLE) from None
        except Broken:
            raise Fault(FaultKind.TRUNCATED) from None
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        try:
            if exc_type is None and self._is_done and self._is_finished:
                await self._drain()
        finally:
            self._http.end(self._response)

    async def _begin(self, until_s: float) -> None:
        """Read up to the first sign of an answer; TimeoutError after that moment."""
        response = self._response
        if response.status != 200:
            raise classify_status(response.status, response.headers.get(b"retry-after"))
        if b"event-stream" not in response.headers.get(b"content-type", b"").lower():
            self._waiting, self._is_ended = [read_whole(await _whole(response, until_s))], True
            return
        has_begun = False
        while not self._is_ended and not has_begun:
            await self._take(until_s)
            has_begun = any(piece.has_begun for piece in self._waiting)
            if not has_begun:  # of what says nothing only the last counts are of use
                self._waiting = [piece for piece in self._waiting if piece.usage or piece.has_bad_usage][-1:]
                if self._events_left < 0:
                    raise Fault(FaultKind.OVERLONG)
        if self._fault and not has_begun:
            raise self._fault

    async def read(self, pass_on: PassOn | None = None) -> list[Piece]:
        self._pass_on, clock = pass_on, self._clock
        while not self._waiting and not self._is_ended:
            try:
                is_plain = pass_on is not None and self._events.is_between and not self._is_finished
                await self._take(min(self._until_s, clock() + self._timeouts.idle_s), self._sink if is_plain else None)
            except TimeoutError:
                self._end(Fault(FaultKind.OVERLONG if clock() >= self._until_s else FaultKind.TIMED_OUT))
            except Broken:
                self._end(Fault(FaultKind.TRUNCATED))
        if not self._is_ended and (self._events_left < 0 or clock() >= self._until_s):
            self._end(Fault(FaultKind.OVERLONG))
        pieces, self._waiting = self._waiting, []
        if self._fault and not pieces:
            raise self._fault
        return pieces

    def _sink(self, data: bytes) -> float:
        """Pass on what is one ordinary event and nothing else; the end of waiting for the next, or 0 for no."""
        text = self._chunks.text_of(data)
        if text is None or self._events_left < 0 or not self._pass_on or not self._pass_on(text):
            return 0.0
        self._events_left -= 1
        return min(self._until_s, self._clock() + self._timeouts.idle_s)

    async def _take(self, until_s: float, sink: Callable[[bytes], float] | None = None) -> None:
        """Take in one read of the wire, whatever it holds."""
        read = await self._response.read(until_s, sink)
        try:
            for event in self._events.end() if read is None else self._events.feed(read):
                piece = self._chunks.read(event)
                if piece is None:
                    self._is_done = True
                    self._end(Fault(FaultKind.TRUNCATED))
                    return
                self._waiting.append(piece)
                self._events_left -= 1
                if piece.finish_reason:
                    self._is_finished = True
                    more_s = min(self._timeouts.idle_s, AFTER_FINISH_S)
                    self._until_s = min(self._until_s, self._clock() + more_s)
        except EventTooLarge:
            self._end(Fault(FaultKind.MALFORMED))
        except Fault as fault:
            self._end(fault)
        if read is None and not self._is_ended:
            self._end(Fault(FaultKind.TRUNCATED))

    async def _drain(self) -> None:
        """Read the last bytes behind a good end, so that the connection can be used again. The client has its own."""
        until_s = self._clock() + DRAIN_S
        with suppress(TimeoutError, Broken):
            while await self._response.read(until_s) is not None:
                pass

    def _end(self, fault: Fault) -> None:
        """The stream is over: fine after a finish reason, whatever followed it; a fault before one."""
        self._is_ended = True
        self._fault = None if self._is_finished else fault


class _ModelName(msgspec.Struct):
    id: str


class _ModelNames(msgspec.Struct):
    data: list[_ModelName]


def _making_s(route: Route, ask: Ask) -> float:
    tokens = min(ask.max_tokens or TOKENS_PER_IDLE, route.max_output_tokens)
    return route.timeouts.idle_s * math.ceil(tokens / TOKENS_PER_IDLE)


async def _whole(response: Connection, until_s: float = math.inf) -> bytes:
    parts, size = [], 0
    while (read := await response.read(until_s)) is not None:
        parts.append(read)
        size += len(read)
        if size > WHOLE_BYTES_MAX:
            raise Fault(FaultKind.MALFORMED)
    return b"".join(parts)
