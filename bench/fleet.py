"""Cadenza on Postgres, and on Valkey, beside the embedded default: `make bench ARGS="--parts fleet"`, or `valkey`.

One to four processes serve plain requests of 1, 16 and 1,000 accounts, with and without a network between them and
their stores. Gateways, stores, load and upstream share the machine, so requests/s compare setups and are no capacity.
The CPU is that of the gateways alone. Postgres commits as durably as SQLite does.
"""

import asyncio
import contextlib
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import uvloop
from tests.postgres import OWNER

from bench import backends
from bench.bulk import BulkStore, in_store
from bench.figures import Line, Section, Timing
from bench.gateways.base import Launch, Running, free_port, wait_for_reply
from bench.gateways.cadenza import CLASS, SQLITE, Cadenza
from bench.load import Load, LoadResult, drive, percentile
from bench.machine import ProcessTree, on_all_cores
from bench.measure import PLAIN_AT_ONCE, Site, measure_times, with_ratio
from bench.workload import PLAIN, Target
from cadenza.store.migrate import migrate

ACCOUNTS = (1, 16, 1_000)
PROCESSES = (1, 2, 3, 4)
ROUND_TRIP_MS = 1.4
WARM_S = 0.4
TIMED_AT_ONCE = 64
COMMITS = re.compile(r"^cadenza_ledger_commits_total ([0-9.e+]+)$", re.MULTILINE)


class Setup(msgspec.Struct, frozen=True):
    """Where a fleet keeps its state. `round_trip_ms` is how far away that is."""

    name: str
    store_url: str = SQLITE
    shared_url: str = "memory://"
    round_trip_ms: float = 0.0


class Size(msgspec.Struct, frozen=True):
    """The seconds of each load."""

    plain_s: float
    timed_s: float


QUICK = Size(plain_s=1.2, timed_s=1.5)
FULL = Size(plain_s=8.0, timed_s=8.0)


class Fleet(msgspec.Struct, frozen=True):
    """Processes that serve from the same state, and the accounts that ask them."""

    members: Sequence[Running]
    keys: Sequence[str]  # one of each account

    @property
    def cpu_s(self) -> float:
        return sum(member.tree.cpu_s for member in self.members)

    def commits(self) -> float:
        """Transactions of the ledger so far."""
        return sum(_commits(member.target.port) for member in self.members)


def measure_fleet(site: Site, *, has_valkey: bool = False) -> list[Section]:
    with setups(site.folder, has_valkey=has_valkey) as chosen:
        return measure_fleets(chosen, site, QUICK if site.is_quick else FULL)


def measure_with_valkey(site: Site) -> list[Section]:
    return measure_fleet(site, has_valkey=True)


