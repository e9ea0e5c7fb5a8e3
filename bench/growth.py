"""Cost against the size of the store: first accounts and keys, then the length of the ledger, in one growing store.

At each size the service is restarted, many keys send requests in turn, and `cadenza ledger check` must pass.
"""

import time
from pathlib import Path

import msgspec

from bench.alone import measure_load
from bench.bulk import SAMPLE, BulkStore
from bench.figures import Line, Section
from bench.gateways.base import Running, running
from bench.gateways.cadenza import CLASS, Cadenza
from bench.load import Load, percentile
from bench.machine import CannotRun, on_all_cores
from bench.measure import PLAIN_AT_ONCE, Site
from bench.workload import PLAIN, Target

WARM_S = 0.5


class Sizes(msgspec.Struct, frozen=True):
    """The sizes to measure, and the seconds of load at each."""

    accounts: tuple[int, ...]
    charges: tuple[int, ...]
    seconds: float


SCALES = {
    "quick": Sizes((1, 10_000), (10_000, 100_000), 1.0),
    "full": Sizes((1, 1_000, 100_000, 1_000_000), (100_000, 1_000_000, 10_000_000), 6.0),
}


def measure_growth(site: Site, scale: str) -> list[Section]:
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
        Section(title="Keys and accounts in the store", note=note, lines=by_accounts, axis="keys, one per account"),
        Section(
            title="Ledger length",
            note=f"The same load with {sizes.accounts[-1]:,} accounts; every fourth charge is of the first.",
            lines=by_charges,
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
