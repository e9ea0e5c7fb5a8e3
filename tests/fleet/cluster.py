"""Postgres clusters on loopback ports that tests kill, replicate and promote.

Every database is a copy of one that the real migrations made. A deadlock is found before any lock wait ends, so that
`deadlocks` counts them all.
"""

import contextlib
import itertools
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]

from cadenza.control.account.accounts import create_account
from cadenza.store.migrate import migrate
from cadenza.store.store import Store
from tests.fleet.ports import free_port
from tests.migrated import run_aside, with_store
from tests.postgres import OWNER, find_programs, postgres_folder, run_as_owner
from tests.processes import children
from tests.service import EMAIL, PASSWORD, now_ms, wait_until

CONNECT_S = 30.0
STORE_WAIT_S = 60.0
TEMPLATE = "migrated"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "dynamic_shared_memory_type": "mmap",
    "max_connections": "100",
    "deadlock_timeout": "50ms",
    "wal_level": "replica",
    "synchronous_commit": "on",
    "wal_receiver_timeout": "5s",
}

T = TypeVar("T")


class Cluster:
    """One cluster: a folder with its data, and the server that runs on it."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.port = free_port()
        self._programs = programs
        self._folder = folder
        self._data = folder / "data"
        self._numbers = itertools.count(1)

    def url(self, database: str, port: int | None = None, replica_port: int | None = None) -> str:
        """The address of a database, over a link's port if there is one, and with a second host if there is one."""
        replica = f",127.0.0.1:{replica_port}" if replica_port else ""
        return f"postgresql://{OWNER}@127.0.0.1:{port or self.port}{replica}/{database}"

    def make(self) -> None:
        run_as_owner([self._programs / "initdb", "-D", self._data, "-U", OWNER, "-A", "trust", "-N", "-E", "UTF8"])

    def start(self) -> None:
        settings = " ".join(f"-c {name}={value}" for name, value in (SETTINGS | {"port": str(self.port)}).items())
        self._control("-l", self._folder / "log", "-o", f"-k {self._folder} {settings}", "start")

    def stop(self) -> None:
        self._control("-m", "immediate", "stop")

    def kill(self) -> None:
        """kill -9 of the server. Its children notice and end by themselves."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        all_of_them = {pid, *children(pid)}
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in all_of_them), "the end of Postgres")

    def promote(self) -> None:
        self._control("promote")

    def execute(self, sql: str, database: str = OWNER) -> None:
        run_aside(lambda: _execute(self.url(database), sql))

    def fill_template(self) -> None:
        async def fill(store: Store) -> None:
            await migrate(store)
            await create_account(store, EMAIL, PASSWORD, 0, "forte", now_ms())

        self.execute(f"CREATE DATABASE {TEMPLATE}")
        run_aside(lambda: with_store(self.url(TEMPLATE), fill))

    def create_database(self) -> str:
        """The name of a new database with our schema.

        In a copied database a sequence that was used falls back when Postgres is killed, until it is set once.
        """
        name = f"fleet_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        self.execute("SELECT setval(pg_get_serial_sequence('audit_events', 'id'), 1000)", name)
        return name

    def replica(self, folder: Path, port: int) -> "Cluster":
        """A replica that follows this cluster over this port; it runs."""
        other = Cluster(self._programs, folder)
        copy: list[str | Path] = [self._programs / "pg_basebackup", "-D", folder / "data", "-R", "-X", "stream"]
        run_as_owner([*copy, "-c", "fast", "-d", f"host=127.0.0.1 port={port} user={OWNER} application_name=replica"])
        other.start()
        return other

    def _control(self, *words: str | Path) -> None:
        run_as_owner([self._programs / "pg_ctl", "-D", self._data, "-w", *words])


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    """A cluster with the template database."""
    programs = find_programs()
    with postgres_folder() as folder:
        cluster = Cluster(programs, folder)
        cluster.make()
        cluster.start()
        with stopping(cluster):
            cluster.fill_template()
            yield cluster


@contextlib.contextmanager
def stopping(cluster: Cluster) -> Iterator[None]:
    """Stop the cluster at the end, if it runs then."""
    try:
        yield
    finally:
        with contextlib.suppress(AssertionError):
            cluster.stop()


async def connect(url: str) -> Any:
    return await asyncpg.connect(
        url, timeout=CONNECT_S, server_settings={"application_name": f"test-{secrets.token_hex(4)}"}
    )


async def _execute(url: str, sql: str) -> None:
    connection = await connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()
