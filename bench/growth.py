"""Cost per request against what grows: `make bench ARGS="--parts growth"`.

Connections and the length of bodies; then accounts and keys and the length of the ledger, in one growing store. At each
size of the store the service is restarted, many keys send requests in turn, and `cadenza ledger check` must pass.
"""

import time

import msgspec

from bench.bulk import SAMPLE, BulkStore
from bench.figures import Line, Section
from bench.gateways.base import Running, running
from bench.gateways.cadenza import CLASS, Cadenza
from bench.load import Load
from bench.machine import CannotRun, on_all_cores
from bench.measure import PLAIN_AT_ONCE, Site, line_of, with_ratio
from bench.workload import PLAIN, TEXT, Target

WARM_S = 0.5
CONNECTIONS = (1, 8, 64, 512, 2_048)
BODY_BYTES = (1_000, 10_000, 60_000, 70_000, 100_000, 1_000_000, 4_000_000, 32 * 2**20)
TEXT_BYTES_MAX = 4_000_000  # as much as fits into the context; white space fills the rest of a body
BODIES_AT_ONCE = 4


class Sizes(msgspec.Struct, frozen=True):
    """The sizes to measure, and the seconds of load at each."""

    accounts: tuple[int, ...]
    charges: tuple[int, ...]
    seconds: float


QUICK = Sizes((1, 10_000), (10_000, 100_000), 1.0)
FULL = Sizes((1, 1_000, 100_000, 1_000_000), (100_000, 1_000_000, 10_000_000), 6.0)


def measure_growth(site: Site) -> list[Section]:
    sizes = QUICK if site.is_quick else FULL
    return [*measure_loads(site, sizes.seconds), *measure_stores(site, sizes)]


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
            "one at a time" if at_once == 1 else f"{at_once} connections": [
                measure_size(started, size, Load(started.target.port, [body], PLAIN, at_once, seconds))
                for size in BODY_BYTES
                for body in [request(started, size)]
            ]
            for at_once in (1, BODIES_AT_ONCE)
        }
    note = "Plain requests. The CPU time includes the child processes that parse and count long bodies."
    return [
        Section(title="Connections", note="Plain requests.", lines=with_ratio(by_connections), axis="connections"),
        *(
            Section(title=f"Length of the body, {at_once}", note=note, lines=with_ratio(lines), axis="bytes")
            for at_once, lines in by_bytes.items()
        ),
    ]


def measure_size(started: Running, size: int, load: Load) -> Line:
    line_of("", 0, started, msgspec.structs.replace(load, seconds=WARM_S))
    return line_of(f"{size:,}", size, started, load)


def request(started: Running, size: int) -> bytes:
    """A request with a body of this many bytes."""
    shortest = started.target.request(PLAIN, "")
    body = shortest.partition(b"\r\n\r\n")[2]
    text = TEXT * (TEXT_BYTES_MAX // len(TEXT))
    whole = started.target.request(PLAIN, text[: max(0, size - len(body))]).partition(b"\r\n\r\n")[2]
    return started.target.head(size) + whole.ljust(size)


def measure_stores(site: Site, sizes: Sizes) -> list[Section]:
    place = Store(site)
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
    same = f"The same load with {sizes.accounts[-1]:,} accounts; every fourth charge is of the first."
    return [
        Section(title="Keys and accounts in the store", note=note, lines=with_ratio(by_accounts), axis="keys"),
        Section(title="Ledger length", note=same, lines=with_ratio(by_charges), axis="charges in the ledger"),
    ]


class Store:
    """A store that grows while the service is stopped."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._folder = site.folder / "growth"
        self._gateway = Cadenza()
        self._gateway.prepare(self._folder, 0, site.upstream_port)
        self.store = BulkStore(f"sqlite:///{self._folder}/data/cadenza.db")

    def measure(self, size: int, seconds: float) -> Line:
        known = self.store.secrets
        keys = known[:: -(-len(known) // SAMPLE)]
        try:
            with running(self._gateway, self._folder, self._site.upstream_port) as started:
                port = started.target.port
                targets = [Target(port, CLASS, {"authorization": f"Bearer {key}"}) for key in keys]
                load = Load(port, [one.request(PLAIN) for one in targets], PLAIN, PLAIN_AT_ONCE, seconds)
                line = measure_size(started, size, load)
                of_process = {"cold_start_s": started.cold_start_s, "rss_mb": started.tree.rss_mb}
            return msgspec.structs.replace(line, figures={**line.figures, **of_process, **self._check()})
        except CannotRun as reason:
            return Line(subject=f"{size:,}", size=size, figures={}, error=str(reason))

    def _check(self) -> dict[str, float]:
        began_s = time.perf_counter()
        self._gateway.cli(self._folder, "ledger", "check")
        took_s, files = time.perf_counter() - began_s, (self._folder / "data").rglob("*")
        return {
            "ledger_check_s": took_s,
            "store_mb": sum(file.stat().st_size for file in files if file.is_file()) / 1e6,
        }
