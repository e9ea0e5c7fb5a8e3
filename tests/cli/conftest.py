"""Folders to run commands in: one whose store has an account with two keys, and one with charged requests too."""

import asyncio
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from cadenza.core.money import Price
from cadenza.core.records import Outcome, Usage
from cadenza.fleet import presence
from cadenza.ledger import transaction
from cadenza.ledger.rules import Demand, End, Hold
from cadenza.ledger.transaction import AccountMoves
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Transaction
from tests.cli import a_month
from tests.cli.program import run_here

EMAIL = "owner@example.org"
PASSWORD = "correct horse battery staple"
OTHER = "other@example.org"
PROCESS = "proc_gone"
FORTE = Price(1_070, 3_450)
MEZZO = Price(100, 210, 20)
START_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z
DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `furnished` copies: an account with 5.00 dollars, a key with full access and a restricted one."""
    folder = tmp_path_factory.mktemp("made")
    for args in (
        ("account", "create", EMAIL, "--credit", "5.00", "--password-stdin"),
        ("key", "create", "--account", EMAIL, "--name", "laptop"),
        ("key", "create", "--account", EMAIL, "--name", "ci", "--scope", "models", "--expires", "30"),
    ):
        done = run_here(folder, *args, given=PASSWORD + "\n")
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def furnished(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(scope="session")
def books(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What transcripts copy: two charged requests of different classes, one released, and one that runs."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("books"), dirs_exist_ok=True)
    for args in (
        ("account", "create", OTHER, "--credit", "1.00", "--password-stdin"),
        ("account", "credit", EMAIL, "0.25", "--note", 'a "gift", for once'),
    ):
        assert run_here(folder, *args, given=PASSWORD).returncode == 0
    asyncio.run(serve_some(folder))
    return folder


@pytest.fixture(scope="session")
def october(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a transcript copies: a month of two accounts (a_month.py)."""
    folder = tmp_path_factory.mktemp("october")
    for email in (a_month.ANN, a_month.BOB):
        for args in (("account", "create", email, "--password-stdin"), ("key", "create", "--account", email)):
            assert run_here(folder, *args, given=PASSWORD).returncode == 0
    asyncio.run(a_month.fill(folder))
    return folder


async def serve_some(folder: Path) -> None:
    store = SqliteStore(folder / "data" / "cadenza.db")
    with closing(sqlite3.connect(folder / "data" / "cadenza.db")) as database:
        [(account_id, key_id)] = database.execute("SELECT account_id, id FROM keys WHERE name = 'laptop'")

    def work(tx: Transaction) -> None:
        for completion_id, class_id, price, usage, started_at in (
            ("chatcmpl-forte", "forte", FORTE, Usage(11, 7, 3), START_MS),
            ("chatcmpl-mezzo", "mezzo", MEZZO, Usage(11, 7, 3, estimated=True), START_MS + DAY_MS),
            ("chatcmpl-failed", "forte", FORTE, None, START_MS + DAY_MS),
        ):
            request_id = f"req-of-{completion_id}"
            hold = Hold(
                completion_id,
                account_id,
                key_id,
                class_id,
                20,
                100,
                price,
                stream=False,
                started_at=started_at,
                request_id=request_id,
            )
            outcome = Outcome(
                request_id=request_id,
                completion_id=completion_id,
                account_id=account_id,
                endpoint="chat",
                usage=usage,
                provider="acme",
                model="large",
                status=200 if usage else 502,
                first_byte_ms=5,
                duration_ms=9,
                ended_at=started_at + 9,
            )
            move(tx, account_id, ends=[End(outcome, hold, hold.amount_nano, hold.due_nano(usage))])
        running = Hold("chatcmpl-open", account_id, key_id, "forte", 20, 100, FORTE, stream=False, started_at=START_MS)
        presence.register(tx, PROCESS)
        move(tx, account_id, holds=[running])

    await store.transact(work)
    await store.close()


def move(tx: Transaction, account_id: str, *, ends: Sequence[End] = (), holds: Sequence[Hold] = ()) -> None:
    nothing = Demand(kept_nano=0, in_use_nano=0, wanted_nano=0, usual_nano=0)
    transaction.apply_moves(tx, PROCESS, [AccountMoves(account_id, nothing, [*ends], [*holds])], START_MS)
