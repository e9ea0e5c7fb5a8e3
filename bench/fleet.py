"""Cadenza on Postgres, and on Valkey, beside the embedded default: `python -m bench.fleet`, about four minutes.

One to four processes serve plain requests of 1, 16 and 1,000 accounts, with and without a network between them and
their stores. Gateways, stores, load and upstream share the machine, so requests/s compare setups and are no capacity.
The CPU is that of the gateways alone. Postgres commits as durably as SQLite does.
"""

import argparse
import asyncio
import contextlib
import re
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from tests.postgres import OWNER

from bench import backends, measure
from bench.figures import Line, Section, Timing
from bench.fleet_store import Accounts, make_accounts
from bench.gateways.base import Launch, Running, free_port, wait_for_reply
from bench.gateways.cadenza import CLASS, CONFIG, Cadenza
from bench.load import Load, LoadResult, drive, percentile
from bench.machine import CannotRun, ProcessTree, on_all_cores
from bench.measure import PLAIN_AT_ONCE, Site, measure_times
from bench.report import render_section
from bench.testbed import progress_bar, upstream
from bench.workload import PLAIN, Target

ACCOUNTS = (1, 16, 1_000)
PROCESSES = (1, 2, 3, 4)
ROUND_TRIP_MS = 1.4
READY_S = 90.0
WARM_S = 0.4
TIMED_AT_ONCE = 64
SQLITE = "sqlite:///./data/cadenza.db"
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
    accounts: Accounts

    @property
    def cpu_s(self) -> float:
        return sum(member.tree.cpu_s for member in self.members)

    def commits(self) -> float:
        """Transactions of the ledger so far."""
        return sum(_commits(member.target.port) for member in self.members)


def main() -> int:
    options = read_options()
    console = Console(stderr=True)
    size = FULL if options.full else QUICK
    try:
        with (
            upstream() as (folder, port),
            progress_bar(console, count_steps(has_valkey=options.valkey)) as step,
            setups(folder, has_valkey=options.valkey) as chosen,
        ):
            sections = measure_fleets(chosen, Site(folder, port, measure.QUICK, step), size)
    except CannotRun as reason:
        console.print(f"bench: {reason}", markup=False)
        return 1
    for section in sections:
        sys.stdout.write(render_section(section) + "\n\n")
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description="Measure Cadenza on shared stores.")
    parser.add_argument("--full", action="store_true", help="longer loads and steadier figures; takes ten minutes")
    parser.add_argument("--valkey", action="store_true", help="also measure with shared state in Valkey or Redis")
    return parser.parse_args()


