"""The HTTP server: uvicorn (uvloop, httptools) set to our taste. Bytes that are not HTTP get the error shape too."""

import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from cadenza.core.errors import InvalidRequest, render_error
from cadenza.gateway.call import HANG_UP

HEAD_BYTES_MAX = 64 * 1024
KEEP_ALIVE_S = 75  # longer than clients keep an idle connection, so that they close it and not we
DRAIN_S = 30
# uvicorn's own log prints exceptions with their text; ours says where they came from, and no more.
QUIET = {"version": 1, "disable_existing_loggers": False, "loggers": {"uvicorn": {"level": "CRITICAL"}}}
ASGI = Callable[[Any, Any, Any], Awaitable[None]]


class CadenzaProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with a bound on the head of a request and our error object for what is not HTTP."""

    _head_bytes = 0
    _is_in_head = True

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._is_in_head = False
        cycle = self.cycle

        def hang_up() -> None:
            cycle.keep_alive = False

        self.scope["extensions"] = {HANG_UP: hang_up}  # type: ignore[dict-item]  # an extension of our own

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 uvicorn's sentence is not for our clients
        body = render_error("This is not a valid HTTP/1.1 request, or its headers are too large.", InvalidRequest.type)
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nx-should-retry: false\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        is_answered = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not is_answered:  # a reply that has begun can only be cut off
            self.transport.write(head + body)
        self.transport.close()


class Server(uvicorn.Server):
    """A server that says when it begins to drain."""

    def __init__(self, config: uvicorn.Config, on_drain: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_drain = on_drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_drain()
        super().handle_exit(sig, frame)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, so that a port that is taken is found out before anything else begins."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(2048)
    listener.set_inheritable(True)
    return listener


def serve_one(app: ASGI, listener: socket.socket, on_drain: Callable[[], None]) -> None:
    """Serve in this process until a signal; returns when all is drained."""
    server = Server(_config(app), on_drain)
    with _signals_that_only_end_us():
        server.run(sockets=[listener])


def serve_many(app_factory: str, workers: int, listener: socket.socket) -> None:
    """Serve in several processes, each of which builds the application anew."""
    Multiprocess(_config(app_factory, factory=True, workers=workers), sockets=[listener]).run()


def _config(app: ASGI | str, *, factory: bool = False, workers: int = 1) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        factory=factory,
        workers=workers,
        http=CadenzaProtocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=QUIET,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=DRAIN_S,
    )


@contextlib.contextmanager
def _signals_that_only_end_us() -> Iterator[None]:
    """uvicorn raises the signal that ended it once more when it has drained; by then there is nothing left to do."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
