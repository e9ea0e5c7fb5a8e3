"""An application with a path for each way to reply, served over real sockets by the server's own connections."""

import asyncio
import json
from typing import Self, cast

from cadenza.http.body import BodyLimits, BodyMemory
from cadenza.http.connection import Connection, ConnectionLimits, ConnectionSettings
from cadenza.http.connections import Connections, ConnectionsLimits
from cadenza.http.exchange import Exchange, Interruption, Request
from cadenza.server.server import bind
from tests.unit.http.raw_client import RawClient, connect_to, request, until

PIECE = b"x" * 65_536
PIECES = 128
WHOLE = b'{"path": 1}'
JSON = b"content-type: application/json\r\n"
MALFORMED_BODY = b'{"error": "malformed"}'


class ObservedConnection(Connection):
    """A connection that counts what it has received, and tells whether it still reads."""

    received_bytes = 0
    heads = 0  # that were parsed
    resumed = 0  # how often the client had read enough to be sent more

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        super().data_received(data)

    def receive_head(self, request: Request, whole: bytes = b"") -> None:
        self.heads += 1
        super().receive_head(request, whole)

    def resume_writing(self) -> None:
        self.resumed += 1
        super().resume_writing()

    @property
    def is_reading(self) -> bool:
        return self.transport.is_reading()


class Site:
    """The application. It records its exchanges, its tasks and the clients that disconnected."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        body_limits: BodyLimits | None = None,
        connections_limits: ConnectionsLimits | None = None,
    ) -> None:
        self.connection_settings = ConnectionSettings(
            limits or ConnectionLimits(),
            body_limits or BodyLimits(),
            refuse_malformed=lambda _status: (JSON, MALFORMED_BODY),
        )
        self.exchanges: list[Exchange] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.disconnected: list[bytes] = []  # the ids of requests whose client disconnected
        self.pieces_sent = 0
        self.connections = Connections(connections_limits)
        self.is_waiting, self.go_on, self.was_congested, self.was_interrupted, self.has_finished = (
            asyncio.Event() for _ in range(5)
        )
        self._clients: list[RawClient] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ObservedConnection(self.serve, self.connection_settings, self.connections),
            sock=bind("127.0.0.1", 0),
        )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for client in self._clients:
            client.abort()
        self._server.close()
        for connection in self.connections:
            connection.abort()
        await self.cancel_tasks()
        await asyncio.sleep(0)  # the sockets are closed in the next turn

    async def connect(self) -> RawClient:
        self._clients.append(await connect_to(self._server.sockets[0].getsockname()))
        return self._clients[-1]

    async def cancel_tasks(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    @property
    def connection(self) -> ObservedConnection:
        """The server's end of the only connection."""
        [connection] = self.connections
        assert isinstance(connection, ObservedConnection)
        return connection

    @property
    def paths(self) -> list[str]:
        """The paths of the exchanges that were begun."""
        return [exchange.request.path for exchange in self.exchanges]

    @property
    def is_quiet(self) -> bool:
        return all(task.done() for task in self.tasks)

    async def serve(self, exchange: Exchange) -> None:
        task = asyncio.current_task()
        assert task
        self.tasks.append(task)
        self.exchanges.append(exchange)
        match exchange.request.path:
            case "/body" | "/body-when-told":
                if exchange.request.path == "/body-when-told":
                    await self.go_on.wait()
                respond(exchange, bytes(await exchange.read_body(BodyMemory())))
            case "/when-told":
                await self.go_on.wait()
                respond(exchange, WHOLE)
            case "/head":
                respond(exchange, describe_head(exchange))
            case "/raise":
                raise ZeroDivisionError
            case "/no-reply":
                pass
            case "/close" | "/hold-back":
                refuse(exchange)
            case "/no-content":
                respond(exchange, b"", 204)
            case "/wait":
                await self._wait(exchange)
            case "/reply-then-work":
                respond(exchange, b"{}")
                await self.go_on.wait()
                self.has_finished.set()
            case (
                "/stream" | "/abort-stream" | "/raise-in-stream" | "/fill" | "/large" | "/endless" | "/stream-when-told"
            ):
                await self._stream(exchange)
            case _:
                respond(exchange, WHOLE)

    async def _stream(self, exchange: Exchange) -> None:
        exchange.start_stream(reply_headers(exchange))
        match exchange.request.path:
            case "/fill":
                await self._fill(exchange)
            case "/large":
                for _ in range(PIECES):
                    exchange.write(PIECE)
                    await exchange.drain()
            case "/endless":
                await self._write_until_interrupted(exchange)
                return
            case "/stream-when-told":
                await self.go_on.wait()
            case path:
                exchange.write(b"one")
                if path == "/raise-in-stream":
                    raise ZeroDivisionError
                exchange.write(b"two and a bit more")
                if path == "/abort-stream":
                    exchange.abort_stream(b"done")
                    return
        exchange.finish_stream(b"done")

    async def _fill(self, exchange: Exchange) -> None:
        """Write until the client must read before there is room for more."""
        while not exchange.is_congested:
            exchange.write(PIECE)
            self.pieces_sent += 1
            await asyncio.sleep(0)
        self.was_congested.set()
        await exchange.drain()
        exchange.write(b"more")

    async def _write_until_interrupted(self, exchange: Exchange) -> None:
        try:
            while True:
                exchange.write(PIECE)
                await exchange.drain()
                await asyncio.sleep(0)
        finally:
            self.was_interrupted.set()

    async def _wait(self, exchange: Exchange) -> None:
        try:
            await exchange.read_body(BodyMemory())
            self.is_waiting.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if exchange.absorb_cancellation() is not Interruption.DISCONNECT:
                raise
            self.disconnected.append(exchange.request.headers[b"x-request-id"])
            self.was_interrupted.set()


def respond(exchange: Exchange, body: bytes, status: int = 200) -> None:
    exchange.respond(status, reply_headers(exchange), body)


def refuse(exchange: Exchange) -> None:
    """Close the connection, or hold the client back for a second."""
    if exchange.request.path == "/close":
        exchange.close_after_reply()
        respond(exchange, b"{}", 503)
    else:
        exchange.hold_back(1.0)
        respond(exchange, b"{}", 429)


def reply_headers(exchange: Exchange) -> bytes:
    """The request's id comes back, so that a test knows which request a reply belongs to."""
    return JSON + b"x-request-id: %b\r\n" % exchange.request.headers.get(b"x-request-id", b"none")


def describe_head(exchange: Exchange) -> bytes:
    request = exchange.request
    fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.fields]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
    return json.dumps({"method": request.method, "fields": fields, "headers": headers}).encode()


def check_malformed(received: bytes) -> None:
    """One reply and no more: the 400 of the settings, on a connection that closes."""
    head, _, body = received.partition(b"\r\n\r\n")
    status_line, *lines = head.split(b"\r\n")
    assert status_line == b"HTTP/1.1 400 Bad Request", received[:200]
    assert sorted(lines) == [
        b"connection: close",
        b"content-length: %d" % len(MALFORMED_BODY),
        JSON.removesuffix(b"\r\n"),
    ]
    assert body == MALFORMED_BODY


async def check_served(client: RawClient) -> None:
    """The connection serves another request, and nothing comes before its reply."""
    await client.send(request("/whole", request_id="check"))
    status_line, lines, body = await client.reply()
    assert (status_line, body) == (b"HTTP/1.1 200 OK", WHOLE)
    assert b"x-request-id: check" in lines


async def disconnect(client: RawClient, site: Site) -> None:
    """Disconnect the only client, and return once the server has noticed."""
    client.abort()
    await until(lambda: not site.connections)
