"""cadenza migrate --from sqlite:///… --to postgresql://…: an installation moves to Postgres whole, or not at all."""

import asyncio
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cadenza.parts.postgres.transfer import CARRIED, LEFT_BEHIND
from cadenza.store.process_locks import ProcessLocks
from cadenza.store.schema import metadata
from tests.cli.conftest import EMAIL, PASSWORD
from tests.cli.program import Done, run_here
from tests.loopback import LoopbackUpstream
from tests.postgres import Postgres
from tests.raw_client import RawClient
from tests.service import Service
from tests.service_config import classes_spec
from tests.store.aside import Aside, aside
from tests.store.moves import comes_true, opened
from tests.store.presences import present
from tests.store.rows import run_sql

DOLLAR_NANO = 10**9
DIGEST = bytes(range(224, 256))
IDS = "(SELECT account_id, id AS key_id FROM keys LIMIT 1)"
DEAD_PROCESS = "INSERT INTO processes (name, version, revision, host, pid) VALUES ('proc_dead', '', '', '', 1)"
LATE_ENTRY = """(account_id, kind, origin, amount_nano, note, created_at, granted_nano)
    SELECT account_id, 'grant', 'grant', 1, '', 9, 1 FROM keys LIMIT 1 RETURNING created_at"""
MORE_ROWS = (
    f"""INSERT INTO entries SELECT 41, account_id, 'charge', -1210, 'chatcmpl-1', 'für später', 7, NULL, NULL, NULL,
        -1210 FROM {IDS}""",
    f"""INSERT INTO usage SELECT 'chatcmpl-1', account_id, key_id, 'forte', 'acme', 'large', 100, 3, 7, 1210, 1, 200, 0,
        {2**53 + 1}, NULL, 345, 'req-1', 10, 30, NULL, 2500, 0, 'request', zeroblob(32), 3, NULL FROM {IDS}""",
    "UPDATE accounts SET balance_nano = balance_nano - 1210, granted_nano = granted_nano - 1210",
    "UPDATE keys SET requests_per_second = 0.1, burst = 3, last_used_at = 9 WHERE name = 'ci'",
    "UPDATE epochs SET number = number + 5",
    "UPDATE accounts SET is_operator = 1, suspended_at = 3, has_caps = 1",
    f"INSERT INTO caps SELECT key_id, account_id, 'total', 1000, 0, 1210, 210 FROM {IDS}",
    "UPDATE keys SET is_capped = 1 WHERE id IN (SELECT key_id FROM caps)",
    f"INSERT INTO sessions SELECT zeroblob(32), account_id, 'complete', 'a browser', 1, 2, 2, 3 FROM {IDS}",
    "INSERT INTO links VALUES (zeroblob(32), 'invite', NULL, '', 1, 2)",
    f"INSERT INTO totp SELECT account_id, x'00ff', 8, NULL FROM {IDS}",
    f"INSERT INTO recovery_codes SELECT account_id, zeroblob(32) FROM {IDS}",
    f"INSERT INTO passkeys SELECT x'00', account_id, 'a phone', x'ff', 9, 1, NULL FROM {IDS}",
    f"INSERT INTO notes SELECT 'note_1', account_id, 'für später', 1, 2 FROM {IDS}",
    "INSERT INTO site_secrets VALUES ('sign-in', x'00ff')",
    f"INSERT INTO audit_events SELECT 7, 1, 'command line', 'key.create', account_id, key_id, '', NULL FROM {IDS}",
    f"INSERT INTO access_tokens SELECT 'tok_1', account_id, '', 'cdz_', zeroblob(32), 'a', 1, 2, NULL, 1 FROM {IDS}",
    f"INSERT INTO vouchers SELECT 'vch_1', zeroblob(32), 'CDZ-1234', 5, '', 1, NULL, 2, account_id, 90 FROM {IDS}",
    f"INSERT INTO credit_lots SELECT 3, account_id, 'a gift', 5, 0, 1, 2, 3 FROM {IDS}",
    f"INSERT INTO payments SELECT 'pay_1', account_id, 'stripe', 'cs_1', NULL, 5, 4, 'open', 1, 2, 3, 2, 1 FROM {IDS}",
    f"""INSERT INTO request_details SELECT 4, 'r', 'c', account_id, key_id, 'chat', 'forte', 1, 'acme', 'large', 502,
        'upstream', 'failed', 0, 9, 5, NULL, 1, 2, 3, '[]' FROM {IDS}""",
    "INSERT INTO upstream_attempts VALUES (1, 'acme', 'large', 'retry', 1, 2, 3)",
    f"""INSERT INTO usage_days SELECT account_id, 104249991, key_id, 'forte', 'acme', 'large', 1, 100, 3, 7, 1210, 0, 0,
        1, 0, 1, 1, 1210 FROM {IDS}""",
    "INSERT INTO retention VALUES ('usage', 0, 1)",
    f"INSERT INTO debts SELECT 3, account_id, 'dp_1', 'a dispute', 0, 0, 1 FROM {IDS}",
    "INSERT INTO command_references VALUES (zeroblob(32), 'key.create', zeroblob(32), 'key_1', 1)",
    "INSERT INTO class_versions VALUES ('forte', 1, zeroblob(32), '[]', '', 'config', 1, 'command line', NULL)",
    "INSERT INTO class_states VALUES ('forte', 1, '[]', 0, 0, NULL, 0, NULL, 1, 1, NULL)",
    """INSERT INTO verdicts VALUES ('eval_1', 'forte', 'evaluation', 'finished', 1, 2, 'command line', 1, 'a/b',
        zeroblob(32), 'starter', zeroblob(32), 3, 5, '{}')""",
    "INSERT INTO verdict_scores VALUES ('eval_1', 1, 1, 'candidate', 0.5, NULL, 9, 9, 1.5, NULL, '')",
    "INSERT INTO route_rests VALUES ('acme/large', 9, 'command line')",
    "INSERT INTO price_changes VALUES ('forte', 9, 1, 2, NULL, 1, 'command line')",
    """INSERT INTO closed_months VALUES ('2026-10', 1, 8, 9, 9, 42, 1, 1, 1, 0, 0, 4999998790, 4999998790, '{}',
        zeroblob(32))""",
    """INSERT INTO closed_months VALUES ('2026-11', 8, 16, 17, 17, 42, 1, 0, 0, 4999998790, 4999998790, 4999998790,
        4999998790, '{}', zeroblob(32))""",
    f"INSERT INTO closed_balances SELECT '2026-10', account_id, 4999998790, 4999998790 FROM {IDS}",
    f"INSERT INTO closed_balances SELECT '2026-11', account_id, 4999998790, 4999998790 FROM {IDS}",
    "INSERT INTO payment_events VALUES ('evt_1', 'charge.refunded', 1, 'stripe:pi_1', '{}', 9)",
)


