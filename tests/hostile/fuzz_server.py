"""Drives our server and a server made of h11 with the same bytes, and compares what they accept.

`python -m tests.hostile.fuzz_server --cases 100000 --seed 1` prints how often they agreed, each deliberate difference
with its count, and every other difference.
"""

import asyncio
import random
import re
import sys
from collections.abc import Callable
from urllib.parse import unquote

import h11
import httptools
import msgspec

from cadenza.http.body import BodyMemory
from cadenza.http.connection import Connection, ConnectionSettings
from cadenza.http.connections import Connections
from cadenza.http.exchange import Exchange
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

PATH = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*)?([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)


class Accepted(msgspec.Struct, frozen=True):
    """A request that a server took for whole."""

    method: str
    path: str
    query: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes

    def values(self, name: bytes) -> list[bytes]:
        return [value for field, value in self.fields if field == name]


class Case(msgspec.Struct, frozen=True):
    """What both made of the same bytes. `ends` are the places where requests end that the reference accepted."""

    sent: bytes
    ours: list[Accepted]
    theirs: list[Accepted]
    ends: list[int]

    @property
    def agreed(self) -> int:
        """How many requests, from the first, both read alike."""
        pairs = zip(self.ours, self.theirs, strict=False)
        shorter = min(len(self.ours), len(self.theirs))
        return next((number for number, (one, other) in enumerate(pairs) if one != other), shorter)

    @property
    def disputed(self) -> bytes:
        """The bytes of the first request that they read differently; without an end if the reference refuses it."""
        begins = [0, *self.ends]
        return self.sent[begins[self.agreed] : (self.ends[self.agreed] if self.is_stricter else None)]

    @property
    def head(self) -> bytes:
        """The head of the disputed request."""
        return head_of(self.disputed.lstrip(b"\r\n"))

    @property
    def is_stricter(self) -> bool:
        """We refuse a request that the reference accepts."""
        return self.agreed == len(self.ours) < len(self.theirs)

    @property
    def is_looser(self) -> bool:
        """We accept a request that the reference refuses."""
        return self.agreed == len(self.theirs) < len(self.ours)


async def ask_ours(pieces: list[bytes]) -> list[Accepted]:
    accepted = list[Accepted]()

    async def serve(exchange: Exchange) -> None:
        body = await exchange.read_body(BodyMemory())
        request = exchange.request
        fields = [plain_field(name, value) for name, value in request.fields]
        accepted.append(Accepted(request.method, request.path, request.query, fields, bytes(body)))
        exchange.respond(200, b"", b"")

    wire = MemoryWire(Connection(serve, ConnectionSettings(), Connections()))
    await wire.feed(pieces)
    wire.lose()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return accepted


def ask_reference(sent: bytes) -> tuple[list[Accepted], list[int]]:
    """What h11 accepts, and where each of these requests ends."""
    accepted, ends = list[Accepted](), list[int]()
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=64 * 1024)
    if sent:  # nothing would be the end of the connection
        connection.receive_data(sent)
    head, body = None, b""
    try:
        while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Request):
                head, body = event, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert head
                accepted.append(_accepted(head, body))
                ends.append(len(sent) - len(connection.trailing_data[0]))
                status = 405 if head.method == b"CONNECT" else 200  # a 200 would begin a tunnel
                connection.send(h11.Response(status_code=status, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE:
                    break
                connection.start_next_cycle()
    except h11.RemoteProtocolError:
        pass
    return accepted, ends


def _accepted(head: h11.Request, body: bytes) -> Accepted:
    found = PATH.fullmatch(head.target.decode("latin-1"))
    assert found
    fields = [plain_field(bytes(name), bytes(value)) for name, value in head.headers]
    query = (found[2] or "").encode("latin-1")
    return Accepted(head.method.decode(), unquote(found[1] or "/"), query, fields, body)


def refused_method(case: Case) -> bool:
    """Whether httptools does not know the method, or knows it from another protocol only."""
    method = case.head.split(b" ")[0]
    if method == b"PRI":
        return True
    try:
        httptools.HttpRequestParser(object()).feed_data(method + b" / HTTP/1.1\r\n\r\n")
    except httptools.HttpParserUpgrade:
        return False  # CONNECT
    except httptools.HttpParserError:
        return True
    return False


def odd_host(case: Case) -> bool:
    hosts = case.theirs[case.agreed].values(b"host")
    return any(len(host) > 255 or re.search(rb"[^A-Za-z0-9\-._~!$&'()*+,;=:%\[\]]", host) for host in hosts)


def odd_target(case: Case) -> bool:
    """The target is no path: `*`, an authority, a relative path, or it has bytes that are not ASCII."""
    target = case.head.split(b" ")[1]
    return not re.fullmatch(rb"(https?://[\w.\[\]]+(:\d+)?)?(/[\x21-\x7e]*)?", target)


def coding_in_1_0(case: Case) -> bool:
    return b"HTTP/1.0\r\n" in case.head and bool(case.theirs[case.agreed].values(b"transfer-encoding"))


def loose_chunks(case: Case) -> bool:
    is_chunked = bool(case.theirs[case.agreed].values(b"transfer-encoding"))
    return is_chunked and has_loose_chunks(case.disputed.lstrip(b"\r\n")[len(case.head) :])


def behind_upgrade(case: Case) -> bool:
    """We close the connection after a request for an upgrade."""
    if not case.ours:
        return False
    last = case.ours[-1]
    options = b",".join(last.values(b"connection")).lower()
    return last.method == "CONNECT" or (b"upgrade" in options and bool(last.values(b"upgrade")))


Holds = Callable[[Case], bool]

# What we refuse and the reference accepts. Each is refused because another program may read it differently.
STRICTER: dict[str, Holds] = {
    "a line of the head ends without CR": lambda case: has_line_without_cr(case.head),
    "a field is folded": lambda case: has_folded_field(case.head),
    "a control character is in a field": lambda case: has_control_character(case.head),
    "the method is unknown": refused_method,
    "the version is neither 1.0 nor 1.1": lambda case: not re.search(rb" HTTP/1\.[01]\r\n", case.head),
    "the target is not a path": odd_target,
    "the Host is not one, or too long": odd_host,
    "both a length and a transfer coding": lambda case: has_two_framings(case.head),
    "the length is given twice": lambda case: has_length_twice(case.head),
    "a transfer coding in HTTP/1.0": coding_in_1_0,
    "it comes behind a request for an upgrade": behind_upgrade,
    "the chunks are not by the grammar": loose_chunks,
}

# What we accept and the reference refuses.
LOOSER: dict[str, Holds] = {
    "empty lines before the request (RFC 9112, 2.2)": lambda case: case.disputed[:1] in (b"\r", b"\n"),
}


def reason(case: Case) -> str | None:
    """The deliberate difference that the case is an example of."""
    table = STRICTER if case.is_stricter else LOOSER if case.is_looser else {}
    return next((name for name, holds in table.items() if holds(case)), None)


async def compare(sent: bytes, chance: random.Random) -> Case:
    ours = await ask_ours(split(sent, chance))
    theirs, ends = ask_reference(sent)
    return Case(sent, ours, theirs, ends)


async def run(cases: int, seed: int) -> Report:
    chance = random.Random(seed)
    maker, report = MessageMaker(chance), Report()
    for _ in range(cases):
        case = await compare(maker.requests(), chance)
        report.add(case, case.agreed, None if case.ours == case.theirs else reason(case))
    return report


if __name__ == "__main__":
    sys.exit(main("fuzz_server", run))
