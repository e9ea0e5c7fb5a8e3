"""`make bench-check`: count the instructions of a few kinds of requests, and compare with `bench/baseline.json`.

Instructions do not depend on how busy the machine is. They do depend on the interpreter: if the baseline does not have
this one, the commit that wrote the baseline is measured too, and compared with. Client and upstream are this process.
They send in rounds, so that every run does the same work: requests that are not streamed arrive together and share a
commit, and streams end one after another, each with a commit of its own. Time stands still for the service, and the
garbage collector is off.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import uvloop

from bench.bulk import BulkStore
from bench.callgrind import Counter, counted
from bench.compare import make_side
from bench.conversation import Conversation
from bench.gateways.base import free_port
from bench.gateways.cadenza import Cadenza
from bench.gateways.install import ROOT, debian_program
from bench.machine import CannotRun, interpreter
from bench.real_upstream import call
from bench.report import table
from bench.upstream import BEGIN, CONTENT, PLAIN_REPLY, chunk, ending
from bench.workload import MARK, MESSAGES, PLAIN, RESPONSES, End, Shape, Target
from cadenza.core.codes import make_key

BASELINE = ROOT / "bench" / "baseline.json"
LIMIT = 1.03
AT_ONCE = 8
WARM = 1  # rounds before the count
ROUNDS = 4
REQUESTS = AT_ONCE * (WARM + ROUNDS)
STREAM = Shape(chunks=10)
STREAM_PARTS = ("one more chunk", "end of a stream")
CALLS = Shape(chunks=10, end=End.CALLS)
CALL = chunk(call(0, MARK.decode()))
CALL_BEGIN = BEGIN + chunk(call(0, '{"path":"', {"id": "call_0", "type": "function"}, name="read_file"))
AGENT_BYTES = 200_000
CALLS_BYTES = 40_000
STEP = 3  # chunks after the first that are counted together
REPLY_S = 120.0
OK = 200
MEMORY = Path("/dev/shm")  # noqa: S108 a slow disk would gather more charges in a commit
POOR = "poor@example.org"

Counts = dict[str, int]
Streams = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


class Case(msgspec.Struct, frozen=True):
    """Requests of one kind, AT_ONCE in each round."""

    name: str
    requests: list[bytes]
    shape: Shape = PLAIN
    parts: Sequence[str] = ()  # the names of what is shown by itself: one more chunk, and the end of a stream
    status: int = OK


class SteppedUpstream:
    """Collects the requests of a round, to answer them together."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.StreamWriter] = []
        self._arrived = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await _read_message(reader)
                self._waiting.append(writer)
                if len(self._waiting) == AT_ONCE:
                    self._arrived.set()
        writer.close()

    async def next_round(self) -> list[asyncio.StreamWriter]:
        """The connections of a round, when all of its requests have arrived."""
        await self._arrived.wait()
        self._arrived.clear()
        waiting, self._waiting = self._waiting, []
        return waiting


