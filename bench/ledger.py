"""What trusted money costs: the ledger's writer alone, and under a real service. Run it as `python -m bench.ledger`.

SQLite on a fresh file with full durability, as the embedded default has it. A pair is a request as the ledger sees it:
its hold, inside a durable reserve, and its end, awaited until it is durable. The figures depend on the disk far more
than on the processor.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.loopback import LoopbackUpstream, Whole, usage_of
from tests.raw_client import ChatRequest, send
from tests.service import Deployment
from tests.service_config import classes_spec

from bench.figures import Line, Section
from bench.report import render_section
from cadenza.control.account.accounts import create_account
from cadenza.control.keys import KeyOrder, create_key
from cadenza.core.money import Price
from cadenza.core.records import Outcome, Usage
from cadenza.fleet.presence import Presence
from cadenza.ledger.rules import HeldCredit, Hold
from cadenza.ledger.writer import LedgerWriter
from cadenza.observe import Observer, make_log
from cadenza.store.migrate import migrate
from cadenza.store.sqlite.store import SqliteStore

AT_ONCE = (1, 16, 64, 256)
SERVICE_AT_ONCE = 64
CREDIT_NANO = 10**15
PRICE = Price(1070, 3450)
COMMITS = "cadenza_ledger_commits_total"


class Volume(msgspec.Struct, frozen=True):
    """How much is measured: pairs with others at once, pairs one by one, requests through a service."""

    pairs: int
    pairs_alone: int
    requests: int


FULL = Volume(pairs=8000, pairs_alone=1500, requests=4000)
QUICK = Volume(pairs=600, pairs_alone=150, requests=300)


class Pairs:
    """Holds and ends, as fast as they are answered."""

    def __init__(self, writer: LedgerWriter, account_id: str, key_id: str) -> None:
        self.hold_s: list[float] = []
        self.end_s: list[float] = []
        self._writer = writer
        self._account_id = account_id
        self._key_id = key_id

    async def work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            began_s = time.perf_counter()
            held = await self._writer.hold(self._hold(number))
            held_s = time.perf_counter()
            assert isinstance(held, HeldCredit)
            await self._writer.end(self._outcome(number))
            self.hold_s.append(held_s - began_s)
            self.end_s.append(time.perf_counter() - held_s)

    def _hold(self, number: int) -> Hold:
        return Hold(
            completion_id=f"bench-{number}",
            request_id=f"req-{number}",
            account_id=self._account_id,
            key_id=self._key_id,
            class_id="forte",
            prompt_tokens=100,
            allowance_tokens=1024,
            price=PRICE,
            stream=False,
            started_at=time.time_ns() // 1_000_000,
        )

    def _outcome(self, number: int) -> Outcome:
        return Outcome(
            request_id=f"req-{number}",
            completion_id=f"bench-{number}",
            account_id=self._account_id,
            key_id=self._key_id,
            class_id="forte",
            endpoint="chat",
            usage=Usage(100, 50),
            provider="bench",
            model="bench",
            status=200,
            first_byte_ms=1,
            duration_ms=2,
            ended_at=time.time_ns() // 1_000_000,
        )


async def measure_writer(at_once: int, pairs: int, folder: Path) -> Line:
    """The writer alone: nobody else in the process, nobody else at the store."""
    store, log = SqliteStore(folder / f"bench-{at_once}.db"), (folder / f"bench-{at_once}.log").open("w")
    try:
        await migrate(store)
        account = await create_account(store, "bench@example.org", CREDIT_NANO, "forte", 1)
        _, key = await create_key(store, account.owner, KeyOrder("bench"), 1)
        observer = Observer(make_log(log))
        presence = Presence(store)
        writer = LedgerWriter(store, observer, presence)
        await presence.start()
        await writer.start()
        run, numbers, began_s = Pairs(writer, account.id, key.id), iter(range(pairs)), time.perf_counter()
        async with asyncio.TaskGroup() as workers:
            for _ in range(at_once):
                workers.create_task(run.work(numbers))
        seconds = time.perf_counter() - began_s
        await writer.stop()
        await presence.stop()
    finally:
        await store.close()
        log.close()
    commits = observer.metrics.registry.get_sample_value(COMMITS) or 0
    figures = {"pairs_per_s": pairs / seconds, "commits_per_1000": 1000 * commits / pairs}
    return Line(subject=f"{at_once}", figures=figures | _times("hold", run.hold_s) | _times("end", run.end_s))


def measure_service(requests: int) -> Line:
    """A real service before a fast upstream; client and upstream share the machine with it, and one process."""
    with LoopbackUpstream() as upstream, Deployment(classes_spec(upstream.base_url), CREDIT_NANO) as fleet:
        upstream.always(Whole(["Hello"], usage_of(20, 1)))
        node = fleet.start()
        took_s: list[float] = []

        async def work(numbers: Iterator[int]) -> None:
            for number in numbers:
                began_s = time.perf_counter()
                seen = await send(node.port, fleet.key, ChatRequest(number))
                assert seen.is_done
                took_s.append(time.perf_counter() - began_s)

        async def run() -> None:
            numbers = iter(range(requests))
            async with asyncio.TaskGroup() as workers:
                for _ in range(SERVICE_AT_ONCE):
                    workers.create_task(work(numbers))

        began_s = time.perf_counter()
        asyncio.run(run())
        seconds = time.perf_counter() - began_s
        commits = node.metric(COMMITS)
        fleet.ledger.check()
    figures = {"requests_per_s": requests / seconds, "commits_per_1000": 1000 * commits / requests}
    return Line(subject=f"{SERVICE_AT_ONCE}", figures=figures | _times("reply", took_s))


def measure_ledger(volume: Volume) -> list[Section]:
    with tempfile.TemporaryDirectory(prefix="cadenza-bench-") as folder:
        alone = [
            asyncio.run(measure_writer(at_once, volume.pairs if at_once > 1 else volume.pairs_alone, Path(folder)))
            for at_once in AT_ONCE
        ]
    return [
        Section(
            title="The ledger's writer alone",
            note="A hold and its settlement, so many pairs at once; all that waits shares a commit.",
            lines=alone,
        ),
        Section(
            title="The ledger under a service",
            note="Requests at once, where client and upstream share one process, and the machine with the service.",
            lines=[measure_service(volume.requests)],
        ),
    ]


def _times(name: str, seconds: list[float]) -> dict[str, float]:
    percentiles_ms = [1000 * value for value in statistics.quantiles(seconds, n=100)]
    return {f"{name}_p50_ms": percentiles_ms[49], f"{name}_p99_ms": percentiles_ms[98]}


if __name__ == "__main__":
    for section in measure_ledger(FULL):
        sys.stdout.write(render_section(section) + "\n\n")
