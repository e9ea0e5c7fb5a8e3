"""Cost per request against what grows: `python -m bench.growth` prints the tables, and `make bench` has them too.

Connections and the length of bodies; then accounts and keys and the length of the ledger, in one growing store. At each
size of the store the service is restarted, many keys send requests in turn, and `cadenza ledger check` must pass.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
from rich.console import Console

from bench.alone import measure_load
from bench.bulk import SAMPLE, BulkStore
from bench.figures import Line, Section
from bench.gateways.base import Running, running
from bench.gateways.cadenza import CLASS, Cadenza
from bench.load import Load, percentile
from bench.machine import CannotRun, on_all_cores
from bench.measure import PLAIN_AT_ONCE, QUICK, Site
from bench.report import render_section
from bench.testbed import progress_bar, upstream
from bench.workload import PLAIN, TEXT, Target

WARM_S = 0.5
CONNECTIONS = (1, 8, 64, 512, 2_048)
BODY_BYTES = (1_000, 10_000, 60_000, 70_000, 100_000, 1_000_000, 4_000_000, 32 * 2**20)
TEXT_BYTES_MAX = 4_000_000  # as much as fits into the context; white space fills the rest of a body
BODIES_AT_ONCE = 4


def main() -> int:
    options, console = read_options(), Console(stderr=True)
    try:
        with upstream() as (folder, port), progress_bar(console, count_steps(options.scale)) as step:
            sections = measure_growth(Site(folder, port, QUICK, step), options.scale)
    except CannotRun as reason:
        console.print(f"bench: {reason}", markup=False)
        return 1
    for section in sections:
        sys.stdout.write(render_section(section) + "\n\n")
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description="Measure cost against size.")
    parser.add_argument("--scale", choices=SCALES, default="quick", help="how large the store grows (%(default)s)")
    return parser.parse_args()


def count_steps(scale: str) -> int:
    return 2 + len(SCALES[scale].accounts) + len(SCALES[scale].charges)


def measure_growth(site: Site, scale: str) -> list[Section]:
    return [*measure_loads(site, SCALES[scale].seconds), *measure_stores(site, scale)]


def measure_loads(site: Site, seconds: float) -> list[Section]:
    with running(Cadenza(), site.folder / "loads", site.upstream_port) as started:
        site.step("connections")
        plain = started.target.request(PLAIN)
        by_connections = [
            measure_size(started, at_once, Load(started.target.port, [plain], PLAIN, at_once, seconds))
            for at_once in CONNECTIONS
        ]
        site.step("bodies")
        by_bytes = {
            at_once: [
                measure_size(started, size, Load(started.target.port, [body], PLAIN, at_once, seconds))
                for size in BODY_BYTES
                for body in [request(started, size)]
            ]
            for at_once in (1, BODIES_AT_ONCE)
        }
    return [
        Section(title="Connections", note="Plain requests.", lines=with_ratio(by_connections), axis="connections"),
        *(
            Section(
                title="Length of the body, " + ("one at a time" if at_once == 1 else f"{at_once} connections"),
                note="Plain requests. The CPU time includes the child processes that parse and count long bodies.",
                lines=with_ratio(lines),
                axis="bytes",
            )
            for at_once, lines in by_bytes.items()
        ),
    ]


def measure_size(started: Running, size: int, load: Load) -> Line:
    measure_load(started, msgspec.structs.replace(load, seconds=WARM_S))
    result, cpu_s = measure_load(started, load)
    figures = {
        "cpu_us": 1e6 * cpu_s / max(1, result.good),
        "p50_ms": percentile(result.took_ms, 50),
        "p99_ms": percentile(result.took_ms, 99),
        "max_ms": max(result.took_ms, default=0.0),
        "per_s": result.per_s,
    }
    return Line(subject=f"{size:,}", size=size, figures=figures, error=result.error)


def request(started: Running, size: int) -> bytes:
    """A request with a body of this many bytes."""
    shortest = started.target.request(PLAIN, "")
    body = shortest.partition(b"\r\n\r\n")[2]
    text = TEXT * (TEXT_BYTES_MAX // len(TEXT))
    whole = started.target.request(PLAIN, text[: max(0, size - len(body))]).partition(b"\r\n\r\n")[2]
    return started.target.head(size) + whole.ljust(size)


def with_ratio(lines: Iterable[Line]) -> list[Line]:
    """The lines with their CPU as a multiple of the first one's."""
    found = list(lines)
    least_us = found[0].figures.get("cpu_us") or 1.0
    return [
        msgspec.structs.replace(line, figures={**line.figures, "cpu_ratio": line.figures.get("cpu_us", 0) / least_us})
        for line in found
    ]


