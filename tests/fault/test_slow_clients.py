"""Clients that do not read, do not write, or disconnect: they cost bounded memory, and nothing afterwards."""

import contextlib
import json
import socket
import struct
from collections.abc import Callable

import pytest

from tests.fault.fault_checks import check_next
from tests.fault.faults import BEGUN, PATIENT, unended
from tests.fault.rig import FaultRig
from tests.loopback import ROLE, STOP, Raw, Reply, Sse, Wait, Whole, said
from tests.raw_client import MESSAGES, RawClient, read_until

MIB = 2**20
UNREAD_STREAMS = 4
SILENT_CONNECTIONS = 200
LARGE = Sse([ROLE, *[said("x" * 16_384)] * 2048, STOP])
LARGE_BYTES = 32 * MIB
KEPT_BYTES_MAX = 4 * MIB  # of an unread stream, by the service
RECEIVE_BYTES = 65_536
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def api(rig: FaultRig) -> RawClient:
    return RawClient(rig.port, rig.key)


def test_clients_that_do_not_read_cost_little(rig: FaultRig, api: RawClient) -> None:
    """Unread streams meet backpressure: the service keeps little of each, and nothing after they disconnect."""
    rig.upstream.script(Whole(["loads", " the", " tokenizer"], None))
    assert rig.send(rig.new_request(PATIENT, stream=False)).is_done
    before_bytes = rig.process.rss_bytes
    rig.upstream.always(LARGE)
    with contextlib.ExitStack() as opened:
        for _ in range(UNREAD_STREAMS):
            connection = opened.enter_context(api.open_chat(stream=True, model=PATIENT))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            read_until(connection, b"xxxx")
        assert rig.upstream.wait_for_stall() < UNREAD_STREAMS * LARGE_BYTES / 2
        assert rig.process.rss_bytes - before_bytes < UNREAD_STREAMS * KEPT_BYTES_MAX
        assert api.get("/v1/models").status == 200
    rig.check_nothing_leaks()
    check_next(rig)


@pytest.mark.parametrize(
    "first_bytes", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nhost: he"], ids=["nothing", "half a head"]
)
def test_idle_connections_do_not_disturb_others(rig: FaultRig, api: RawClient, first_bytes: bytes) -> None:
    """Many connections with no request, or half a head, do not disturb others and leave nothing behind."""
    with contextlib.ExitStack() as opened:
        for _ in range(SILENT_CONNECTIONS):
            opened.enter_context(api.connect()).sendall(first_bytes)
        assert rig.send(rig.new_request(PATIENT, stream=True)).is_done
    rig.check_nothing_leaks()


def leave_within_the_head(_rig: FaultRig, api: RawClient, connection: socket.socket) -> None:
    connection.sendall(api.head("POST", "/v1/chat/completions")[:-9])


def leave_within_the_body(_rig: FaultRig, api: RawClient, connection: socket.socket) -> None:
    connection.sendall(chat_bytes(api)[:-9])


def leave_at_once(_rig: FaultRig, api: RawClient, connection: socket.socket) -> None:
    connection.sendall(chat_bytes(api))


def leave_before_the_reply(rig: FaultRig, api: RawClient, connection: socket.socket) -> None:
    connection.sendall(chat_bytes(api))
    rig.upstream.wait_for_request()


def leave_mid_stream(_rig: FaultRig, api: RawClient, connection: socket.socket) -> None:
    connection.sendall(chat_bytes(api))
    read_until(connection, b"a word")


def chat_bytes(api: RawClient) -> bytes:
    return api.chat_bytes(json.dumps({"messages": MESSAGES, "stream": True, "model": PATIENT}).encode())


LEAVINGS: dict[str, tuple[Callable[[FaultRig, RawClient, socket.socket], None], Reply]] = {
    "within the head": (leave_within_the_head, Raw([])),
    "within the body": (leave_within_the_body, Raw([])),
    "at once": (leave_at_once, Raw([Wait()])),
    "before the reply": (leave_before_the_reply, Raw([Wait()])),
    "mid-stream": (leave_mid_stream, unended(*BEGUN, Wait())),
}


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("name", LEAVINGS)
def test_disconnect_leaves_nothing_behind(rig: FaultRig, api: RawClient, name: str, is_reset: bool) -> None:
    """Whenever and however a client disconnects, its resources are released and the next request is served."""
    leave, reply = LEAVINGS[name]
    rig.upstream.always(reply)
    with api.connect() as connection:
        leave(rig, api, connection)
        if is_reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    rig.check_nothing_leaks()
    check_next(rig)