class Rounds:
    """Sends requests in rounds. The service is stopped while it is sent to, so that it gets the data of all at once."""

    def __init__(self, port: int, upstream: SteppedUpstream, counter: Counter) -> None:
        self._port = port
        self._upstream = upstream
        self._counter = counter
        self._parts: list[int] = []  # what was counted during a round

    async def warm_up(self, case: Case) -> None:
        """A round that is not counted: callgrind would take ten times as long for imports and first times."""
        _close(await self._run_round(case, 0, []))

    async def count(self, case: Case) -> Counts:
        """Instructions per request; of a stream also per chunk after the first, and of its end with its commit.

        The first round does not count: it prepares what the others reuse. Of the others, the least counts.
        """
        streams, rounds = Streams(), list[list[int]]()
        for number in range(WARM, WARM + ROUNDS):
            self._parts = []
            streams = await self._run_round(case, number, streams)
            rounds.append([*self._parts, await self._counter.read()])
        _close(streams)
        counts = [min(part) / AT_ONCE for part in zip(*rounds[1:], strict=True)]
        if not case.shape.chunks:
            return {case.name: round(counts[0])}
        first, *steps, end = counts
        chunk = min(steps) / STEP
        total = first + (case.shape.chunks - 1) * chunk + end
        return {case.name: round(total), **dict(zip(case.parts, (round(chunk), round(end)), strict=False))}

    async def _run_round(self, case: Case, number: int, streams: Streams) -> Streams:
        """Returns the connections. A connection pauses after a refusal, so each refusal comes on a new one."""
        try:
            async with asyncio.timeout(REPLY_S):
                with self._counter.stopped():
                    if not streams or case.status != OK:
                        _close(streams)
                        streams = [await asyncio.open_connection("127.0.0.1", self._port) for _ in range(AT_ONCE)]
                    for (_, writer), request in zip(streams, case.requests[number * AT_ONCE :], strict=False):
                        writer.write(request)
                await self._reply(case, streams)
        except TimeoutError:
            raise CannotRun(f"{case.name}: no reply in {REPLY_S:.0f} s") from None
        return streams

    async def _reply(self, case: Case, streams: Streams) -> None:
        if case.status == OK:
            upstreams = await self._upstream.next_round()
            if case.shape == PLAIN:
                self._send(upstreams, PLAIN_REPLY)
            else:
                await self._stream(upstreams, streams, case.shape)
                return
        for reader, _ in streams:
            head = await _read_message(reader)
            if int(head[9:12]) != case.status:
                raise CannotRun(f"{case.name}: status {head[9:12].decode()} instead of {case.status}")

    async def _stream(self, upstreams: list[asyncio.StreamWriter], streams: Streams, shape: Shape) -> None:
        """Every stream gets its next chunk when all clients have the last one, and ends when the one before has.

        The first chunk, every STEP of the others and the ends are counted by themselves.
        """
        first, next_one = (CALL_BEGIN + CALL, CALL) if shape.end == End.CALLS else (BEGIN + CONTENT, CONTENT)
        for data, times in ((first, 1), *[(next_one, STEP)] * ((shape.chunks - 1) // STEP)):
            for _ in range(times):
                self._send(upstreams, data)
                for reader, _ in streams:
                    await reader.readuntil(MARK)
            self._parts.append(await self._counter.read())
        ends = {asyncio.create_task(reader.readuntil(b"\r\n0\r\n\r\n")) for reader, _ in streams}
        for writer in upstreams:
            self._send([writer], ending(shape.chunks))
            _, ends = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)

    def _send(self, upstreams: list[asyncio.StreamWriter], data: bytes) -> None:
        with self._counter.stopped():
            for writer in upstreams:
                writer.write(data)


def main() -> int:
    options = read_options()
    try:
        debian_program("valgrind", "valgrind")
        known = _read_baseline()
        now = measure(".")
        if options.accept:
            judge(known.get(interpreter(), now), now)
            BASELINE.write_bytes(msgspec.json.format(msgspec.json.encode(known | {interpreter(): now})) + b"\n")
            return 0
        before = measure(options.against) if options.against else known.get(interpreter()) or measure(accepted_at())
        return judge(before, now)
    except CannotRun as reason:
        sys.stderr.write(f"bench-check: {reason}\n")
        return 1


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.check", description="Compare instructions per request.")
    parser.add_argument("--accept", action="store_true", help="write what was counted to bench/baseline.json")
    parser.add_argument("--against", metavar="REV", help="compare with a Git revision instead of the baseline")
    return parser.parse_args()


def measure(revision: str) -> Counts:
    with tempfile.TemporaryDirectory(prefix="cadenza-check-", dir=MEMORY if MEMORY.exists() else None) as name:
        return uvloop.run(count_all(Path(name), revision))


async def count_all(folder: Path, revision: str) -> Counts:
    side, upstream, upstream_port = make_side(folder, revision), SteppedUpstream(), free_port()
    side.folder.mkdir()
    launch = side.gateway.prepare(side.folder, free_port(), upstream_port)
    chosen = await asyncio.to_thread(lambda: list(cases(side.gateway, side.folder, launch.target)))
    async with (
        await asyncio.start_server(upstream.serve, "127.0.0.1", upstream_port),
        counted(launch, side.folder, side.source) as counter,
    ):
        rounds = Rounds(launch.target.port, upstream, counter)
        for case in chosen:
            await rounds.warm_up(case)
        await counter.begin()
        counts: Counts = {}
        for case in chosen:
            counts |= await rounds.count(case)
    return counts


def cases(gateway: Cadenza, folder: Path, target: Target) -> Iterator[Case]:
    store = BulkStore(f"sqlite:///{folder}/data/cadenza.db")
    store.grow_accounts(REQUESTS)
    gateway.cli(folder, "account", "create", POOR, "--credit", "0", "--password-stdin")
    poor = gateway.cli(folder, "key", "create", "--account", POOR, "--expires", "never").strip()
    yield Case("plain request", [target.request(PLAIN)] * REQUESTS)
    yield Case("first request of a key", [_with_key(target, key) for key in store.secrets])
    yield Case(f"stream of {STREAM.chunks} chunks", [target.request(STREAM)] * REQUESTS, STREAM, STREAM_PARTS)
    for name, protocol in (("Responses", RESPONSES), ("Messages", MESSAGES)):
        other = msgspec.structs.replace(target, path=protocol.path)
        yield Case(f"{name} stream of {STREAM.chunks} chunks", [other.request(STREAM)] * REQUESTS, STREAM)
    turn = Conversation(1, AGENT_BYTES).body(target.model, STREAM, AGENT_BYTES)
    called = Conversation(1, CALLS_BYTES).body(target.model, CALLS, CALLS_BYTES)
    parts = ("one more part of a call",)
    yield Case("stream of a call in 10 parts", [target.head(len(called)) + called] * REQUESTS, CALLS, parts)
    yield Case(f"agent's turn, {AGENT_BYTES // 1000} kB", [target.head(len(turn)) + turn] * REQUESTS, STREAM)
    yield Case("unknown key", [_with_key(target, make_key()) for _ in range(REQUESTS)], status=401)
    yield Case("no credit", [_with_key(target, poor)] * REQUESTS, status=402)


def judge(before: Counts, after: Counts) -> int:
    rows = [
        (name, f"{before[name]:,}", f"{count:,}", f"{100 * (count / before[name] - 1):+.1f}%")
        if name in before
        else (name, "–", f"{count:,}", "new")
        for name, count in after.items()
    ]
    sys.stdout.write(table(("instructions", "baseline", "now", "difference"), rows) + "\n")
    over = [name for name, count in after.items() if count > LIMIT * before.get(name, count)]
    if not over:
        return 0
    sys.stdout.write(
        f"Above the baseline by more than {100 * (LIMIT - 1):.0f}%: {', '.join(over)}. If the change is worth it, run"
        " `make bench-check ARGS=--accept` and commit bench/baseline.json.\n"
    )
    return 1


def accepted_at() -> str:
    """The commit that wrote the baseline."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", str(BASELINE)]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not found:
        raise CannotRun(f"there is no baseline for {interpreter()}, and no commit that wrote one")
    sys.stderr.write(f"There is no baseline for {interpreter()}: commit {found}, which wrote it, is measured too.\n")
    return found


def _close(streams: Streams) -> None:
    for _, writer in streams:
        writer.close()


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    """Reads a message with a body. Returns its head."""
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]))
    return head


def _read_baseline() -> dict[str, Counts]:
    return msgspec.json.decode(BASELINE.read_bytes(), type=dict[str, Counts]) if BASELINE.exists() else {}


def _with_key(target: Target, key: str) -> bytes:
    return msgspec.structs.replace(target, headers={"authorization": f"Bearer {key}"}).request(PLAIN)


if __name__ == "__main__":
    sys.exit(main())
