"""Postgres clusters on loopback ports that tests kill, replicate and promote.

Every database is a copy of one that the real migrations made. A deadlock is found before any lock wait ends, so that
`deadlocks` counts them all.
"""

import contextlib
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from cadenza.control.account.accounts import create_account
from cadenza.store.migrate import migrate
from cadenza.store.store import Store
from tests.fleet.ports import free_port
from tests.migrated import run_aside, with_store
from tests.postgres import OWNER, TEMPLATE, Postgres, find_programs, postgres_folder, run_as_owner
from tests.processes import children
from tests.service import EMAIL, now_ms, wait_until

CONNECT_S = 30.0
STORE_WAIT_S = 60.0
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


class Cluster(Postgres):
    """One cluster: a folder with its data, and the server that runs on it."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.port = free_port()
        super().__init__(programs, folder, SETTINGS | {"port": str(self.port)})

    def url(self, database: str, port: int | None = None, replica_port: int | None = None) -> str:
        """The address of a database, over a link's port if there is one, and with a second host if there is one."""
        replica = f",127.0.0.1:{replica_port}" if replica_port else ""
        return f"postgresql://{OWNER}@127.0.0.1:{port or self.port}{replica}/{database}"

    def kill(self) -> None:
        """kill -9 of the server. Its children notice and end by themselves."""
        all_of_them = {self._pid, *children(self._pid)}
        os.kill(self._pid, signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in all_of_them), "the end of Postgres")

    def promote(self) -> None:
        self._control("promote")

    def fill_template(self) -> None:
        async def fill(store: Store) -> None:
            await migrate(store)
            await create_account(store, EMAIL, 0, "forte", now_ms())

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
        other = Cluster(self.programs, folder)
        copy: list[str | Path] = [self.programs / "pg_basebackup", "-D", folder / "data", "-R", "-X", "stream"]
        run_as_owner([*copy, "-c", "fast", "-d", f"host=127.0.0.1 port={port} user={OWNER} application_name=replica"])
        other.start()
        return other


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
