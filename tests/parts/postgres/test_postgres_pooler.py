"""The real pgbouncer before Postgres: refused in words in transaction mode, usable in session mode."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cadenza.control.store.prepare import prepare_store
from cadenza.store.address import open_store
from cadenza.store.migrate import migrate
from cadenza.store.schema import accounts
from cadenza.store.store import StoreUnavailable
from tests.debian import find_or_install
from tests.postgres import OWNER, Postgres
from tests.store.processes import announce
from tests.store.rows import add_account, rows_of
from tests.store.test_watch import wait_for

pytestmark = pytest.mark.slow(reason="starts poolers")

START_S = 60.0
STOP_S = 30.0
PORT = 6432  # only the name of a socket
CONFIG = """
[databases]
* = host={server} port=5432 user={owner}

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
"""


@contextlib.contextmanager
def pgbouncer(server: Postgres, mode: str, size: int = 20) -> Iterator[Path]:
    """A running pgbouncer; the folder of the socket that it listens on."""
    program, folder = find_or_install("pgbouncer", "pgbouncer"), Path(tempfile.mkdtemp(dir=server.folder))
    config = folder / "pgbouncer.ini"
    values = {"server": server.folder, "folder": folder, "port": PORT, "owner": OWNER, "mode": mode, "size": size}
    config.write_text(CONFIG.format(**values))
    config.chmod(0o644)
    owner = OWNER if os.getuid() == 0 else None
    if owner:
        shutil.chown(folder, owner)
    running = subprocess.Popen([program, config], user=owner, cwd="/", stderr=subprocess.DEVNULL)
    try:
        wait_until_it_listens(folder / f".s.PGSQL.{PORT}")
        yield folder
    finally:
        running.kill()
        running.wait(STOP_S)


def wait_until_it_listens(path: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(path))
        except OSError:
            assert time.monotonic() < deadline_s, "pgbouncer does not listen"
            time.sleep(0.05)
        else:
            return


@pytest.fixture(
    params=[("transaction", 20), ("transaction", 1), ("statement", 20)], ids=lambda found: f"{found[0]}-{found[1]}"
)
def shared(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[Path]:
    with pgbouncer(postgres, *request.param) as folder:
        yield folder


@pytest.fixture
def session(postgres: Postgres) -> Iterator[Path]:
    with pgbouncer(postgres, "session") as folder:
        yield folder


async def test_a_pooler_without_sessions_is_refused(postgres: Postgres, shared: Path) -> None:
    """In transaction or statement mode every use fails with what to do, with one server connection and with many."""
    with postgres.database() as url:
        direct, pooled = open_store(url, START_S), open_store(pooled_url(shared, url), START_S)
        await migrate(direct)
        for use in (pooled.ping, lambda: prepare_store(pooled), pooled.upgrade, pooled.ping):
            with pytest.raises(StoreUnavailable, match=r"needs a session.*directly, or use session mode"):
                await use()
        await pooled.close()
        await direct.close()


async def test_a_pooler_in_session_mode_works(postgres: Postgres, session: Path) -> None:
    """In session mode the schema is migrated, and transactions and announcements work."""
    with postgres.database() as url:
        store, woken = open_store(pooled_url(session, url), START_S), asyncio.Event()
        await migrate(store)
        await prepare_store(store)
        await asyncio.gather(*(add_account(store, f"acct_{number}") for number in range(10)))
        assert len(await rows_of(store, accounts)) == 10
        async with store.watch(woken.set):
            await store.transact(announce)
            await wait_for(woken)
        await store.close()


def pooled_url(folder: Path, url: str) -> str:
    name = url.partition("@/")[2].partition("?")[0]
    return f"postgresql://{OWNER}@/{name}?host={folder}&port={PORT}"