@contextlib.contextmanager
def setups(folder: Path, *, has_valkey: bool) -> Iterator[list[Setup]]:
    """The setups to compare, the embedded default first. What is behind them runs until the block ends."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(on_all_cores())
        socket_path = stack.enter_context(backends.postgres())
        far_port = stack.enter_context(backends.link(str(socket_path), ROUND_TRIP_MS, folder))
        near_url = backends.url_of(socket_path)
        far_url = f"postgresql://{OWNER}@127.0.0.1:{far_port}/postgres"
        chosen = [Setup("SQLite"), Setup("Postgres", near_url), Setup("Postgres", far_url, round_trip_ms=ROUND_TRIP_MS)]
        if has_valkey:
            near_port = stack.enter_context(backends.valkey(folder))
            far_port = stack.enter_context(backends.link(str(near_port), ROUND_TRIP_MS, folder))
            both = "Postgres and Valkey"
            chosen.append(Setup(both, near_url, f"valkey://127.0.0.1:{near_port}/0"))
            chosen.append(Setup(both, far_url, f"valkey://127.0.0.1:{far_port}/0", ROUND_TRIP_MS))
        yield chosen


def measure_fleets(chosen: Sequence[Setup], site: Site, size: Size) -> list[Section]:
    plain, timed = list[Line](), list[Line]()
    direct = measure_times(Target(site.upstream_port), TIMED_AT_ONCE, size.timed_s)
    by_store: dict[str, Sequence[str]] = {}
    for number, setup in enumerate(chosen):
        home = site.folder / f"fleet-{number}"
        serve = Cadenza().configure(home, site.upstream_port, setup.store_url, setup.shared_url)
        store = setup.name.partition(" ")[0]
        if store not in by_store:  # every Postgres is the same one, also behind a link
            by_store[store] = make_accounts(setup.store_url.replace("///.", f"///{home}"), max(ACCOUNTS)).secrets
        for processes in PROCESSES:
            site.step(f"{_describe(setup)}, {_count(processes, 'process')}")
            with running_fleet(serve, processes, by_store[store]) as fleet:
                lines = [measure_plain(fleet, setup, accounts, size.plain_s) for accounts in ACCOUNTS]
                plain += lines
                if processes == 1:
                    timed.append(measure_first(fleet, setup, direct, size.timed_s))
    note = (
        f"Plain requests at {PLAIN_AT_ONCE} connections. The ratio is to SQLite, with one process and as many accounts."
    )
    plain, title = with_ratio(plain, lambda line: line.size), f"First token with {TIMED_AT_ONCE} streams at once"
    return [
        Section(title="State shared by several processes", note=note, lines=plain),
        Section(title=title, note="Added to the upstream's.", lines=timed),
    ]


def make_accounts(store_url: str, accounts: int) -> BulkStore:
    """A store with so many accounts, each with credit and a key that is known."""
    asyncio.run(in_store(store_url, migrate))
    bulk = BulkStore(store_url, known=accounts)
    bulk.grow_accounts(accounts)
    return bulk


@contextlib.contextmanager
def running_fleet(
    serve: Sequence[str], processes: int, keys: Sequence[str], core: int | None = None
) -> Iterator[Fleet]:
    """Start the processes, on every core if it is None, and wait until each has served a request."""
    headers, home = {"authorization": f"Bearer {keys[0]}"}, Path(serve[-2]).parent
    with contextlib.ExitStack() as stack:
        members = []
        for number in range(processes):
            port = free_port()
            launch = Launch([*serve, str(port)], Target(port, CLASS, headers))
            tree = stack.enter_context(ProcessTree(launch.command, core, home / f"{number}.log"))
            members.append(Running(tree, wait_for_reply(tree, launch), 0.0))
        yield Fleet(members, keys)


def measure_plain(fleet: Fleet, setup: Setup, accounts: int, seconds: float) -> Line:
    uvloop.run(drive_all(fleet, accounts, WARM_S))
    before_s, commits = fleet.cpu_s, fleet.commits()
    result = uvloop.run(drive_all(fleet, accounts, seconds))
    served = max(1, result.good)
    return Line(
        subject=f"{_describe(setup)}, {_count(len(fleet.members), 'process')}, {_count(accounts, 'account')}",
        size=accounts,
        figures={
            "requests_per_s": result.per_s,
            "cpu_us": 1e6 * (fleet.cpu_s - before_s) / served,
            "commits_per_1000": 1000 * (fleet.commits() - commits) / served,
            **{f"p{percent}_ms": percentile(result.took_ms, percent) for percent in (50, 99)},
        },
        error=result.error,
    )


async def drive_all(fleet: Fleet, accounts: int, seconds: float) -> LoadResult:
    """The load spread evenly over the processes; each of them gets requests of all accounts."""
    keys, at_once, loads = fleet.keys[:accounts], PLAIN_AT_ONCE // len(fleet.members), []
    for number, member in enumerate(fleet.members):
        first = number * len(keys) // len(fleet.members)  # so that the processes do not go through them in step
        targets = [Target(member.target.port, CLASS, {"authorization": f"Bearer {key}"}) for key in keys]
        requests = [target.request(PLAIN) for target in (*targets[first:], *targets[:first])]
        loads.append(Load(member.target.port, requests, PLAIN, at_once, seconds))
    results, total = await asyncio.gather(*map(drive, loads)), LoadResult()
    for result in results:
        total.good += result.good
        total.seconds = max(total.seconds, result.seconds)
        total.errors += result.errors
        total.took_ms += result.took_ms
    return total


def measure_first(fleet: Fleet, setup: Setup, direct: Timing, seconds: float) -> Line:
    added = measure_times(fleet.members[0].target, TIMED_AT_ONCE, seconds).minus(direct)
    figures = {name: getattr(added, name) for name in ("first_p50_ms", "first_p99_ms", "gap_p99_ms")}
    return Line(subject=_describe(setup), figures=figures, error=added.error)


def _describe(setup: Setup) -> str:
    return f"{setup.name}, {setup.round_trip_ms} ms away" if setup.round_trip_ms else setup.name


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}{'es' if what.endswith('s') else 's'}"


def _commits(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        found = COMMITS.search(page.read().decode())
    return float(found[1]) if found else 0.0
