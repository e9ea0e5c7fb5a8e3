"""Cadenza: one process on SQLite, or three on Postgres, each with a link of its own to it."""

import asyncio
import contextlib
import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.fleet.ports import free_port
from tests.link import Link
from tests.postgres import OWNER

from bench import backends
from bench.bulk import in_store
from bench.gateways.cadenza import CLASS, Cadenza
from bench.money.clients import ChatAddress
from bench.money.deployment import GatewayProcess, GatewayUnderTest, Ledger, MoneyGateway, started
from bench.money.reckon import Billed
from cadenza.control.account.accounts import create_account
from cadenza.control.keys import KeyOrder, create_key
from cadenza.store.migrate import migrate
from cadenza.store.store import Store

PROCESSES = 3
PROMISES = (
    "A whole reply is charged before its last byte.",
    "A kill loses what a stream delivered in 0.75 s at most, and unstreamed replies that run.",
    "A balance is never passed. No process accepts a revoked key once the command has returned.",
)


class CadenzaDeployment(GatewayUnderTest):
    """Accounts are made in the store; keys are revoked, and charges read, with the command line."""

    def __init__(self, folder: Path, store_url: str, processes: Sequence[GatewayProcess]) -> None:
        self.processes = processes
        self.address = ChatAddress([process.port for process in processes], CLASS)
        self.settings = {"config": "the defaults, without limits on rate and concurrency"}
        self._folder = folder  # of the command line; it has no link to break
        self._store_url = store_url
        self._key_ids: dict[str, str] = {}

    def create(self, wallet: str, budget_nano: int) -> str:
        secrets, now_ms, email = list[str](), time.time_ns() // 1_000_000, f"{wallet}@example.org"

        async def create(store: Store) -> None:
            made = await create_account(store, email, budget_nano, CLASS, now_ms)
            secret, key = await create_key(store, made.owner, KeyOrder("bench"), now_ms)
            secrets.append(secret)
            self._key_ids[wallet] = key.id

        asyncio.run(in_store(self._store_url, create))
        return secrets[0]

    def revoke(self, wallet: str) -> None:
        Cadenza().cli(self._folder, "key", "revoke", self._key_ids[wallet])

    def read(self) -> Ledger:
        entries = [json.loads(line) for line in self._cli("ledger", "export", "--format", "jsonl").splitlines()]
        corrections: dict[str, int] = defaultdict(int)
        for entry in entries:
            if entry["kind"] == "correction":
                corrections[entry["completion_id"]] += entry["amount_nano"]
        spent: dict[str, int] = defaultdict(int)
        billed = []
        for entry in entries:
            wallet = entry["account"].partition("@")[0]
            if entry["kind"] == "charge":
                id_, given_back = entry["completion_id"], corrections.pop(entry["completion_id"], 0)
                billed.append(Billed(wallet, id_, entry["prompt_tokens"], -entry["amount_nano"] - given_back))
            if entry["kind"] in ("charge", "correction"):
                spent[wallet] -= entry["amount_nano"]
        return Ledger(spent, billed, self._check())

    def _cli(self, *words: str) -> str:
        return Cadenza().cli(self._folder, *words)

    def _check(self) -> str:
        command = [str(Cadenza().program), "ledger", "check", "--config", str(self._folder / "cadenza.toml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() + done.stderr.strip()


class CadenzaGateway(MoneyGateway):
    """The embedded default, or three processes on Postgres without Valkey, each with a link of its own to it."""

    promises = PROMISES

    def __init__(self, *, on_postgres: bool) -> None:
        self.name = "cadenza-postgres" if on_postgres else "cadenza-sqlite"
        self.settle_s = 12.0 if on_postgres else 4.0  # a dead process is swept after six seconds
        self._on_postgres = on_postgres

    def install(self) -> str:
        return Cadenza().install()

    @contextlib.contextmanager
    def running(self, folder: Path, upstream_port: int) -> Iterator[GatewayUnderTest]:
        url, processes = f"sqlite:///{folder}/data/cadenza.db", list[GatewayProcess]()
        with contextlib.ExitStack() as stack:
            if self._on_postgres:
                socket_path = stack.enter_context(backends.postgres())
                url = backends.url_of(socket_path)
                Cadenza().configure(folder, upstream_port, url)
                for number in range(PROCESSES):
                    link = stack.enter_context(Link(socket_path).running())
                    linked_url = f"postgresql://{OWNER}@127.0.0.1:{link.port}/postgres"
                    processes.append(_make_process(folder / str(number), linked_url, upstream_port, link))
            else:
                processes.append(_make_process(folder, url, upstream_port))
            asyncio.run(in_store(url, migrate))
            stack.enter_context(started(processes))
            yield CadenzaDeployment(folder, url, processes)


def _make_process(folder: Path, store_url: str, upstream_port: int, link: Link | None = None) -> GatewayProcess:
    serve = Cadenza().configure(folder, upstream_port, store_url)
    process = GatewayProcess(folder, free_port(), "/readyz", link)
    process.configure([*serve, str(process.port)])
    return process
