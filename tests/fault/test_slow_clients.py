"""Clients that do not read, do not write, or leave: they cost a bounded memory while they are there, nothing after."""

import contextlib
import json
import socket
import struct
from collections.abc import Callable

import pytest

from tests.contract.wire import MESSAGES, Wire, read_until
from tests.fault.faults import BEGUN, PATIENT, ROLE, STOP, Wait, unended
from tests.fault.leaks import Bed
from tests.fault.verdicts import check_next
from tests.loopback import Raw, Reply, Sse, said

MIB = 2**20
UNREAD_STREAMS = 4
SILENT_CONNECTIONS = 200
LARGE = Sse([ROLE, *[said("x" * 16_384)] * 2048, STOP])
LARGE_BYTES = 32 * MIB
KEPT_BYTES_MAX = 4 * MIB  # of a stream that nobody reads, by the service
RECEIVE_BYTES = 65_536
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def wire(bed: Bed) -> Wire:
    return Wire(bed.port, bed.key)


def test_clients_that_do_not_read_cost_little(bed: Bed, wire: Wire) -> None:
    """Streams that nobody reads are held back: the service keeps little of each, and nothing once they are left."""
    before_bytes = bed.rss_bytes
    bed.upstream.always(LARGE)
    with contextlib.ExitStack() as opened:
        for _ in range(UNREAD_STREAMS):
            connection = opened.enter_context(wire.open_chat(stream=True, model=PATIENT))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            read_until(connection, b"xxxx")
        assert bed.upstream.wait_for_stall(timeout_s=30) < UNREAD_STREAMS * LARGE_BYTES / 2
        assert bed.rss_bytes - before_bytes < UNREAD_STREAMS * KEPT_BYTES_MAX
        assert wire.get("/v1/models").status == 200
    bed.check_nothing_leaks()
    check_next(bed)


@pytest.mark.parametrize(
    "said_first", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nhost: he"], ids=["nothing", "a head"]
)
def test_connections_without_a_request_disturb_nobody(bed: Bed, wire: Wire, said_first: bytes) -> None:
    """Many connections that say nothing, or half a head, leave the service to the others, and no trace when they go."""
    with contextlib.ExitStack() as opened:
        for _ in range(SILENT_CONNECTIONS):
            opened.enter_context(wire.connect()).sendall(said_first)
        assert bed.send(bed.new_ask(PATIENT, stream=True)).is_done
    bed.check_nothing_leaks()


def leave_within_the_head(_bed: Bed, wire: Wire, connection: socket.socket) -> None:
    connection.sendall(wire.head("POST", "/v1/chat/completions")[:-9])


def leave_within_the_body(_bed: Bed, wire: Wire, connection: socket.socket) -> None:
    connection.sendall(chat_bytes(wire)[:-9])


def leave_at_once(_bed: Bed, wire: Wire, connection: socket.socket) -> None:
    connection.sendall(chat_bytes(wire))


def leave_before_the_reply(bed: Bed, wire: Wire, connection: socket.socket) -> None:
    connection.sendall(chat_bytes(wire))
    bed.upstream.wait_for_request()


def leave_mid_stream(_bed: Bed, wire: Wire, connection: socket.socket) -> None:
    connection.sendall(chat_bytes(wire))
    read_until(connection, b"a word")


def chat_bytes(wire: Wire) -> bytes:
    return wire.chat_bytes(json.dumps({"messages": MESSAGES, "stream": True, "model": PATIENT}).encode())


LEAVINGS: dict[str, tuple[Callable[[Bed, Wire, socket.socket], None], Reply]] = {
    "within the head": (leave_within_the_head, Raw([])),
    "within the body": (leave_within_the_body, Raw([])),
    "at once": (leave_at_once, Raw([Wait()])),
    "before the reply": (leave_before_the_reply, Raw([Wait()])),
    "mid-stream": (leave_mid_stream, unended(*BEGUN, Wait())),
}


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("name", LEAVINGS)
def test_client_that_leaves_leaves_nothing(bed: Bed, wire: Wire, name: str, is_reset: bool) -> None:
    """Whenever a client leaves, and however: what it had is given back, and the next request works."""
    leave, reply = LEAVINGS[name]
    bed.upstream.always(reply)
    with wire.connect() as connection:
        leave(bed, wire, connection)
        if is_reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    bed.check_nothing_leaks()
    check_next(bed)