@pytest.fixture(scope="module")
def filled(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose store has rows in every table that is carried over."""
    folder = Path(shutil.copytree(made, tmp_path_factory.mktemp("source"), dirs_exist_ok=True))
    database = folder / "data" / "cadenza.db"
    change(database, *MORE_ROWS)
    with closing(sqlite3.connect(database)) as connection, connection:
        [(account_id,)] = connection.execute("SELECT id FROM accounts")
        connection.execute("INSERT INTO idempotency VALUES (?, ?, 'c', 'r', 8, NULL)", (account_id, DIGEST))
    return folder


@pytest.fixture
def source(filled: Path, tmp_path: Path) -> Path:
    """The store of a copy of it."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    return tmp_path / "data" / "cadenza.db"


@pytest.fixture
def target(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as url:
        yield url


@pytest.fixture
def move(source: Path, target: str) -> Callable[[], Done]:
    return lambda: move_between(source, target)


def move_between(source: Path, target: str) -> Done:
    return run_here(source.parents[1], "migrate", "--from", f"sqlite:///{source}", "--to", target)


def change(database: Path, *statements: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def rows_of_sqlite(database: Path, table: str) -> set[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return set(connection.execute(f"SELECT * FROM {table}"))


def ask(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run these on Postgres and return the rows of the last one."""

    async def run() -> list[tuple[Any, ...]]:
        async with aside(url) as target:
            for statement in statements[:-1]:
                await target.execute(statement)
            return await target.rows(statements[-1])

    return asyncio.run(run())


def use_as_store(folder: Path, url: str) -> None:
    (folder / "cadenza.toml").write_text(f'[store]\nurl = "{url}"\n')


def assert_refused(done: Done, sentence: str) -> None:
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cadenza: ")
    assert sentence in done.stderr


def test_no_table_is_forgotten(source: Path) -> None:
    """Every table is carried over or left behind on purpose, and the source of these tests has rows in each."""
    assert {table.name for table in (*CARRIED, *LEFT_BEHIND)} == set(metadata.tables)
    assert [table.name for table in CARRIED if not rows_of_sqlite(source, table.name)] == []


def test_every_row_arrives(source: Path, target: str, move: Callable[[], Done]) -> None:
    """The target has the same values in every table: texts, bytes, fractions, large numbers, booleans and nulls."""
    done = move()
    assert done.returncode == 0, done.stderr
    assert {"accounts: 1", "keys: 2", "entries: 2"} <= set(re.findall(r"\w+: \d+", done.stderr))
    assert "Both ledgers are sound." in done.stderr
    for table in CARRIED:
        names = ", ".join(table.c.keys())
        assert set(ask(target, f"SELECT {names} FROM {table.name}")) == rows_of_sqlite(source, table.name), table.name
    assert ask(target, "SELECT estimated, stream, first_byte_ms FROM usage") == [(True, False, None)]
    assert ask(target, f"INSERT INTO entries {LATE_ENTRY}") == [(16,)], "all closed months stay closed"


def test_the_target_can_be_used(source: Path, target: str, move: Callable[[], Done]) -> None:
    """Commands work on the new store: the password and the keys are there, and new entries get new numbers."""
    assert move().returncode == 0
    folder = source.parents[1]
    use_as_store(folder, target)
    assert run_here(folder, "account", "credit", EMAIL, "1.00").returncode == 0
    assert run_here(folder, "ledger", "check").returncode == 0
    assert ask(target, "SELECT max(id) FROM entries") == [(42,)]
    assert ask(target, "SELECT balance_nano FROM accounts") == [(6 * DOLLAR_NANO - 1210,)]


def test_a_second_run_changes_nothing(target: str, move: Callable[[], Done]) -> None:
    """The same rows are recognised, and the exit code is 0."""
    assert move().returncode == 0
    before = ask(target, "SELECT xmin, id FROM entries ORDER BY id")
    again = move()
    assert again.returncode == 0
    assert "The target has these rows already, and nothing was changed." in again.stderr
    assert ask(target, "SELECT xmin, id FROM entries ORDER BY id") == before


@pytest.mark.parametrize("place", ["source", "target"])
def test_a_store_that_was_used_since_is_refused(
    source: Path, target: str, move: Callable[[], Done], place: str
) -> None:
    """If either has a new entry, the second run names the tables that differ and changes nothing."""
    assert move().returncode == 0
    folder = source.parents[1]
    if place == "target":
        use_as_store(folder, target)
    assert run_here(folder, "account", "credit", EMAIL, "1.00").returncode == 0
    before = ask(target, "SELECT count(*), sum(amount_nano) FROM entries")
    assert_refused(
        move(),
        "The target has other rows than the source; in: accounts, command_references, epochs, audit_events, entries",
    )
    assert ask(target, "SELECT count(*), sum(amount_nano) FROM entries") == before


def test_foreign_accounts_are_left_alone(source: Path, target: str, move: Callable[[], Done]) -> None:
    """A target with accounts of another installation is refused, and stays as it is."""
    folder = source.parents[1]
    use_as_store(folder, target)
    assert run_here(folder, "migrate").returncode == 0
    account = ("account", "create", "other@example.org", "--password-stdin")
    assert run_here(folder, *account, given=PASSWORD).returncode == 0
    assert_refused(move(), "The target has accounts that the source does not have; their number: 1.")
    assert ask(target, "SELECT email FROM accounts") == [("other@example.org",)]


def test_tables_of_another_program_are_left_alone(target: str, move: Callable[[], Done]) -> None:
    """A target with tables that no release made is somebody's: it is refused."""
    ask(target, "CREATE TABLE accounts (id TEXT)", "SELECT")
    assert_refused(move(), "tables that no release of Cadenza made")


def test_a_transfer_that_fails_changes_nothing(source: Path, target: str, move: Callable[[], Done]) -> None:
    """If a row cannot be carried over, the target stays empty, and the next run carries everything over."""
    change(source, "UPDATE usage SET request_id = 'a' || char(0) || 'b'")
    assert_refused(move(), "The target cannot be used")
    assert ask(target, "SELECT count(*) FROM accounts") == [(0,)]
    change(source, "UPDATE usage SET request_id = 'req-1'")
    assert move().returncode == 0


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "a ledger that is not sound": (
        ("UPDATE accounts SET balance_nano = balance_nano + 1",),
        "The ledger of the source is not sound; findings: 1.",
    ),
    "credit that a dead process holds": (
        (
            DEAD_PROCESS,
            "UPDATE accounts SET held_nano = 2500",
            f"INSERT INTO reserves SELECT account_id, 'proc_dead', 2500, 0, 0 FROM {IDS}",
        ),
        "start the service on it and stop it",
    ),
    "a mark of a dead process": (
        (
            DEAD_PROCESS,
            f"""INSERT INTO marks SELECT 'chatcmpl-2', 'r', 'proc_dead', account_id, key_id, 'forte', 1, 1, 1, 1, NULL,
                1, 1, 3 FROM {IDS}""",
        ),
        "start the service on it and stop it",
    ),
    "columns that this program may not know": (
        ("UPDATE schema_version SET revision = '9999'",),
        "The source has the schema of a newer release, 9999: run this command with that release.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_source_is_refused(source: Path, move: Callable[[], Done], case: str) -> None:
    """With what is wrong, and what to do first."""
    statements, sentence = REFUSED[case]
    change(source, *statements)
    assert_refused(move(), sentence)


def test_a_served_source_is_refused(target: str, upstream: LoopbackUpstream) -> None:
    """While a service runs on the source nothing is carried over; once it has stopped, all of it is."""
    with Service(classes_spec(upstream.base_url)) as service:
        assert RawClient(service.port, service.key).chat().status == 200
        assert_refused(move_between(service.store, target), f"A service is running on {service.store}: stop it")
        service.stop()
        done = move_between(service.store, target)
        assert done.returncode == 0, done.stderr
    assert ask(target, "SELECT count(*) FROM usage") == [(1,)]


@pytest.mark.parametrize("place", ["source", "target"])
async def test_a_service_that_starts_during_the_transfer_is_noticed(
    source: Path, postgres: Postgres, place: str
) -> None:
    """A process that opens either store after the first checks is found at the end, and nothing is carried over."""
    with postgres.migrated_database() as target:
        async with aside(target) as other, opened(target) as store:
            await other.execute("BEGIN")
            await other.execute("LOCK TABLE accounts")
            moving = asyncio.create_task(asyncio.to_thread(move_between, source, target))
            assert await comes_true(lambda: waits_for_a_lock(other))
            if place == "source":
                lock = ProcessLocks(source).lock("proc_new")
                assert lock is not None
                await other.execute("COMMIT")
                done = await moving
                ProcessLocks(source).unlock("proc_new", lock)
                assert_refused(done, f"Nothing was carried over, because a service was started on {source} meanwhile:")
            else:
                async with present(store) as presence:
                    await other.execute("COMMIT")
                    done = await moving
                assert_refused(
                    done, f"Nothing was carried over, because a service runs on the target ({presence.name}):"
                )
            assert await other.rows("SELECT id FROM accounts") == []


async def waits_for_a_lock(other: Aside) -> bool:
    return bool(await other.rows("SELECT 1 FROM pg_locks WHERE NOT granted"))


@pytest.mark.slow(reason="waits until a process counts as dead")
async def test_a_served_target_is_refused(source: Path, postgres: Postgres) -> None:
    """While a service runs on the target nothing is carried over; the row of a dead process does not matter."""
    with postgres.migrated_database() as target:
        async with opened(target) as store:
            await run_sql(store, DEAD_PROCESS)
            async with present(store) as presence:
                done = await asyncio.to_thread(move_between, source, target)
            assert_refused(done, f"a service runs on the target ({presence.name}): stop it")
            done = await asyncio.to_thread(move_between, source, target)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("args", [("--from", "sqlite:///x.db"), ("--to", "postgresql://x/y")])
def test_both_addresses_are_needed(tmp_path: Path, args: tuple[str, str]) -> None:
    """One address without the other is a mistake of usage."""
    done = run_here(tmp_path, "migrate", *args)
    assert (done.returncode, "--from and --to belong together" in done.stderr) == (2, True)


def test_only_from_sqlite_to_postgres(source: Path, target: str) -> None:
    """The other direction, and one store to another of its kind, are refused in a sentence."""
    folder, here = source.parents[1], f"sqlite:///{source}"
    for first, second in ((target, here), (here, here), (target, target)):
        assert_refused(run_here(folder, "migrate", "--from", first, "--to", second), "from SQLite to Postgres")
    missing = run_here(folder, "migrate", "--from", "sqlite:///none.db", "--to", target)
    assert_refused(missing, "There is no store at none.db")