class Sizes(msgspec.Struct, frozen=True):
    """The sizes to measure, and the seconds of load at each."""

    accounts: tuple[int, ...]
    charges: tuple[int, ...]
    seconds: float


SCALES = {
    "quick": Sizes((1, 10_000), (10_000, 100_000), 1.0),
    "full": Sizes((1, 1_000, 100_000, 1_000_000), (100_000, 1_000_000, 10_000_000), 6.0),
}


def measure_stores(site: Site, scale: str) -> list[Section]:
    sizes, place = SCALES[scale], Store(site)
    by_accounts = []
    for accounts in sizes.accounts:
        site.step(f"store with {accounts:,} keys")
        with on_all_cores():
            place.store.grow_accounts(accounts)
        by_accounts.append(place.measure(accounts, sizes.seconds))
    by_charges = []
    for charges in sizes.charges:
        site.step(f"ledger with {charges:,} charges")
        with on_all_cores():
            place.store.grow_charges(charges)
        by_charges.append(place.measure(charges, sizes.seconds))
    note = f"Plain requests at {PLAIN_AT_ONCE} connections, using up to {SAMPLE:,} of the keys in turn."
    return [
        Section(
            title="Keys and accounts in the store",
            note=note,
            lines=with_ratio(by_accounts),
            axis="keys, one per account",
        ),
        Section(
            title="Ledger length",
            note=f"The same load with {sizes.accounts[-1]:,} accounts; every fourth charge is of the first.",
            lines=with_ratio(by_charges),
            axis="charges in the ledger",
        ),
    ]


class Store:
    """A store that grows while the service is stopped."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._folder = site.folder / "growth"
        self._folder.mkdir()
        self._gateway = Cadenza()
        self._gateway.configure(self._folder, site.upstream_port)
        self._gateway.prepare(self._folder, 0, site.upstream_port)
        self.store = BulkStore(f"sqlite:///{self._folder}/data/cadenza.db")

    def measure(self, size: int, seconds: float) -> Line:
        try:
            with running(self._gateway, self._folder, self._site.upstream_port) as started:
                figures, error = self._ask(started, seconds)
            figures |= self._check()
        except CannotRun as reason:
            return Line(subject=f"{size:,}", size=size, figures={}, error=str(reason))
        return Line(subject=f"{size:,}", size=size, figures=figures, error=error)

    def _ask(self, started: Running, seconds: float) -> tuple[dict[str, float], str | None]:
        port, known = started.target.port, self.store.secrets
        keys = known[:: -(-len(known) // SAMPLE)]
        requests = [Target(port, CLASS, {"authorization": f"Bearer {key}"}).request(PLAIN) for key in keys]
        measure_load(started, Load(port, requests, PLAIN, PLAIN_AT_ONCE, WARM_S))
        result, cpu_s = measure_load(started, Load(port, requests, PLAIN, PLAIN_AT_ONCE, seconds))
        figures = {
            "cpu_us": 1e6 * cpu_s / max(1, result.good),
            "p50_ms": percentile(result.took_ms, 50),
            "p99_ms": percentile(result.took_ms, 99),
            "max_ms": max(result.took_ms, default=0.0),
            "cold_start_s": started.cold_start_s,
            "rss_mb": started.tree.rss_mb,
        }
        return figures, result.error

    def _check(self) -> dict[str, float]:
        began_s = time.perf_counter()
        self._gateway.cli(self._folder, "ledger", "check")
        return {"ledger_check_s": time.perf_counter() - began_s, "store_mb": _folder_mb(self._folder / "data")}


def _folder_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


if __name__ == "__main__":
    sys.exit(main())
