"""A hosted service's mix (bench/mix.py) through Cadenza and beside it, and what was charged: `make bench ARGS=--real`.

Requests arrive at fixed times, so every set-up carries the same load; LiteLLM gets every tenth request. A charge must
be what the upstream reported. For a client that left it is our count of its prompt, and of the output at least what it
read and at most what the upstream sent.
"""

import asyncio
import contextlib
import itertools
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import uvloop

from bench.client import Connection, Reply
from bench.figures import Line, Section
from bench.gateways.base import Gateway
from bench.load import LoadResult, sampled
from bench.machine import CannotRun, stats_of
from bench.measure import Site, streamed_ms
from bench.mix import MODEL, MODEL_FIELD, OWN, TITLE, WITHOUT, Ask, Kind, bodies, mix
from bench.money.script import price
from bench.real_setups import Served, Starting, all_setups
from bench.real_upstream import Supply
from bench.testbed import running_upstream
from bench.workload import Target
from cadenza.config.load import DEFAULT_CHARACTER
from cadenza.core.tokens import Tokenizer
from cadenza.gateway.validate import parse_chat

SEED = 1
WARM_FIRST = 9_000_001  # the numbers of requests that are not measured
REPLY_S = 60.0
QUIET_S = 0.5
CHARGES_S = 45.0  # LiteLLM writes its spend every 10 to 15 seconds, over two steps
FIRST = ("first_p50_ms", "first_p99_ms")
NOTE = (
    "Agents' turns, chats and short requests of 10,000 accounts, as many a second for each set-up; LiteLLM gets every"
    " tenth, 100 keys and both cores. First tokens are beyond those without a gateway. Mischarged are requests whose"
    " charge is not what was due; of streams that their clients left, LiteLLM's are not judged, but counted if nobody"
    " pays for them."
)


class Size(msgspec.Struct, frozen=True):
    """How long the load is, and how dense."""

    seconds: float
    warm_s: float
    per_s: float = 20.0


FULL = Size(seconds=60.0, warm_s=4.0)
QUICK = Size(seconds=6.0, warm_s=1.5)


class Seen(msgspec.Struct, frozen=True):
    """A request as its client saw it."""

    ask: Ask
    reply: Reply | None
    error: str = ""

    @property
    def fault(self) -> str | None:
        """Failures that the upstream began are good, and so is what a client leaves."""
        if self.reply is None:
            return self.error
        if self.ask.fails and self.reply.status >= 500:
            return None
        if self.ask.leaves_after and len(self.reply.marks_s) >= self.ask.leaves_after:
            return None
        return self.reply.fault(self.ask.shape)


class Clients:
    """Sends each request at its time, whether others have ended or not."""

    def __init__(self, served: Served, prepared: Mapping[int, bytes]) -> None:
        self._served = served
        self._prepared = prepared
        self._idle = defaultdict[int, list[Connection]](list)
        self.seen = list[Seen]()

    async def run(self, asks: Sequence[Ask]) -> float:
        """Returns the most memory that was sampled, in MB."""
        began_s, trees = time.perf_counter(), self._served.trees
        async with sampled(lambda: sum(tree.rss_mb for tree in trees), 1.0) as samples, asyncio.TaskGroup() as running:
            for ask in asks:
                await asyncio.sleep(began_s + ask.at_s - time.perf_counter())
                running.create_task(self._send(ask))
        for connection in itertools.chain(*self._idle.values()):
            connection.close()
        return max(samples)

    async def _send(self, ask: Ask) -> None:
        target, connection = self._served.targets[ask.number % len(self._served.targets)], None
        idle, request = self._idle[target.port], self._request(ask, target)
        try:
            async with asyncio.timeout(REPLY_S):
                while idle and not (connection and connection.is_open):
                    connection = idle.pop()
                if connection is None or not connection.is_open:
                    connection = await Connection.open(target.port)
                reply = await connection.send(request, ask.leaves_after)
            self.seen.append(Seen(ask, reply))
        except OSError as error:  # TimeoutError is one
            self.seen.append(Seen(ask, None, type(error).__name__))
            if connection:
                connection.close()
        else:
            idle.append(connection)

    def _request(self, ask: Ask, target: Target) -> bytes:
        keys, headers = self._served.keys, dict(target.headers) | {"x-request-id": f"bench-{ask.number}"}
        if keys:
            headers["authorization"] = f"Bearer {keys[ask.account % len(keys)]}"
        if ask.is_idempotent:
            headers["idempotency-key"] = f"bench-{ask.number}"
        body = self._prepared[ask.number]
        if target.model != MODEL:
            body = body.replace(MODEL_FIELD % MODEL.encode(), MODEL_FIELD % target.model.encode(), 1)
        return msgspec.structs.replace(target, headers=headers).head(len(body)) + body


def _setups(gateways: Sequence[Gateway]) -> dict[str, Starting]:
    chosen = {gateway.name for gateway in gateways}
    return {WITHOUT: _directly} | {name: one for name, one in all_setups().items() if name.split(",")[0] in chosen}


