"""What one account's load does to the chats of another: `make bench ARGS=--neighbours`.

For each load (bench/neighbour_loads.py), the short chats of a second account are timed alone, and then beside it, on
SQLite and on Postgres. The service has one core, and clients, load and upstream the other one.
"""

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import uvloop

from bench import backends
from bench.bulk import in_store
from bench.figures import Line, Section
from bench.fleet import make_accounts, running_fleet
from bench.gateways.cadenza import Cadenza
from bench.gateways.install import ROOT
from bench.goals import NEIGHBOURS
from bench.load import Load, LoadResult, drive, percentile
from bench.machine import GATEWAY_CORE, LOAD_CORE, CannotRun, ProcessTree, on_all_cores
from bench.measure import Site
from bench.neighbour_loads import LOADS, PASSWORD, Heavy
from bench.workload import PLAIN, Target
from cadenza.core.records import COMMAND_LINE
from cadenza.parts.site.accounts import set_password

STORES = ("SQLite", "Postgres")
ERASED = 20
CHATS_AT_ONCE = 4
CHAT_PAUSE_S = 0.02
BEGUN_S = 120.0
SEARCH = """
[grounding.search]
engine = "searxng"
url = "http://127.0.0.1:{upstream_port}"
"""
NOTE = (
    "Short chats on {chats} connections. The account with the load has {rows:,} requests. Done and refused are its own."
)


class Size(msgspec.Struct, frozen=True):
    """Seconds for each load, alone and beside it, and the metering rows of the account."""

    alone_s: float
    beside_s: float
    rows: int


FULL = Size(alone_s=5.0, beside_s=12.0, rows=1_000_000)
QUICK = Size(alone_s=1.5, beside_s=4.0, rows=100_000)


def measure_neighbours(site: Site) -> list[Section]:
    return [_measure_store(name, site, QUICK if site.is_quick else FULL) for name in STORES]


def _measure_store(store: str, site: Site, size: Size) -> Section:
    site.step(f"{store}: a long ledger")
    folder, lines = site.folder / f"neighbours-{store}", list[Line]()
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(_store_url(store, folder))
        serve = Cadenza().configure(folder, site.upstream_port, url, more=SEARCH)
        keys = _make_accounts(url, size.rows)
        [one] = stack.enter_context(running_fleet(serve, 1, keys, GATEWAY_CORE)).members
        heavy_key, chat_key, *_ = keys
        emails = [f"{number}@example.org" for number in (0, *range(2, 2 + ERASED))]
        heavy = Heavy(one.target.port, heavy_key, emails, str(folder))
        target = msgspec.structs.replace(one.target, headers={"authorization": f"Bearer {chat_key}"})
        for load in LOADS:
            site.step(f"{store}: chats beside {load}")
            try:
                lines.append(measure_load(load, heavy, target, size))
            except CannotRun as reason:
                lines.append(Line(subject=load, figures={}, error=str(reason)))
    return Section(
        title=NEIGHBOURS + store, note=NOTE.format(chats=CHATS_AT_ONCE, rows=size.rows), axis="load", lines=lines
    )


@contextlib.contextmanager
def _store_url(store: str, folder: Path) -> Iterator[str]:
    if store == "SQLite":
        yield f"sqlite:///{folder}/data/cadenza.db"
        return
    with contextlib.ExitStack() as stack:
        with on_all_cores():
            socket_path = stack.enter_context(backends.postgres())
        yield backends.url_of(socket_path)


def measure_load(name: str, heavy: Heavy, target: Target, size: Size) -> Line:
    alone = _chats(target, size.alone_s)
    log = Path(heavy.folder) / f"{name.replace(' ', '-')}.log"
    command = [sys.executable, "-m", "bench.neighbour_loads", name, msgspec.json.encode(heavy).decode()]
    with ProcessTree(command, LOAD_CORE, log, {"PYTHONPATH": str(ROOT)}) as tree:
        tree.wait_until(lambda: "begun" in log.read_text(), BEGUN_S)
        beside = _chats(target, size.beside_s)
        error = None if tree.is_running or name == "erasure" else f"the load ended: {tree.log_tail()}"
    replies = Counter(line < "400" for line in log.read_text().split() if line.isdigit())
    chats = {"alone": alone.took_ms, "beside": beside.took_ms}
    times = {f"{name}_p{percent}_ms": percentile(ms, percent) for name, ms in chats.items() for percent in (50, 99)}
    figures = {**times, "done": float(replies[True]), "refused": float(replies[False])}
    return Line(subject=name, figures=figures, error=error or beside.error or alone.error)


def _chats(target: Target, seconds: float) -> LoadResult:
    load = Load(target.port, [target.request(PLAIN)], PLAIN, CHATS_AT_ONCE, seconds, CHAT_PAUSE_S)
    return uvloop.run(drive(load))


def _make_accounts(url: str, rows: int) -> Sequence[str]:
    """The first has the ledger and a password, the second one chats, and the others are there to be erased."""
    bulk = make_accounts(url, 1)
    bulk.grow_charges(rows)
    bulk.grow_accounts(2 + ERASED)
    now_ms = time.time_ns() // 1_000_000
    asyncio.run(in_store(url, lambda store: set_password(store, "0@example.org", PASSWORD, COMMAND_LINE, now_ms)))
    return bulk.secrets
