"""What serves a hosted service's mix: Cadenza in two set-ups, and beside it what a user would run instead."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from bench import backends
from bench.bulk import FIRST_ACCOUNT, in_store
from bench.fleet import make_accounts, running_fleet
from bench.gateways.base import Gateway, running
from bench.gateways.cadenza import Cadenza
from bench.gateways.nginx import Nginx
from bench.gateways.tensorzero import TensorZero
from bench.machine import GATEWAY_CORE, ProcessTree, on_core
from bench.mix import ACCOUNTS, CAPPED_EVERY, LITELLM, MODEL, OWN
from bench.money.litellm import LiteLLMOnPostgres
from bench.workload import Target
from cadenza.core.records import Cap
from cadenza.ledger.cap_rows import set_cap
from cadenza.store.store import Transaction

LITELLM_KEYS = 100  # it takes 30 ms to make one
LITELLM_EVERY = 10
LARGE_NANO = 100 * 10**9
SPARE = """
[providers.spare]
kind = "openai"
base_url = "http://127.0.0.1:{upstream_port}/v1"
retention = "zero"

[[classes.forte.routes]]
provider = "spare"
model = "bench"
order = 1
context_tokens = 1_000_000
max_output_tokens = 131_072
"""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A set-up that is ready. `charges` reads what each request was charged, in nano-dollars."""

    targets: Sequence[Target]
    trees: Sequence[ProcessTree] = ()
    stores: Sequence[int] = ()  # the processes of Postgres and Valkey
    keys: Sequence[str] = ()  # by account; all accounts share them if they are fewer
    every: int = 1  # it is sent every request of the mix, or every tenth
    charges: Callable[[], Counter[int]] | None = None


Starting = Callable[[Path, int], contextlib.AbstractContextManager[Served]]


def all_setups() -> dict[str, Starting]:
    sqlite, both = OWN
    gateways = (Nginx(), TensorZero())
    beside = {gateway.name: _plain(gateway) for gateway in gateways}
    return {sqlite: _on_sqlite, both: _on_both, **beside, LITELLM: _litellm}


def _plain(gateway: Gateway) -> Starting:
    @contextlib.contextmanager
    def start(folder: Path, upstream_port: int) -> Iterator[Served]:
        gateway.install()
        with running(gateway, folder, upstream_port) as started:
            yield Served(targets=[started.target], trees=[started.tree])

    return start


@contextlib.contextmanager
def _on_sqlite(folder: Path, upstream_port: int) -> Iterator[Served]:
    with _cadenza(folder, upstream_port, f"sqlite:///{folder}/data/cadenza.db", "memory://", 1) as served:
        yield served


@contextlib.contextmanager
def _on_both(folder: Path, upstream_port: int) -> Iterator[Served]:
    with contextlib.ExitStack() as stack:
        with on_core(GATEWAY_CORE):
            socket_path = stack.enter_context(backends.postgres())
        valkey_port = stack.enter_context(backends.valkey(folder.parent))
        urls = backends.url_of(socket_path), f"valkey://127.0.0.1:{valkey_port}/0"
        files = (socket_path.parent / "data" / "postmaster.pid", folder.parent / backends.VALKEY_PID)
        stores = [int(file.read_text().split()[0]) for file in files]
        served = stack.enter_context(_cadenza(folder, upstream_port, *urls, 2))
        yield msgspec.structs.replace(served, stores=stores)


@contextlib.contextmanager
def _cadenza(folder: Path, upstream_port: int, store_url: str, shared_url: str, processes: int) -> Iterator[Served]:
    """Every CAPPED_EVERYth account has a spend cap that is not reached."""
    serve = Cadenza().configure(folder, upstream_port, store_url, shared_url, SPARE)
    keys, now_ms = make_accounts(store_url, ACCOUNTS).secrets, time.time_ns() // 1_000_000

    def cap_keys(tx: Transaction) -> None:
        for number in range(FIRST_ACCOUNT + CAPPED_EVERY - 1, FIRST_ACCOUNT + ACCOUNTS, CAPPED_EVERY):
            set_cap(tx, f"acct_bench_{number}", f"key_bench_{number}", Cap(LARGE_NANO, "month"), now_ms)

    asyncio.run(in_store(store_url, lambda store: store.transact(cap_keys)))
    with running_fleet(serve, processes, keys, GATEWAY_CORE) as started:
        targets, trees = zip(*((one.target, one.tree) for one in started.members), strict=True)
        yield Served(targets=targets, trees=trees, keys=keys, charges=lambda: _charges(folder))


def _charges(folder: Path) -> Counter[int]:
    found = Counter[int]()
    for line in Cadenza().cli(folder, "ledger", "export", "--format", "jsonl").splitlines():
        entry = json.loads(line)
        if entry["kind"] in ("charge", "correction") and entry["request_id"].startswith("bench-"):
            found[int(entry["request_id"].removeprefix("bench-"))] -= entry["amount_nano"]
    return found


@contextlib.contextmanager
def _litellm(folder: Path, upstream_port: int) -> Iterator[Served]:
    gateway = LiteLLMOnPostgres(processes=1)
    gateway.install()
    with gateway.running(folder, upstream_port) as started:
        keys = [started.create(f"real-{number}", LARGE_NANO) for number in range(LITELLM_KEYS)]

        def charges() -> Counter[int]:
            found = Counter[int]()
            for one in started.read().billed:
                if one.id.startswith("chatcmpl-"):  # a request that failed has an id of LiteLLM's own
                    found[int(one.id.removeprefix("chatcmpl-"))] += one.amount_nano
            return found

        trees = [process.tree for process in started.processes]
        targets = [Target(process.port, MODEL) for process in started.processes]
        yield Served(targets=targets, trees=trees, keys=keys, every=LITELLM_EVERY, charges=charges)