def measure_real(site: Site) -> list[Section]:
    size = QUICK if site.is_quick else FULL
    warm = [ask for ask in mix(SEED + 1, size.warm_s, size.per_s, WARM_FIRST) if ask.kind != Kind.CHAT]
    asks = mix(SEED, size.seconds, size.per_s)
    prepared = dict(zip((ask.number for ask in (*warm, *asks)), bodies([*warm, *asks]), strict=True))
    own_tokens = count_left(asks, prepared)
    lines, direct = list[Line](), None
    for name, start in _setups(site.gateways).items():
        site.step(f"{TITLE}: {name}")
        folder = site.folder / f"real-{len(lines)}"
        try:
            with (
                running_upstream("bench.real_upstream", site.folder) as upstream_port,
                start(folder, upstream_port) as served,
            ):
                line = _measure(served, warm, asks, prepared, upstream_port, own_tokens if name in OWN else {})
        except (CannotRun, OSError) as reason:
            lines.append(Line(subject=name, figures={}, error=str(reason) or type(reason).__name__))
            continue
        direct = direct or line
        added = {key: value - direct.figures[key] for key, value in line.figures.items() if key in FIRST}
        lines.append(msgspec.structs.replace(line, subject=name, figures={**line.figures, **(added if lines else {})}))
    return [Section(title=TITLE, note=NOTE, axis="set-up", lines=lines)]


@contextlib.contextmanager
def _directly(_folder: Path, upstream_port: int) -> Iterator[Served]:
    yield Served(targets=[Target(upstream_port)])


def _measure(
    served: Served,
    warm: Sequence[Ask],
    asks: Sequence[Ask],
    prepared: Mapping[int, bytes],
    upstream_port: int,
    own_tokens: Mapping[int, int],
) -> Line:
    uvloop.run(Clients(served, prepared).run(warm[:: served.every]))
    before_s, stores_s = _cpu_s(served), _stores_s(served)
    clients, asked = Clients(served, prepared), asks[:: served.every]
    most_mb = uvloop.run(clients.run(asked))
    time.sleep(QUIET_S)  # clients that left are charged
    good = sum(seen.fault is None for seen in clients.seen)
    figures = {
        "requests_per_s": good / asked[-1].at_s,
        "cpu_us": 1e6 * (_cpu_s(served) - before_s) / max(1, good),
        "stores_cpu_us": 1e6 * (_stores_s(served) - stores_s) / max(1, good),
        **streamed_ms(times_of(clients.seen)),
        "rss_mb": most_mb,
    }
    if not served.trees:
        del figures["cpu_us"], figures["rss_mb"]
    if not served.stores:
        del figures["stores_cpu_us"]
    if served.charges:
        figures |= _money(served.charges, clients.seen, upstream_port, own_tokens)
    faults = Counter(fault for seen in clients.seen if (fault := seen.fault))
    error = f"{faults.total()} of {len(asked)} failed: {faults.most_common(1)[0][0]}" if faults else None
    return Line(subject="", figures=figures, error=error)


def times_of(seen: Sequence[Seen]) -> LoadResult:
    """Of the streams that clients read to their end."""
    result = LoadResult()
    for one in seen:
        if one.reply and one.ask.shape.chunks and not one.ask.leaves_after and not one.ask.fails:
            result.add(one.reply, one.ask.shape)
    return result


def _money(
    charges: Callable[[], Counter[int]], seen: Sequence[Seen], upstream_port: int, own_tokens: Mapping[int, int]
) -> dict[str, float]:
    """Wait until every reply that was read to its end is charged, or CHARGES_S are over."""
    with urllib.request.urlopen(f"http://127.0.0.1:{upstream_port}/served") as page:
        supplies = {one.number: one for one in msgspec.json.decode(page.read(), type=list[Supply])}
    until_s = time.monotonic() + CHARGES_S
    while True:
        charged = charges()
        missing = [one.ask.number for one in seen if one.ask.number in supplies and one.ask.number not in charged]
        if time.monotonic() > until_s or not missing:
            break
        time.sleep(QUIET_S)
    off = [off_nano(one, supplies.get(one.ask.number), charged[one.ask.number], own_tokens) for one in seen]
    return {
        "charged_usd": sum(charged[one.ask.number] for one in seen) / 1e9,
        "mischarged": sum(map(bool, off)),
        "mischarged_usd": sum(off) / 1e9,
        "left_uncharged": sum(one.ask.leaves_after is not None and not charged[one.ask.number] for one in seen),
    }


def off_nano(seen: Seen, supply: Supply | None, charged_nano: int, own_tokens: Mapping[int, int]) -> int:
    """How far a charge is from what is due, in nano-dollars.

    A client that left owes its prompt, and at least what it read and at most what the upstream sent. `own_tokens` has
    its prompt by our count; where it is not known, what was left is not judged.
    """
    if supply is None:
        return abs(charged_nano)
    least_nano = most_nano = price(supply.prompt_tokens, supply.sent_tokens)
    if not supply.is_whole:
        prompt_tokens, reply = own_tokens.get(seen.ask.number), seen.reply
        if prompt_tokens is None or reply is None:
            return 0
        least_nano, most_nano = price(prompt_tokens, len(reply.marks_s)), price(prompt_tokens, supply.sent_tokens)
    return max(0, least_nano - charged_nano, charged_nano - most_nano)


def count_left(asks: Sequence[Ask], prepared: Mapping[int, bytes]) -> dict[int, int]:
    """The tokens of the prompts whose clients leave: without the upstream's count, these are charged."""
    tokenizer, left = Tokenizer(), (ask.number for ask in asks if ask.leaves_after)
    return {
        number: tokenizer.count_prompt([DEFAULT_CHARACTER.strip(), *parse_chat(prepared[number]).counted_texts()])
        for number in left
    }


def _cpu_s(served: Served) -> float:
    return sum(tree.cpu_s for tree in served.trees)


def _stores_s(served: Served) -> float:
    return sum(stat.cpu_s for session in served.stores for stat in stats_of(session))
