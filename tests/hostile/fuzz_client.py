"""Hands our HTTP client and h11 the same responses, and compares what they accept.

`python -m tests.hostile.fuzz_client --cases 100000 --seed 1` prints how often they agreed, each deliberate difference
with its count, and every other difference. The connection ends behind the bytes.
"""

import asyncio
import contextlib
import random
import re
import sys
from collections.abc import Callable

import h11
import msgspec

from cadenza.http.client_connection import Broken, ClientConnection
from tests.hostile.fuzz_report import Report, main
from tests.hostile.http_rules import (
    has_control_character,
    has_folded_field,
    has_length_twice,
    has_line_without_cr,
    has_loose_chunks,
    has_two_framings,
    head_of,
    plain_field,
)
from tests.hostile.memory_wire import MemoryWire, split
from tests.hostile.message_maker import MessageMaker

STATUS_LINE = re.compile(rb"^HTTP/[^\r\n]*", re.MULTILINE)
INTERIM = re.compile(rb"HTTP/1\.[01] 1\d\d")
REQUEST = b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 0\r\n\r\n"


class Response(msgspec.Struct, frozen=True):
    """A response that a client took for whole."""

    status: int
    headers: dict[bytes, bytes]  # the last of a repeated one
    body: bytes


class Case(msgspec.Struct, frozen=True):
    """What both made of the same bytes; None where they refused them or found them incomplete."""

    sent: bytes
    ours: Response | None
    theirs: Response | None

    @property
    def heads(self) -> bytes:
        """The head of the response, and those of the interim ones before it."""
        end = 0
        while INTERIM.match(self.sent, end) and len(head_of(self.sent[end:])) < len(self.sent) - end:
            end += len(head_of(self.sent[end:]))
        return self.sent[:end] + head_of(self.sent[end:])

    @property
    def last_head(self) -> bytes:
        begin = self.heads.rfind(b"\n\r\n", 0, -3)
        return self.heads[begin + 3 :] if begin >= 0 else self.heads

    @property
    def body(self) -> bytes:
        """What stands behind the heads."""
        return self.sent[len(self.heads) :]


async def ask_ours(pieces: list[bytes]) -> Response | None:
    connection = ClientConnection()
    wire = MemoryWire(connection)
    parts = list[bytes]()

    def take(part: bytes) -> bool:
        parts.append(part)
        return True

    async def fetch() -> Response:
        await connection.send(REQUEST)
        await connection.receive(take)
        headers = dict(plain_field(name, value) for name, value in connection.headers.items())
        return Response(connection.status, headers, b"".join(parts))

    fetching = asyncio.create_task(fetch())
    await asyncio.sleep(0)
    await wire.feed(pieces)
    wire.lose()
    with contextlib.suppress(Broken):
        return await fetching
    return None


def ask_reference(sent: bytes) -> Response | None:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=64 * 1024)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "here"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    head, body = None, b""
    try:
        for part in [sent, b""] if sent else [b""]:
            connection.receive_data(part)
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    head = event
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    assert head
                    headers = dict(plain_field(bytes(name), bytes(value)) for name, value in head.headers)
                    return Response(head.status_code, headers, body)
                elif isinstance(event, h11.ConnectionClosed):
                    return None
    except h11.RemoteProtocolError:
        pass
    return None


Holds = Callable[[Case], bool]

# What we refuse and the reference accepts. Each is refused because another program may read it differently.
STRICTER: dict[str, Holds] = {
    "a line of a head ends without CR": lambda case: has_line_without_cr(case.heads),
    "a field is folded": lambda case: has_folded_field(case.heads),
    "a control character is in a field": lambda case: has_control_character(case.heads),
    "the length is given twice": lambda case: has_length_twice(case.heads),
    "both a length and a transfer coding": lambda case: has_two_framings(case.heads),
    "the version is neither 1.0 nor 1.1": lambda case: not re.match(rb"HTTP/1\.[01] ", case.last_head),
    "the chunks are not by the grammar": lambda case: has_loose_chunks(case.body),
}

# What we accept and the reference refuses.
LOOSER: dict[str, Holds] = {
    "a control character is in the reason phrase, which we ignore": lambda case: any(
        map(has_control_character, STATUS_LINE.findall(case.heads))
    ),
    "the version is of RTSP, which httptools knows too": lambda case: case.last_head.startswith(b"RTSP/1.0 "),
}


def reason(case: Case) -> str | None:
    """The deliberate difference that the case is an example of."""
    table = STRICTER if case.ours is None else LOOSER if case.theirs is None else {}
    return next((name for name, holds in table.items() if holds(case)), None)


async def run(cases: int, seed: int) -> Report:
    chance = random.Random(seed)
    maker, report = MessageMaker(chance), Report()
    for _ in range(cases):
        sent = maker.response()
        case = Case(sent, await ask_ours(split(sent, chance)), ask_reference(sent))
        is_accepted = case.ours == case.theirs and case.ours is not None
        report.add(case, is_accepted, None if case.ours == case.theirs else reason(case))
    return report


if __name__ == "__main__":
    sys.exit(main("fuzz_client", run))
