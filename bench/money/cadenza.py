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
from bench.gateways.cadenza import CLASS, CONFIG, Cadenza
from bench.money.clients import ChatAddress
from bench.money.deployment import GatewayProcess, GatewayUnderTest, Ledger, MoneyGateway, started
from bench.money.reckon import Billed
from cadenza.control.account.accounts import create_account, get_owner
from cadenza.control.keys import KeyOrder, create_key
from cadenza.store.address import open_store
from cadenza.store.migrate import migrate

SQLITE = "sqlite:///./data/cadenza.db"
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
        return asyncio.run(self._create(wallet, budget_nano))

    async def _create(self, wallet: str, budget_nano: int) -> str:
        store, now_ms = open_store(self._store_url), time.time_ns() // 1_000_000
        try:
            email = f"{wallet}@example.org"
            await create_account(store, email, budget_nano, CLASS, now_ms)
            secret, key = await create_key(store, await get_owner(store, email), KeyOrder("bench"), now_ms)
        finally:
            await store.close()
        self._key_ids[wallet] = key.id
        return secret

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


class CadenzaOnSQLite(MoneyGateway):
    """The embedded default."""

    name = "cadenza-sqlite"
    settle_s = 4.0
    promises = PROMISES

    def install(self) -> str:
        return Cadenza().install()

    @contextlib.contextmanager
    def running(self, folder: Path, upstream_port: int) -> Iterator[GatewayUnderTest]:
        url = f"sqlite:///{folder}/data/cadenza.db"
        process = _make_process(folder, url, upstream_port)
        asyncio.run(_migrate(url))
        with started([process]):
            yield CadenzaDeployment(folder, url, [process])


class CadenzaOnPostgres(MoneyGateway):
    """Three processes, without Valkey."""

    name = "cadenza-postgres"
    settle_s = 12.0  # a dead process is swept after six seconds
    promises = PROMISES

    def install(self) -> str:
        return Cadenza().install()

    @contextlib.contextmanager
    def running(self, folder: Path, upstream_port: int) -> Iterator[GatewayUnderTest]:
        with contextlib.ExitStack() as stack:
            socket_path = stack.enter_context(backends.postgres())
            url = f"postgresql://{OWNER}@/postgres?host={socket_path.parent}"
            asyncio.run(_migrate(url))
            _write_config(folder, url, upstream_port)
            processes = []
            for number in range(PROCESSES):
                link = stack.enter_context(Link(socket_path).running())
                linked_url = f"postgresql://{OWNER}@127.0.0.1:{link.port}/postgres"
                processes.append(_make_process(folder / str(number), linked_url, upstream_port, link))
            stack.enter_context(started(processes))
            yield CadenzaDeployment(folder, url, processes)


def _make_process(folder: Path, store_url: str, upstream_port: int, link: Link | None = None) -> GatewayProcess:
    _write_config(folder, store_url, upstream_port)
    process = GatewayProcess(folder, free_port(), "/readyz", link)
    process.configure([Cadenza().program, "serve", "--config", folder / "cadenza.toml", "--port", str(process.port)])
    return process


def _write_config(folder: Path, store_url: str, upstream_port: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG.format(upstream_port=upstream_port).replace(SQLITE, store_url)
    (folder / "cadenza.toml").write_text(config)


async def _migrate(store_url: str) -> None:
    store = open_store(store_url)
    try:
        await migrate(store)
    finally:
        await store.close()