@contextlib.contextmanager
def setups(folder: Path, *, has_valkey: bool) -> Iterator[list[Setup]]:
    """The setups to compare, the embedded default first. What is behind them runs until the block ends."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(on_all_cores())
        socket_path = stack.enter_context(backends.postgres())
        far_port = stack.enter_context(backends.link(str(socket_path), ROUND_TRIP_MS, folder))
        near_url = f"postgresql://{OWNER}@/postgres?host={socket_path.parent}"
        far_url = f"postgresql://{OWNER}@127.0.0.1:{far_port}/postgres"
        chosen = [
            Setup("SQLite"),
            Setup("Postgres", near_url),
            Setup("Postgres", far_url, round_trip_ms=ROUND_TRIP_MS),
        ]
        if has_valkey:
            near_port = stack.enter_context(backends.valkey(folder))
            far_port = stack.enter_context(backends.link(str(near_port), ROUND_TRIP_MS, folder))
            both = "Postgres and Valkey"
            chosen.append(Setup(both, near_url, f"valkey://127.0.0.1:{near_port}/0"))
            chosen.append(Setup(both, far_url, f"valkey://127.0.0.1:{far_port}/0", ROUND_TRIP_MS))
        yield chosen


def count_steps(*, has_valkey: bool) -> int:
    return (5 if has_valkey else 3) * len(PROCESSES)


def measure_fleets(chosen: Sequence[Setup], site: Site, size: Size) -> list[Section]:
    plain, timed, default_us = list[Line](), list[Line](), dict[int, float]()
    direct = measure_times(Target(site.upstream_port), TIMED_AT_ONCE, size.timed_s)
    by_store: dict[str, Accounts] = {}
    for number, setup in enumerate(chosen):
        home = site.folder / f"fleet-{number}"
        configure(home, setup, site.upstream_port)
        store = setup.name.partition(" ")[0]
        if store not in by_store:  # every Postgres is the same one, also behind a link
            by_store[store] = make_accounts(setup.store_url, home, max(ACCOUNTS))
        for processes in PROCESSES:
            site.step(f"{_describe(setup)}, {_count(processes, 'process')}")
            with running_fleet(home, processes, by_store[store]) as fleet:
                lines = [measure_plain(fleet, setup, accounts, size.plain_s) for accounts in ACCOUNTS]
                plain += [_with_ratio(line, default_us) for line in lines]
                if processes == 1:
                    timed.append(measure_first(fleet, setup, direct, size.timed_s))
    note = (
        f"Plain requests at {PLAIN_AT_ONCE} connections. The ratio is to SQLite, with one process and as many accounts."
    )
    return [
        Section(title="State shared by several processes", note=note, lines=plain),
        Section(
            title=f"First token with {TIMED_AT_ONCE} streams at once", note="Added to the upstream's.", lines=timed
        ),
    ]


def configure(home: Path, setup: Setup, upstream_port: int) -> None:
    home.mkdir()
    config = CONFIG.format(upstream_port=upstream_port).replace(SQLITE, setup.store_url)
    (home / "cadenza.toml").write_text(f'[shared_state]\nurl = "{setup.shared_url}"\n{config}')


@contextlib.contextmanager
def running_fleet(home: Path, processes: int, accounts: Accounts, core: int | None = None) -> Iterator[Fleet]:
    """Start the processes, on every core if it is None, and wait until each has served a request."""
    headers = {"authorization": f"Bearer {accounts.keys[0]}"}
    with contextlib.ExitStack() as stack:
        members = []
        for number in range(processes):
            port = free_port()
            command: list[str | Path] = [
                Cadenza().program,
                "serve",
                "--config",
                home / "cadenza.toml",
                "--port",
                str(port),
            ]
            launch = Launch(command, Target(port, CLASS, headers))
            tree = stack.enter_context(ProcessTree(command, core, home / f"{number}.log"))
            target = wait_for_reply(tree, launch, time.perf_counter() + READY_S)
            members.append(Running(tree, target, 0.0))
        yield Fleet(members, accounts)


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
            "p50_ms": percentile(result.took_ms, 50),
            "p99_ms": percentile(result.took_ms, 99),
        },
        error=result.error,
    )


async def drive_all(fleet: Fleet, accounts: int, seconds: float) -> LoadResult:
    """The load spread evenly over the processes; each of them gets requests of all accounts."""
    keys, at_once, loads = fleet.accounts.keys[:accounts], PLAIN_AT_ONCE // len(fleet.members), []
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
    figures = {"first_p50_ms": added.first_p50_ms, "first_p99_ms": added.first_p99_ms, "gap_p99_ms": added.gap_p99_ms}
    return Line(subject=_describe(setup), figures=figures, error=added.error)


def _with_ratio(line: Line, default_us: dict[int, float]) -> Line:
    """The line with its CPU as a multiple of the first that was measured for as many accounts."""
    accounts, cpu_us = int(line.size or 0), line.figures["cpu_us"]
    ratio = cpu_us / default_us.setdefault(accounts, cpu_us) if cpu_us else 0.0
    return msgspec.structs.replace(line, figures={**line.figures, "cpu_ratio": ratio})


def _describe(setup: Setup) -> str:
    return f"{setup.name}, {setup.round_trip_ms} ms away" if setup.round_trip_ms else setup.name


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}{'es' if what.endswith('s') else 's'}"


def _commits(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        found = COMMITS.search(page.read().decode())
    return float(found[1]) if found else 0.0


if __name__ == "__main__":
    sys.exit(main())
