"""A delaying TCP link: `python -m bench.link PORT TARGET DELAY_MS`. TARGET is a port of loopback or a unix socket.

Every byte arrives DELAY_MS later, in each direction, and bytes do not wait for one another. Threads are used because
the timers of event loops have a resolution of a millisecond. One thread reads and one writes, for each direction of a
connection, so the link is for programs with few connections, as those to a store are.
"""

import contextlib
import socket
import sys
import threading
import time
from queue import SimpleQueue

READ_BYTES = 256 * 1024

Part = tuple[float, bytes]  # when it is due, by the monotonic clock; no bytes are the end


class Direction:
    """Carries the bytes of one direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket, delay_s: float) -> None:
        self._source = source
        self._sink = sink
        self._delay_s = delay_s
        self._on_the_way: SimpleQueue[Part] = SimpleQueue()

    def start(self) -> None:
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def _read(self) -> None:
        data = b"begin"
        while data:
            try:
                data = self._source.recv(READ_BYTES)
            except OSError:
                data = b""
            self._on_the_way.put((time.monotonic() + self._delay_s, data))

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the other end has left
            while True:
                due_s, data = self._on_the_way.get()
                time.sleep(max(0.0, due_s - time.monotonic()))
                if not data:
                    break
                self._sink.sendall(data)
            self._sink.shutdown(socket.SHUT_WR)


def connect(target: str) -> socket.socket:
    if target.isdigit():
        connection = socket.create_connection(("127.0.0.1", int(target)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(target)
    return connection


def serve(port: int, target: str, delay_ms: float) -> None:
    with socket.create_server(("127.0.0.1", port), backlog=1024) as listener:
        while True:
            client, _ = listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                server = connect(target)
            except OSError:
                client.close()
                continue
            Direction(client, server, delay_ms / 1000).start()
            Direction(server, client, delay_ms / 1000).start()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
