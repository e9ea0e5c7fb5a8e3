"""What trusted money costs: the ledger's writer alone, and under a real service. Run it as `python -m bench.ledger`.

SQLite on a fresh file with full durability, as the embedded default has it. A pair is a request as the ledger sees it:
its hold and its end, each awaited until it is durable. The figures depend on the disk far more than on the processor.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.fault.fleet import Fleet
from tests.fault.replies import Whole, counts
from tests.fault.wire import Ask, send
from tests.loopback import LoopbackUpstream

from cadenza.control.accounts import create_account
from cadenza.control.keys import KeyOrder, create_key
from cadenza.core.money import Price
from cadenza.core.records import Usage
from cadenza.observe import Observer, make_log
from cadenza.store.database import Database, migrate
from cadenza.store.ledger import End, Held, Hold
from cadenza.store.writer import LedgerWriter

AT_ONCE = (1, 16, 64, 256)
PAIRS = 8000
PAIRS_ALONE = 1500
SERVICE_AT_ONCE = 64
SERVICE_REQUESTS = 4000
CREDIT_NANO = 10**15
PRICE = Price(1070, 3450)
COMMITS = "cadenza_ledger_commits_total"


class Measured(msgspec.Struct, frozen=True):
    """One line of the first table. Times are in milliseconds."""

    at_once: int
    pairs_per_s: float
    commits_per_1000: float
    hold_ms: list[float]
    end_ms: list[float]

    def row(self) -> str:
        times = (self.hold_ms[49], self.hold_ms[98], self.end_ms[49], self.end_ms[98])
        shown = " | ".join(f"{time_ms:.2f}" for time_ms in times)
        return f"| {self.at_once} | {self.pairs_per_s:,.0f} | {self.commits_per_1000:,.0f} | {shown} |"


class Served(msgspec.Struct, frozen=True):
    """The line of the second table."""

    at_once: int
    requests_per_s: float
    commits_per_1000: float
    reply_ms: list[float]

    def row(self) -> str:
        shown = f"{self.reply_ms[49]:.1f} | {self.reply_ms[98]:.1f}"
        return f"| {self.at_once} | {self.requests_per_s:,.0f} | {self.commits_per_1000:,.0f} | {shown} |"


class NothingDelivered:
    """A reply that is not streamed delivers nothing before its end."""

    delivered_tokens = 0


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
            held = await self._writer.hold(self._hold(number), NothingDelivered())
            held_s = time.perf_counter()
            assert isinstance(held, Held)
            await self._writer.end(self._end(number))
            self.hold_s.append(held_s - began_s)
            self.end_s.append(time.perf_counter() - held_s)

    def _hold(self, number: int) -> Hold:
        return Hold(
            request_id=f"bench-{number}",
            account_id=self._account_id,
            key_id=self._key_id,
            class_id="forte",
            prompt_tokens=100,
            allowance_tokens=1024,
            price=PRICE,
            stream=False,
            started_at=time.time_ns() // 1_000_000,
        )

    def _end(self, number: int) -> End:
        now_ms = time.time_ns() // 1_000_000
        return End(f"bench-{number}", self._account_id, Usage(100, 50), "bench", "bench", 200, 1, 2, now_ms)


async def measure_writer(at_once: int, pairs: int, folder: Path) -> Measured:
    """The writer alone: nobody else in the process, nobody else at the store."""
    db = Database(f"sqlite:///{folder}/bench-{at_once}.db")
    try:
        await migrate(db)
        account = await create_account(db, "bench@example.org", "a password of the bench", CREDIT_NANO, "forte", 1)
        _, key = await create_key(db, account.email, KeyOrder("bench"), 1)
        observer = Observer(make_log())
        writer = LedgerWriter(db, observer)
        await writer.start()
        run, numbers, began_s = Pairs(writer, account.id, key.id), iter(range(pairs)), time.perf_counter()
        async with asyncio.TaskGroup() as workers:
            for _ in range(at_once):
                workers.create_task(run.work(numbers))
        seconds = time.perf_counter() - began_s
        await writer.stop()
    finally:
        await db.close()
    commits = observer.metrics.registry.get_sample_value(COMMITS) or 0
    return Measured(
        at_once, pairs / seconds, 1000 * commits / pairs, _percentiles_ms(run.hold_s), _percentiles_ms(run.end_s)
    )


def measure_service() -> Served:
    """A real service before a fast upstream; client and upstream share the machine with it, and one process."""
    with LoopbackUpstream() as upstream, Fleet(upstream.base_url, CREDIT_NANO) as fleet:
        upstream.always(Whole(["Hello"], counts(20, 1)))
        node = fleet.start()
        took_s: list[float] = []

        async def work(numbers: Iterator[int]) -> None:
            for number in numbers:
                began_s = time.perf_counter()
                seen = await send(node.port, fleet.key, Ask(number))
                assert seen.is_done
                took_s.append(time.perf_counter() - began_s)

        async def run() -> None:
            numbers = iter(range(SERVICE_REQUESTS))
            async with asyncio.TaskGroup() as workers:
                for _ in range(SERVICE_AT_ONCE):
                    workers.create_task(work(numbers))

        began_s = time.perf_counter()
        asyncio.run(run())
        seconds = time.perf_counter() - began_s
        commits = node.metric(COMMITS)
        fleet.books.prove()
    per_1000 = 1000 * commits / SERVICE_REQUESTS
    return Served(SERVICE_AT_ONCE, SERVICE_REQUESTS / seconds, per_1000, _percentiles_ms(took_s))


def report() -> str:
    """Both tables, as Markdown."""
    with tempfile.TemporaryDirectory(prefix="cadenza-bench-") as folder:
        alone = [
            asyncio.run(measure_writer(at_once, PAIRS if at_once > 1 else PAIRS_ALONE, Path(folder)))
            for at_once in AT_ONCE
        ]
    lines = [
        "| at once | hold + end/s | commits per 1,000 | hold p50 ms | hold p99 ms | end p50 ms | end p99 ms |",
        "|--:|--:|--:|--:|--:|--:|--:|",
        *(measured.row() for measured in alone),
        "",
        "| through the service, at once | requests/s | commits per 1,000 | reply p50 ms | reply p99 ms |",
        "|--:|--:|--:|--:|--:|",
        measure_service().row(),
    ]
    return "\n".join(lines) + "\n"


def _percentiles_ms(seconds: list[float]) -> list[float]:
    return [1000 * value for value in statistics.quantiles(seconds, n=100)]


if __name__ == "__main__":
    sys.stdout.write(report())
