"""The clients: each asks one request after another, with the key of its wallet, until its time is over.

They ask the process with the fewest running requests. One that refuses a connection, or does not answer, is left out
for a while, as a load balancer would do. Nothing is retried: the next request has the next number.
"""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncGenerator, Iterator, Sequence

import msgspec

from bench.money.reckon import Asked, Ending
from bench.money.script import ScriptedRequest

PATIENCE_S = 20.0  # for the next bytes of a reply
CONNECT_S = 1.0
LEFT_OUT_S = 2.0
PAUSE_S = 0.1  # at most, between two requests of a client
NOBODY_S = 0.1
DONE = b"data: [DONE]"


class ChatAddress(msgspec.Struct, frozen=True):
    """How to ask a gateway."""

    ports: Sequence[int]
    model: str
    path: str = "/v1/chat/completions"


class Balancer:
    """Which process is asked next: the one with the fewest running requests."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._running = dict.fromkeys(ports, 0)
        self._left_out_until = dict.fromkeys(ports, 0.0)

    def order(self) -> list[int]:
        """Every port, those that failed lately last."""
        now_s = time.monotonic()
        return sorted(self._running, key=lambda port: (self._left_out_until[port] > now_s, self._running[port]))

    @contextlib.contextmanager
    def running(self, port: int) -> Iterator[None]:
        self._running[port] += 1
        try:
            yield
        finally:
            self._running[port] -= 1

    def leave_out(self, port: int) -> None:
        self._left_out_until[port] = time.monotonic() + LEFT_OUT_S


class Reception(msgspec.Struct):
    """What has arrived of a reply."""

    status: int = 0
    id: str = ""
    tokens: int = 0
    is_whole: bool = False


class ScriptedClients:
    """All clients of a run. `asked` is what they saw."""

    def __init__(self, seed: int, address: ChatAddress) -> None:
        self.asked = list[Asked]()
        self._seed = seed
        self._address = address
        self._numbers = itertools.count(1)
        self._balancer = Balancer(address.ports)

    async def ask_until(self, wallet: str, key: str, words: Iterator[int], until_s: float, *, is_eager: bool) -> None:
        """One client. An eager one pauses only after a refusal, and never disconnects."""
        while time.monotonic() < until_s:
            ask = ScriptedRequest.make(self._seed, next(self._numbers), may_leave=not is_eager)
            ending = await self._ask(ask, wallet, key, next(words))
            if not is_eager or ending != "whole":
                await asyncio.sleep(PAUSE_S * random.Random(ask.number).random())  # noqa: S311 not for secrets

    async def _ask(self, ask: ScriptedRequest, wallet: str, key: str, words: int) -> Ending:
        body, began_s, got = ask.body(self._address.model, words), time.monotonic(), Reception()
        ending: Ending = "unreachable"
        for port in self._balancer.order():
            try:
                reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), CONNECT_S)
            except OSError:
                self._balancer.leave_out(port)
                continue
            try:
                writer.write(self._head(port, key, len(body)) + body)
                with self._balancer.running(port):
                    ending = await receive(reader, ask, got)
            except TimeoutError:
                ending = "left"
                self._balancer.leave_out(port)
            except (OSError, ValueError, asyncio.IncompleteReadError):
                ending = "broken"
            finally:
                writer.transport.abort()
            break
        else:
            await asyncio.sleep(NOBODY_S)
        self.asked.append(Asked(ask.number, wallet, began_s, time.monotonic(), ending, got.status, got.id))
        return ending

    def _head(self, port: int, key: str, body_bytes: int) -> bytes:
        return (
            f"POST {self._address.path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {body_bytes}\r\nconnection: close\r\n\r\n"
        ).encode()


async def receive(reader: asyncio.StreamReader, ask: ScriptedRequest, got: Reception) -> Ending:
    """Read the reply into `got`, as far as the client wants it."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    got.status = int(head[9:12])
    if got.status != 200:
        return "refused"
    pieces = _chunks(reader) if b"transfer-encoding: chunked" in head.lower() else _body(reader, head.lower())
    held = b""
    async with contextlib.aclosing(pieces) as body:
        async for piece in body:
            *lines, held = (held + piece).split(b"\n")
            for line in lines:
                _read_line(line.strip(), got)
            if ask.leaves_after is not None and got.tokens >= ask.leaves_after:
                return "left"
    if not ask.is_stream:
        got.id, got.is_whole = msgspec.json.decode(held, type=ReplyPart).id, True
    return "whole" if got.is_whole else "broken"


class ReplyPart(msgspec.Struct):
    """The part of a reply, or of a chunk, that is read."""

    id: str = ""
    choices: list[dict[str, object]] = []


def _read_line(line: bytes, got: Reception) -> None:
    if line == DONE:
        got.is_whole = True
    elif line.startswith(b"data: {"):
        read = msgspec.json.decode(line[6:], type=ReplyPart)
        got.id = got.id or read.id
        got.tokens += bool(read.choices)


async def _chunks(reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    while size := int(await asyncio.wait_for(reader.readline(), PATIENCE_S), 16):
        yield (await asyncio.wait_for(reader.readexactly(size + 2), PATIENCE_S))[:-2]


async def _body(reader: asyncio.StreamReader, head: bytes) -> AsyncGenerator[bytes, None]:
    _, _, rest = head.partition(b"content-length:")
    yield await asyncio.wait_for(reader.readexactly(int(rest.partition(b"\r\n")[0])), PATIENCE_S)
