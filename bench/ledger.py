"""What trusted money costs: the ledger's writer alone. With a service around it, it is measured by bench/fleet.py.

SQLite on a fresh file with full durability, as the embedded default has it. A pair is a request as the ledger sees it:
its hold, inside a durable reserve, and its end, awaited until it is durable. The figures depend on the disk far more
than on the processor.
"""

import asyncio
import statistics
import time
from pathlib import Path

from bench.bulk import FIRST_ACCOUNT
from bench.figures import Line, Section
from bench.fleet import make_accounts
from bench.machine import on_all_cores
from bench.measure import Site
from cadenza.core.money import Price
from cadenza.core.records import Outcome, Usage
from cadenza.fleet.presence import Presence
from cadenza.ledger.rules import HeldCredit, Hold
from cadenza.ledger.writer import LedgerWriter
from cadenza.observe import Observer, make_log
from cadenza.store.address import open_store

PAIRS, PAIRS_QUICK = (
    {1: 1500, 16: 8000, 64: 8000, 256: 8000},
    {1: 150, 16: 600, 64: 600, 256: 600},
)  # by how many at once
ACCOUNT, KEY = f"acct_bench_{FIRST_ACCOUNT}", f"key_bench_{FIRST_ACCOUNT}"
COMMITS = "cadenza_ledger_commits_total"


def measure_ledger(site: Site) -> list[Section]:
    site.step("the ledger")
    with on_all_cores():
        pairs = PAIRS_QUICK if site.is_quick else PAIRS
        lines = [measure_writer(at_once, count, site.folder) for at_once, count in pairs.items()]
    note = "A hold and its settlement, so many pairs at once; all that waits shares a commit."
    return [Section(title="The ledger's writer alone", note=note, lines=lines)]


def measure_writer(at_once: int, pairs: int, folder: Path) -> Line:
    """The writer alone: nobody else in the process, nobody else at the store."""
    url = f"sqlite:///{folder}/ledger-{at_once}.db"
    make_accounts(url, 1)
    return asyncio.run(_measure_writer(at_once, pairs, url, folder / f"ledger-{at_once}.log"))


async def _measure_writer(at_once: int, pairs: int, url: str, log: Path) -> Line:
    with log.open("w") as written:
        store, observer = open_store(url), Observer(make_log(written))
        presence = Presence(store)
        writer = LedgerWriter(store, observer, presence)
        await presence.start()
        await writer.start()
        numbers, began_s, took_s = iter(range(pairs)), time.perf_counter(), list[tuple[float, float]]()

        async def work() -> None:
            for number in numbers:
                took_s.append(await _pair(writer, number))

        await asyncio.gather(*(work() for _ in range(at_once)))
        seconds = time.perf_counter() - began_s
        await writer.stop()
        await presence.stop()
        await store.close()
    commits = observer.metrics.registry.get_sample_value(COMMITS) or 0
    figures = {"pairs_per_s": pairs / seconds, "commits_per_1000": 1000 * commits / pairs}
    for name, times_s in zip(("hold", "end"), zip(*took_s, strict=True), strict=True):
        percentiles_ms = [1000 * one for one in statistics.quantiles(times_s, n=100)]
        figures |= {f"{name}_p50_ms": percentiles_ms[49], f"{name}_p99_ms": percentiles_ms[98]}
    return Line(subject=f"{at_once}", figures=figures)


async def _pair(writer: LedgerWriter, number: int) -> tuple[float, float]:
    """The seconds that the hold and the end of a request take."""
    ids, now_ms, began_s = (f"req-{number}", f"bench-{number}"), time.time_ns() // 1_000_000, time.perf_counter()
    hold = Hold(ids[1], ACCOUNT, KEY, "forte", 100, 1024, Price(1070, 3450), stream=False, started_at=now_ms)
    held = await writer.hold(hold)
    held_s = time.perf_counter()
    assert isinstance(held, HeldCredit)
    ended = Outcome(
        ids[0], "chat", 200, 2, now_ms, KEY, ACCOUNT, ids[1], "forte", provider="bench", usage=Usage(100, 50)
    )
    await writer.end(ended)
    return held_s - began_s, time.perf_counter() - held_s
