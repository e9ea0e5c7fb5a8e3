"""One suite over SQLite and Postgres: every `store` is a copy of one that the real migrations made."""

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from cadenza.store.address import open_store
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Store
from tests.migrated import copy_migrated_store
from tests.postgres import Postgres, running_postgres
from tests.store.moves import findings, fund
from tests.store.rows import DOLLAR_NANO

WAIT_S = 60.0


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


class SqliteDatabases:
    """New SQLite files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)

    def empty(self) -> str:
        return f"sqlite:///{self._new_path()}"

    def migrated(self) -> str:
        path = self._new_path()
        copy_migrated_store(path)
        return f"sqlite:///{path}"

    def _new_path(self) -> Path:
        return self._folder / f"{next(self._numbers)}.db"


class PostgresDatabases:
    """New databases of a cluster, which are dropped when the stack is closed."""

    def __init__(self, server: Postgres, stack: contextlib.ExitStack) -> None:
        self._server = server
        self._stack = stack

    def empty(self) -> str:
        return self._stack.enter_context(self._server.database())

    def migrated(self) -> str:
        return self._stack.enter_context(self._server.migrated_database())


@pytest.fixture(params=["sqlite", "postgres"])
def databases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteDatabases | PostgresDatabases]:
    """Makes new databases, empty ones and ones with the newest schema, and returns their addresses."""
    if request.param == "sqlite":
        yield SqliteDatabases(tmp_path)
        return
    server: Postgres = request.getfixturevalue("postgres")
    with contextlib.ExitStack() as stack:
        yield PostgresDatabases(server, stack)


@pytest.fixture
def make_url(databases: SqliteDatabases | PostgresDatabases) -> Callable[[], str]:
    """Makes addresses of new, empty databases."""
    return databases.empty


@pytest.fixture
def url(request: pytest.FixtureRequest, databases: SqliteDatabases | PostgresDatabases) -> str:
    """The address of a new database. It has the newest schema, unless the test asks for `empty`."""
    return databases.empty() if "empty" in request.fixturenames else databases.migrated()


@pytest.fixture
async def empty(url: str) -> AsyncIterator[Store]:
    """A store without a schema. It is patient: these tests may run on a busy machine."""
    opened = open_store(url, WAIT_S)
    yield opened
    await opened.close()


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """A store with the newest schema. It is patient, too."""
    opened = open_store(url, WAIT_S)
    yield opened
    await opened.close()


@pytest.fixture
async def rich(store: Store) -> AsyncIterator[Store]:
    """The store with an account that has one dollar; at the end of the test the ledger must be sound."""
    await fund(store, DOLLAR_NANO)
    yield store
    assert await findings(store) == []


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A SQLite store in the file store/cadenza.db of the test's folder."""
    path = tmp_path / "store" / "cadenza.db"
    path.parent.mkdir()
    copy_migrated_store(path)
    opened = SqliteStore(path)
    yield opened
    await opened.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests of the store were skipped, and why."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "tests/store" in report.nodeid]
    if skipped:
        reason = skipped[0].longrepr[2]
        terminalreporter.write_line(f"{len(skipped)} tests of the store did not run. {reason}", yellow=True, bold=True)
