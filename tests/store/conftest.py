"""One suite over SQLite and Postgres: every `db` is built by the real migrations."""

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from cadenza.store.database import Database, migrate
from tests.postgres import Postgres, PostgresMissing, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Without Postgres: skip with the reason, but fail under CI=true."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running_postgres())
        except PostgresMissing as missing:
            if os.environ.get("CI") == "true":
                pytest.fail(str(missing))
            pytest.skip(str(missing))
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Addresses of fresh, empty databases, first of SQLite, then of Postgres."""
    if request.param == "sqlite":
        numbers = itertools.count(1)
        yield lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"
        return
    server: Postgres = request.getfixturevalue("postgres")
    with contextlib.ExitStack() as databases:
        yield lambda: databases.enter_context(server.database())


@pytest.fixture
def make_pair(make_url: Callable[[], str]) -> tuple[str, str]:
    """Two of them."""
    return make_url(), make_url()


@pytest.fixture
def url(make_url: Callable[[], str]) -> str:
    return make_url()


@pytest.fixture
async def empty(url: str) -> AsyncIterator[Database]:
    """A database that nothing has migrated yet."""
    database = Database(url)
    yield database
    await database.close()


@pytest.fixture
async def db(empty: Database) -> Database:
    await migrate(empty)
    return empty


@pytest.fixture
async def sqlite_db(tmp_path: Path) -> AsyncIterator[Database]:
    """For what only a SQLite file has; its path is `cadenza.db` in a folder `store` of the test's own."""
    database = Database(f"sqlite:///{tmp_path}/store/cadenza.db")
    await migrate(database)
    yield database
    await database.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A skipped half of this suite is said aloud."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "tests/store" in report.nodeid]
    if skipped:
        reason = skipped[0].longrepr[2]
        terminalreporter.write_line(f"{len(skipped)} tests of the store did not run. {reason}", yellow=True, bold=True)
