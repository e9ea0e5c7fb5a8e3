"""Addresses where no upstream answers: nothing listens, the connection fails, or TLS fails."""

import contextlib
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import trustme

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
def never_accepting() -> Iterator[str]:
    """The system accepts the connection; the request is never read."""
    with socket.socket() as listener:
        listener.bind((LOCALHOST, 0))
        listener.listen(64)
        yield f"http://{LOCALHOST}:{listener.getsockname()[1]}/v1"


@contextlib.contextmanager
def without_room() -> Iterator[str]:
    with full_listener() as port:
        yield f"http://{LOCALHOST}:{port}/v1"


@contextlib.contextmanager
def self_signed() -> Iterator[str]:
    """TLS with a certificate of an unknown authority. Sending a request to it is a failure of the test."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(LOCALHOST).configure_cert(context)
    read = list[bytes]()

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            read.append(secure.recv(65_536))

    with served_by(serve, "https") as base_url:
        yield base_url
    assert not any(read), "a request was sent to an untrusted server"


UNREACHABLE: dict[str, Address] = {
    "refused": refusing_address,
    "reset when connected": lambda: served_by(reset),
    "closed when connected": lambda: served_by(socket.socket.close),
    "never accepted": never_accepting,
    "no room to connect": without_room,
    "plain HTTP behind https": lambda: served_by(answer_plainly, "https"),
    "closed within the TLS handshake": lambda: served_by(socket.socket.close, "https"),
    "silent within the TLS handshake": lambda: served_by(stay_silent, "https"),
    "a certificate of an unknown authority": self_signed,
    "a name that does not exist": lambda: contextlib.nullcontext("http://nobody.internal/v1"),
    "a name that cannot exist": lambda: contextlib.nullcontext(f"http://{'x' * 70}.internal/v1"),
}
