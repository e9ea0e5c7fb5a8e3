"""One suite over SQLite and Postgres: every `store` is built by the real migrations."""

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from cadenza.store.address import open_store
from cadenza.store.migrate import migrate
from cadenza.store.sqlite import SqliteStore
from cadenza.store.store import Store
from tests.postgres import Postgres, running_postgres

WAIT_S = 60.0


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Makes addresses of new, empty databases."""
    if request.param == "sqlite":
        numbers = itertools.count(1)
        yield lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"
        return
    server: Postgres = request.getfixturevalue("postgres")
    with contextlib.ExitStack() as databases:
        yield lambda: databases.enter_context(server.database())


@pytest.fixture
def make_pair(make_url: Callable[[], str]) -> tuple[str, str]:
    return make_url(), make_url()


@pytest.fixture
def url(make_url: Callable[[], str]) -> str:
    return make_url()


@pytest.fixture
async def empty(url: str) -> AsyncIterator[Store]:
    """A store without a schema. It is patient: these tests may run on a busy machine."""
    opened = open_store(url, WAIT_S)
    yield opened
    await opened.close()


@pytest.fixture
async def store(empty: Store) -> Store:
    await migrate(empty)
    return empty


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A SQLite store in the file store/cadenza.db of the test's folder."""
    opened = SqliteStore(tmp_path / "store" / "cadenza.db")
    await migrate(opened)
    yield opened
    await opened.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests of the store were skipped, and why."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "tests/store" in report.nodeid]
    if skipped:
        reason = skipped[0].longrepr[2]
        terminalreporter.write_line(f"{len(skipped)} tests of the store did not run. {reason}", yellow=True, bold=True)
