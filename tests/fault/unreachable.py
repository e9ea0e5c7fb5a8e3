"""Addresses where no upstream answers: nothing listens, the connection fails, or TLS fails."""

import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from tests.service import refusing_address
from tests.unit.http.peer import full_listener

LOCALHOST = "127.0.0.1"
PLAIN_ANSWER = b"HTTP/1.1 400 The plain HTTP request was sent to HTTPS port\r\ncontent-length: 0\r\n\r\n"
Serve = Callable[[socket.socket], None]
Address = Callable[[], AbstractContextManager[str]]


@contextlib.contextmanager
def served_by(serve: Serve, scheme: str = "http") -> Iterator[str]:
    """An address where each connection is given to `serve`, in a thread of its own."""

    class ServeConnection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                serve(self.request)

    with socketserver.ThreadingTCPServer((LOCALHOST, 0), ServeConnection) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        serving.start()
        try:
            yield f"{scheme}://{LOCALHOST}:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            serving.join()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def answer_plainly(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(PLAIN_ANSWER)


def stay_silent(connection: socket.socket) -> None:
    while connection.recv(65_536):
        pass


@contextlib.contextmanager
def without_room() -> Iterator[str]:
    with full_listener() as port:
        yield f"http://{LOCALHOST}:{port}/v1"


UNREACHABLE: dict[str, Address] = {  # one of each kind: all are in tests/unit/upstreams/test_connection_faults.py
    "refused": refusing_address,
    "no room to connect": without_room,
    "closed within the TLS handshake": lambda: served_by(socket.socket.close, "https"),
    "silent within the TLS handshake": lambda: served_by(stay_silent, "https"),
}
