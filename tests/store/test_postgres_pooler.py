"""The real pgbouncer before Postgres: refused in words in transaction mode, usable in session mode."""

import asyncio
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from cadenza.control.store import prepare_store
from cadenza.store.address import open_store
from cadenza.store.migrate import migrate
from cadenza.store.schema import accounts
from cadenza.store.store import StoreUnavailable
from tests.debian import find_or_install
from tests.postgres import OWNER, Postgres
from tests.store.processes import announce
from tests.store.rows import add_account, rows_of
from tests.store.test_watch import wait_for

START_S = 60.0
STOP_S = 30.0
CONFIG = """
[databases]
* = host={server} port=5432 user={owner}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
"""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def pgbouncer(server: Postgres, mode: str, size: int = 20) -> Iterator[int]:
    """A running pgbouncer; the port that it listens on."""
    program, port = find_or_install("pgbouncer", "pgbouncer"), free_port()
    config = server.folder / f"pgbouncer-{port}.ini"
    config.write_text(CONFIG.format(server=server.folder, owner=OWNER, port=port, mode=mode, size=size))
    config.chmod(0o644)
    owner = OWNER if os.getuid() == 0 else None
    running = subprocess.Popen([program, config], user=owner, cwd="/", stderr=subprocess.DEVNULL)
    try:
        wait_until_it_listens(port)
        yield port
    finally:
        running.kill()
        running.wait(STOP_S)


def wait_until_it_listens(port: int) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert time.monotonic() < deadline_s, "pgbouncer does not listen"
            time.sleep(0.05)
        else:
            return


@pytest.fixture(
    params=[("transaction", 20), ("transaction", 1), ("statement", 20)], ids=lambda found: f"{found[0]}-{found[1]}"
)
def shared_port(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[int]:
    with pgbouncer(postgres, *request.param) as port:
        yield port


@pytest.fixture
def session_port(postgres: Postgres) -> Iterator[int]:
    with pgbouncer(postgres, "session") as port:
        yield port


async def test_a_pooler_without_sessions_is_refused(postgres: Postgres, shared_port: int) -> None:
    """In transaction or statement mode every use fails with what to do, with one server connection and with many."""
    with postgres.database() as url:
        direct, pooled = open_store(url, START_S), open_store(pooled_url(shared_port, url))
        await migrate(direct)
        for use in (pooled.ping, lambda: prepare_store(pooled), pooled.upgrade, pooled.ping):
            with pytest.raises(StoreUnavailable, match=r"needs a session.*directly, or use session mode"):
                await use()
        await pooled.close()
        await direct.close()


async def test_a_pooler_in_session_mode_works(postgres: Postgres, session_port: int) -> None:
    """In session mode the schema is migrated, and transactions and announcements work."""
    with postgres.database() as url:
        store, woken = open_store(pooled_url(session_port, url), START_S), asyncio.Event()
        await migrate(store)
        await prepare_store(store)
        await asyncio.gather(*(add_account(store, f"acct_{number}") for number in range(10)))
        assert len(await rows_of(store, accounts)) == 10
        async with store.watch(woken.set):
            await store.transact(announce)
            await wait_for(woken)
        await store.close()


def pooled_url(port: int, url: str) -> str:
    name = url.partition("@/")[2].partition("?")[0]
    return f"postgresql://{OWNER}@127.0.0.1:{port}/{name}"
