"""Any OpenAI-compatible endpoint, with one pool of connections per provider.

A reply is not read while its sink is congested, so backpressure reaches the upstream. Closing a reply before its end
closes the connection at once, which stops the upstream from generating.
"""

import asyncio
import math
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from urllib.parse import quote

import msgspec

from cadenza.core.content import Content
from cadenza.core.errors import RateLimited
from cadenza.core.faults import KINDS, FaultKind, describe_fault
from cadenza.core.records import Route
from cadenza.http.client import HttpClient, OutOfResources, Unreachable
from cadenza.http.client_connection import Broken, ClientConnection, Unanswered, read_body
from cadenza.http.flow import timeout_at
from cadenza.upstreams.base import Ask, Collector, Fault, Piece, Probe, ReplyBounds, Sink
from cadenza.upstreams.dialects import PLAIN, Dialect
from cadenza.upstreams.errors import ERROR_BYTES_MAX, READ_STATUSES, classify_error
from cadenza.upstreams.reader import EXTRAS, read_models, read_whole
from cadenza.upstreams.stream import BEGINNING, ENDED, FINISHED, ReplyStream
from cadenza.upstreams.writer import RequestWriter

OK = 200
AFTER_FINISH_S = 5.0  # how long a finished reply may take to send its usage, which some upstreams never send
TOKENS_PER_IDLE = 1024  # a non-streaming reply gets the idle timeout once per this many tokens
READ_TO_END_S = 0.1
PROBE_S = 10.0
PROBE_BYTES_MAX = 16 * 1024 * 1024
BUSY_RETRY_S = 1.0
ERROR_BODY_S = 5.0  # how long the body of an error may take


