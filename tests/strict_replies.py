"""Reads replies with the client side of h11, which takes no byte more and none less than HTTP/1.1 has."""

from collections.abc import Iterable

import h11
import msgspec


class StrictReply(msgspec.Struct, frozen=True):
    """One reply. `interim` are the statuses before it, like 100."""

    status: int
    headers: dict[str, str]
    body: bytes
    interim: tuple[int, ...] = ()


def read_strictly(received: bytes, methods: Iterable[str]) -> list[StrictReply]:
    """The replies to requests of these methods, one directly behind the other, on a connection that then closed."""
    replies = []
    for number, method in enumerate(methods):
        assert received, f"no reply {number}"
        reply, received = _read_one(received, method)
        replies.append(reply)
    assert received == b"", f"behind the last reply: {received[:200]!r}"
    return replies


def _read_one(received: bytes, method: str) -> tuple[StrictReply, bytes]:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1024 * 1024)
    connection.send(h11.Request(method=method, target="/", headers=[("host", "here")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(received)
    interim, body = [], b""
    while isinstance(event := connection.next_event(), h11.InformationalResponse):
        interim.append(event.status_code)
    assert isinstance(event, h11.Response), f"no reply in {received[:200]!r}"
    headers = {name.decode(): value.decode() for name, value in event.headers}
    assert len(headers) + len([1 for name, _ in event.headers if name == b"set-cookie"][1:]) == len(event.headers)
    while isinstance(part := connection.next_event(), h11.Data):
        body += part.data
    assert isinstance(part, h11.EndOfMessage), f"the reply does not end: {received[-200:]!r}"
    return StrictReply(event.status_code, headers, body, tuple(interim)), connection.trailing_data[0]
