"""Any OpenAI-compatible endpoint, over pyreqwest: one pool per provider, TLS verified, proxies from the environment.

A reply is read as it comes and never ahead of the client (buffer limit 0), so back-pressure reaches the upstream;
leaving the `async with` closes the connection at once, which is what stops the upstream from generating.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import ConnectError, PyreqwestError
from pyreqwest.request import StreamRequest
from pyreqwest.response import Response, ResponseBodyReader

from cadenza.core.records import Route
from cadenza.core.sse import EventReader, EventTooLarge
from cadenza.upstreams.base import Ask, Fault, FaultKind, Piece, Probe, classify_status
from cadenza.upstreams.dialect import read_chunk, read_whole

WHOLE_BYTES_MAX = 64 * 1024 * 1024
AFTER_FINISH_S = 5.0  # a finished reply need not wait longer for a count that may never come
TOKENS_PER_IDLE = 1024  # a non-streaming reply is silent while it is made: one idle time more per so many tokens
PROBE_S = 10.0

# The switch for zero retention, where a provider's API has one.
RETENTION_FIELDS: dict[str, dict[str, Any]] = {
    "openai": {"store": False},
    "openrouter": {"provider": {"zdr": True, "data_collection": "deny"}},
    "plain": {},
}


class OpenAIUpstream:
    """An endpoint that speaks the OpenAI chat-completions format."""

    def __init__(
        self, base_url: str, api_key: str | None = None, dialect: str = "plain", *, use_proxies: bool = True
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._dialect = dialect
        self._use_proxies = use_proxies
        self._pools: dict[float, Client] = {}  # one, unless routes differ in connect_s

    async def start(self) -> None:
        """Nothing to start: connections are made when they are needed."""

    async def stop(self) -> None:
        for pool in self._pools.values():
            await pool.close()

    @asynccontextmanager
    async def open(self, route: Route, ask: Ask) -> AsyncIterator["HttpReply"]:
        first_s = route.timeouts.first_token_s + (0 if ask.stream else _making_s(route, ask))
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(first_s):
                    response = await stack.enter_async_context(self._request(route, ask))
                    reply = HttpReply(response, route.timeouts.idle_s)
                    await reply.begin()
            except TimeoutError as error:
                raise Fault(FaultKind.UNREACHABLE if isinstance(error, PyreqwestError) else FaultKind.SILENT) from None
            except PyreqwestError as error:
                raise Fault(FaultKind.UNREACHABLE if isinstance(error, ConnectError) else FaultKind.CUT) from None
            yield reply

    async def probe(self) -> Probe:
        request = self._pool(PROBE_S).get(f"{self._base_url}/models").headers(self._headers).build()
        try:
            async with asyncio.timeout(PROBE_S):
                response = await request.send()
                body = bytes(await response.bytes())
        except (TimeoutError, PyreqwestError):
            return Probe(reachable=False, detail="no answer")
        if response.status != 200:
            return Probe(reachable=False, detail=f"answers {response.status} to GET /models")
        try:
            named = msgspec.json.decode(body, type=_ModelNames).data
        except msgspec.MsgspecError:
            return Probe(reachable=True, detail="answers, but names no models")
        return Probe(reachable=True, detail="answers", models=tuple(model.id for model in named))

    def _request(self, route: Route, ask: Ask) -> StreamRequest:
        return (
            self._pool(route.timeouts.connect_s)
            .post(f"{self._base_url}/chat/completions")
            .headers({"content-type": "application/json", **self._headers})
            .body_bytes(self._body(route, ask))
            .streamed_read_buffer_limit(0)
            .build_streamed()
        )

    def _body(self, route: Route, ask: Ask) -> bytes:
        body: dict[str, Any] = {"model": route.model, "messages": ask.messages, **ask.sampling}
        if ask.max_tokens is not None:
            field = "max_completion_tokens" if self._dialect == "openai" else "max_tokens"
            body[field] = min(ask.max_tokens, route.max_output_tokens)
        if ask.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode(body | RETENTION_FIELDS[self._dialect])

    def _pool(self, connect_s: float) -> Client:
        if connect_s not in self._pools:
            builder = ClientBuilder().user_agent("cadenza").connect_timeout(timedelta(seconds=connect_s))
            builder = builder.follow_redirects(False)  # a redirect would carry content to who knows where
            builder = builder.gzip(False).brotli(False).zstd(False).deflate(False)  # compression holds a stream back
            self._pools[connect_s] = (builder if self._use_proxies else builder.no_proxy()).build()
        return self._pools[connect_s]


class HttpReply:
    """A reply on the wire: a stream of events, or one JSON body, whichever the upstream chose to send."""

    def __init__(self, response: Response, idle_s: float) -> None:
        self._response = response
        self._body: ResponseBodyReader = response.body_reader
        self._events = EventReader()
        self._waiting: list[Piece] = []  # read, but not handed out yet
        self._wait_s = idle_s
        self._is_finished = False  # a finish reason was seen
        self._is_ended = False  # nothing more will be read
        self._fault: Fault | None = None  # handed out after the pieces that came before it

    async def begin(self) -> None:
        """Read up to the first sign of an answer. The caller keeps the time."""
        if self._response.status != 200:
            raise classify_status(self._response.status, self._response.get_header("retry-after"))
        if "event-stream" not in (self._response.get_header("content-type") or ""):
            self._waiting, self._is_ended = [read_whole(await self._whole())], True
        while not self._is_ended and not any(piece.has_begun for piece in self._waiting):
            await self._take()
        if self._fault and not any(piece.has_begun for piece in self._waiting):
            raise self._fault

    async def read(self) -> list[Piece]:
        while not self._waiting and not self._is_ended:
            try:
                async with asyncio.timeout(self._wait_s):
                    await self._take()
            except TimeoutError:
                self._end(Fault(FaultKind.SILENT))
            except PyreqwestError:
                self._end(Fault(FaultKind.CUT))
        pieces, self._waiting = self._waiting, []
        if self._fault and not pieces:
            raise self._fault
        return pieces

    async def _take(self) -> None:
        """Take in one read of the wire, whatever it holds."""
        read = await self._body.read_chunk()
        try:
            for event in self._events.end() if read is None else self._events.feed(bytes(read)):
                piece = read_chunk(event)
                if piece is None:
                    self._end(Fault(FaultKind.CUT))
                    return
                self._waiting.append(piece)
                if piece.finish_reason:
                    self._is_finished = True
                    self._wait_s = min(self._wait_s, AFTER_FINISH_S)
        except EventTooLarge:
            self._end(Fault(FaultKind.GARBLED))
        except Fault as fault:
            self._end(fault)
        if read is None and not self._is_ended:
            self._end(Fault(FaultKind.CUT))

    def _end(self, fault: Fault) -> None:
        """The stream is over: fine after a finish reason, whatever followed it; a fault before one."""
        self._is_ended = True
        self._fault = None if self._is_finished else fault

    async def _whole(self) -> bytes:
        parts, size = [], 0
        while (read := await self._body.read_chunk()) is not None:
            parts.append(bytes(read))
            size += len(read)
            if size > WHOLE_BYTES_MAX:
                raise Fault(FaultKind.GARBLED)
        return b"".join(parts)


class _ModelName(msgspec.Struct):
    id: str


class _ModelNames(msgspec.Struct):
    data: list[_ModelName]


def _making_s(route: Route, ask: Ask) -> float:
    return route.timeouts.idle_s * math.ceil((ask.max_tokens or TOKENS_PER_IDLE) / TOKENS_PER_IDLE)