class OpenAIUpstream:
    """An endpoint that speaks the OpenAI chat-completions format."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        dialect: Dialect = PLAIN,
        proxy: str | None = None,
        api_version: str | None = None,
        authorities: str | None = None,
    ) -> None:
        headers = {"content-type": "application/json"}
        if api_key:
            is_bearer = dialect.key_header == "authorization"
            headers[dialect.key_header] = f"Bearer {api_key}" if is_bearer else api_key
        self._http = http = HttpClient(base_url, headers, proxy, authorities=authorities)
        self._writer = RequestWriter(dialect)
        self._has_deployments = dialect.has_deployments and not base_url.endswith("/v1")
        self._query = f"?api-version={quote(api_version)}" if api_version else ""
        self._path = f"/chat/completions{self._query}"
        self._head = http.head("POST", self._path)

    async def start(self) -> None:
        """Nothing to do: connections are opened when they are needed."""

    async def stop(self) -> None:
        await self._http.close()

    def open(self, route: Route, ask: Ask) -> "Coroutine[None, None, WholeReply | StreamedReply]":
        body: bytes | list[bytes | memoryview]
        if ask.is_large:
            body = self._writer.write_large(route, ask)
            ask.check_counted(sum(map(len, body)))
        else:
            body = self._writer.write(route, ask)
            ask.check_counted(len(body))
        head = self._head
        if self._has_deployments or ask.headers:
            path = f"/deployments/{quote(route.model, safe='')}{self._path}" if self._has_deployments else self._path
            head = self._http.head("POST", path, ask.headers() if ask.headers else b"")
        return open_http_reply(self._http, route, ask, head, body)

    async def probe(self) -> Probe:
        try:
            async with (
                timeout_at(asyncio.get_running_loop().time() + PROBE_S),
                self._http.request("GET", f"/models{self._query}", b"", PROBE_S) as response,
            ):
                body = await read_body(response, math.inf, PROBE_BYTES_MAX)
        except (TimeoutError, Unreachable, Broken) as error:
            kind = kind_of(error)
            return Probe(reachable=False, detail=describe_fault(kind.value), advice=kind.advice)
        if len(body) > PROBE_BYTES_MAX:
            return Probe(reachable=False, detail="answers GET /models with too much")
        if response.status != OK:
            advice = classify_error(response.status, None, body).kind.advice
            return Probe(reachable=False, detail=f"answers {response.status} to GET /models", advice=advice)
        return read_models(body)


async def open_http_reply(
    http: HttpClient, route: Route, ask: Ask, head: bytes, body: bytes | list[bytes | memoryview]
) -> "WholeReply | StreamedReply":
    """Send the request and wait for the first piece. The reply has the form that the upstream chose."""
    timeouts, tokens, max_tokens = route.timeouts, route.max_output_tokens, ask.max_tokens
    first_s, total_s = timeouts.first_token_s, timeouts.total_s
    if max_tokens is not None and max_tokens < tokens:
        tokens = max_tokens
    if not ask.stream:  # then all of it comes at once: a token takes its part of the idle timeout
        first_s += timeouts.idle_s * (1 if ask.client_limit is None else -(-tokens // TOKENS_PER_IDLE))
    clock = asyncio.get_running_loop().time
    now_s = clock()
    deadline_s = now_s + (first_s if first_s < total_s else total_s)
    bounds, extras = ReplyBounds.of(tokens), EXTRAS if route.reasoning == "pass" else ("refusal",)

    def note_sent(is_sent: bool) -> None:
        ask.on_asked(route if is_sent else None)

    try:
        response = await http.send(head, body, timeouts.connect_s, deadline_s, note_sent)
        try:
            if response.status != OK:
                raise await read_error(response, min(deadline_s, clock() + ERROR_BODY_S))
            if b"event-stream" in response.headers.get(b"content-type", b"").lower():
                response.forget_headers()
                early = Collector()
                stream = ReplyStream(bounds, early, extras)
                await read_beginning(response, stream, early, deadline_s)
                return StreamedReply(http, response, stream, early.pieces, timeouts.idle_s, now_s + total_s)
            whole = response.take_whole()
            if whole is None:
                whole = await read_body(response, deadline_s, bounds.size_bytes)
        except BaseException:
            http.release(response)
            raise
        http.release(response)
    except OutOfResources:
        message = "The service has no file left for a connection. Retry shortly."
        raise RateLimited(message, BUSY_RETRY_S, "open_files") from None
    except (TimeoutError, Unreachable, Broken) as error:
        raise Fault(kind_of(error)) from None
    return WholeReply(read_within(bounds, whole, extras))


def kind_of(error: TimeoutError | Unreachable | Broken) -> FaultKind:
    """The kind of an error of the connection."""
    if isinstance(error, Unreachable):
        return KINDS[error.reason]
    if isinstance(error, TimeoutError):
        return FaultKind.TIMED_OUT
    return FaultKind.RESET if isinstance(error, Unanswered) else FaultKind.TRUNCATED


def read_within(bounds: ReplyBounds, body: bytes, extras: Sequence[str]) -> Piece:
    if len(body) > bounds.size_bytes:
        raise Fault(FaultKind.OVERLONG)
    piece = read_whole(body, extras)
    if len(piece.calls) > bounds.events:
        raise Fault(FaultKind.OVERLONG)
    return piece


async def read_error(response: ClientConnection, deadline_s: float) -> Fault:
    """The fault for a status other than 200. The body may say more than the status."""
    body = b""
    if response.status in READ_STATUSES:
        with suppress(TimeoutError, Broken):
            body = await read_body(response, deadline_s, ERROR_BYTES_MAX)
    return classify_error(response.status, response.headers.get(b"retry-after"), body)


async def read_beginning(response: ClientConnection, stream: ReplyStream, early: Collector, deadline_s: float) -> None:
    """Read until the model has begun to answer, into `early`; TimeoutError at the deadline."""

    def keep(data: bytes) -> bool:
        is_beginning = stream.feed(data)
        if is_beginning:
            early.pieces = [piece for piece in early.pieces if piece.usage or piece.has_bad_usage][-1:]
        return is_beginning

    while stream.phase is BEGINNING:
        if not await response.receive(keep, deadline_s):
            stream.end_of_body()
    if stream.fault and not any(piece.has_begun for piece in early.pieces):
        raise stream.fault


class WholeReply(Content, msgspec.Struct, frozen=True):
    """A reply that came as one body. Its connection is free already."""

    piece: Piece

    async def deliver(self, sink: Sink) -> None:
        sink.take(self.piece)
        if not sink.flush():
            await sink.drain()

    async def close(self) -> None:
        """Nothing is open."""


class StreamedReply(Content, msgspec.Struct, eq=False):
    """A reply that comes as an event stream."""

    http: HttpClient
    response: ClientConnection
    stream: ReplyStream
    early: list[Piece]  # those that arrived before there was a sink
    idle_s: float
    deadline_s: float  # of the whole reply

    async def close(self) -> None:
        try:
            stream = self.stream
            if stream.has_terminator and stream.is_whole and self.response.take_whole() is None:
                # Read the few bytes after [DONE], so that the connection can be reused. No client waits for this.
                deadline_s = asyncio.get_running_loop().time() + READ_TO_END_S
                with suppress(TimeoutError, Broken):
                    await self.response.receive(lambda _: True, deadline_s)
        finally:
            self.http.release(self.response)

    async def deliver(self, sink: Sink) -> None:
        """Feed the stream; wait while its sink is congested. After the finish reason it is not fed for long."""
        stream, early, loop = self.stream, self.early, asyncio.get_running_loop()
        while early:
            sink.take(early.pop(0))
        stream.sink = sink
        try:
            while True:
                if not sink.flush():
                    await sink.drain()
                if stream.phase is ENDED:
                    break
                if stream.phase is FINISHED:
                    self.deadline_s = min(self.deadline_s, loop.time() + min(self.idle_s, AFTER_FINISH_S))
                try:
                    if not await self.response.receive(stream.feed, self.deadline_s, self.idle_s):
                        stream.end_of_body()
                except TimeoutError:
                    stream.end(FaultKind.OVERLONG if loop.time() >= self.deadline_s else FaultKind.TIMED_OUT)
                except Broken:
                    stream.end(FaultKind.TRUNCATED)
        finally:
            del stream.sink  # it may refer back to this reply, and keep it in a cycle
        if stream.fault:
            raise stream.fault
