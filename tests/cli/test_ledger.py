"""cadenza usage and cadenza ledger check | export, on a store with two accounts and a few requests behind it."""

import asyncio
import csv
import io
import json
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cadenza.core.money import Price
from cadenza.core.records import Usage
from cadenza.store import ledger
from cadenza.store.database import Database
from cadenza.store.ledger import End, Hold
from cadenza.store.statements import Executor
from tests.cli.conftest import EMAIL, PASSWORD
from tests.cli.program import Done, run

OTHER = "other@example.org"
NOTE = 'a "gift", for once'
FORTE = Price(1_070, 3_450)
MEZZO = Price(100, 210, 20)
START_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z
DAY_MS = 24 * 60 * 60 * 1000
SPAN = ("--start", "2027-01-01", "--end", "2027-02-01")
FORTE_NANO = 11 * 1_070 + 7 * 3_450
MEZZO_NANO = 8 * 100 + 3 * 20 + 7 * 210

BALANCE = "the balance is the sum of the entries"
HELD = "the held sum is the sum of the open holds"
COVERED = "what is held never exceeds the balance"
ONCE = "a request is charged at most once"
CHARGED = "a settled hold has its charge"
SETTLED = "a charge has its settled hold"
METERED = "an ended hold has its metering row, and an open one has none"
COST = "a metering row costs what was charged"
OWNER = f"(SELECT id FROM accounts WHERE email = '{EMAIL}')"
NEIGHBOUR = f"(SELECT id FROM accounts WHERE email = '{OTHER}')"
COLUMNS = "account_id, kind, amount_nano, request_id, note, created_at"
SECOND_CHARGE = f"INSERT INTO entries ({COLUMNS}) SELECT {COLUMNS} FROM entries WHERE request_id = 'chatcmpl-forte'"
TRIGGERS = ("DROP TRIGGER entries_refuse_update", "DROP TRIGGER entries_refuse_delete")


@pytest.fixture(scope="session")
def kept(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `books` copies: a charged request of each of two classes, one that was released, and one still open."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("kept"), dirs_exist_ok=True)
    for args in (
        ("account", "create", OTHER, "--credit", "1.00", "--password-stdin"),
        ("account", "credit", EMAIL, "0.25", "--note", NOTE),
    ):
        assert run(folder, *args, given=PASSWORD).returncode == 0
    asyncio.run(serve_some(folder))
    return folder


@pytest.fixture
def books(kept: Path, tmp_path: Path) -> Path:
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    return tmp_path


async def serve_some(folder: Path) -> None:
    db = Database(f"sqlite:///{folder}/data/cadenza.db")
    account_id, key_id = one_row(folder, "SELECT account_id, id FROM keys WHERE name = 'laptop'")

    def work(connection: Executor) -> None:
        for request_id, class_id, price, usage, started_at in (
            ("chatcmpl-forte", "forte", FORTE, Usage(11, 7, 3), START_MS),
            ("chatcmpl-mezzo", "mezzo", MEZZO, Usage(11, 7, 3, estimated=True), START_MS + DAY_MS),
            ("chatcmpl-failed", "forte", FORTE, None, START_MS + DAY_MS),
        ):
            hold = Hold(request_id, account_id, key_id, class_id, 20, 100, price, stream=False, started_at=started_at)
            ledger.take_hold(connection, hold, "proc_gone")
            end = End(request_id, account_id, usage, "acme", "large", 200 if usage else 502, 5, 9, started_at + 9)
            ledger.end_hold(connection, end)
        running = Hold("chatcmpl-open", account_id, key_id, "forte", 20, 100, FORTE, stream=False, started_at=START_MS)
        ledger.take_hold(connection, running, "proc_gone")

    await db.transact(work)
    await db.close()


def one_row(folder: Path, sql: str) -> Any:
    with closing(sqlite3.connect(folder / "data" / "cadenza.db")) as store:
        [row] = store.execute(sql)
    return row


def damage(folder: Path, *statements: str) -> None:
    """What no rule of the store would let happen, done by hand."""
    with closing(sqlite3.connect(folder / "data" / "cadenza.db")) as store, store:
        store.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            store.execute(statement)


def findings(folder: Path) -> list[Any]:
    done = run(folder, "ledger", "check", "--json")
    found: list[Any] = json.loads(done.stdout)
    assert done.returncode == (1 if found else 0), done.stderr
    return found


def exported(folder: Path, *args: str) -> list[Any]:
    done = run(folder, "ledger", "export", "--format", "jsonl", *args)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_refused(done: Done, sentence: str) -> None:
    assert done.returncode == 1
    assert done.stdout == ""
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_sound_ledger_holds(books: Path) -> None:
    """Exit 0, and one line that says how much was looked at."""
    done = run(books, "ledger", "check")
    assert done.returncode == 0
    assert done.stdout == "The ledger holds: 2 accounts, 5 entries, 1 open holds, 3 ended.\n"


def test_a_sound_ledger_has_no_findings(books: Path) -> None:
    """With --json it is an empty array."""
    assert findings(books) == []


@pytest.mark.parametrize(
    ("statements", "rules"),
    [
        ([f"UPDATE accounts SET balance_nano = balance_nano + 1 WHERE id = {OWNER}"], {BALANCE}),
        ([f"UPDATE accounts SET balance_nano = balance_nano - 1 WHERE id = {OWNER}"], {BALANCE}),
        ([f"UPDATE accounts SET held_nano = held_nano - 1 WHERE id = {OWNER}"], {HELD}),
        ([f"UPDATE accounts SET held_nano = balance_nano + 1 WHERE id = {OWNER}"], {HELD, COVERED}),
        ([f"UPDATE accounts SET held_nano = -1 WHERE id = {OWNER}"], {HELD, COVERED}),
    ],
)
def test_a_balance_that_was_touched_is_found(books: Path, statements: list[str], rules: set[str]) -> None:
    """Each rule that is broken is named with the account that it is broken for, and no other account is."""
    (account_id,) = one_row(books, f"SELECT {OWNER}")
    damage(books, *statements)
    assert {(found["rule"], found["subject"]) for found in findings(books)} == {(rule, account_id) for rule in rules}


def test_what_is_off_is_said_with_its_sum(books: Path) -> None:
    """A person reads the rule, the account and the nano-dollars, and is told to keep the store as it is."""
    (account_id,) = one_row(books, f"SELECT {OWNER}")
    damage(books, f"UPDATE accounts SET balance_nano = balance_nano + 12345 WHERE id = {OWNER}")
    done = run(books, "ledger", "check")
    assert done.returncode == 1
    assert BALANCE in done.stdout
    assert account_id in done.stdout
    assert "12345" in done.stdout
    assert "off in 1 places" in done.stderr
    assert "holds" not in done.stderr


@pytest.mark.parametrize(
    ("statements", "request_id", "rules"),
    [
        (["DROP INDEX uq_entries_charge", SECOND_CHARGE], "chatcmpl-forte", {ONCE}),
        ([*TRIGGERS, "DELETE FROM entries WHERE request_id = 'chatcmpl-forte'"], "chatcmpl-forte", {CHARGED, COST}),
        (["DELETE FROM holds WHERE request_id = 'chatcmpl-forte'"], "chatcmpl-forte", {SETTLED}),
        (["UPDATE holds SET state = 'released' WHERE request_id = 'chatcmpl-forte'"], "chatcmpl-forte", {SETTLED}),
        (["UPDATE holds SET state = 'settled' WHERE request_id = 'chatcmpl-failed'"], "chatcmpl-failed", {CHARGED}),
        (
            ["UPDATE holds SET state = 'open', ended_at = NULL WHERE request_id = 'chatcmpl-forte'"],
            "chatcmpl-forte",
            {SETTLED, METERED},
        ),
        (["DELETE FROM usage WHERE request_id = 'chatcmpl-failed'"], "chatcmpl-failed", {METERED}),
        (["UPDATE usage SET cost_nano = cost_nano + 1 WHERE request_id = 'chatcmpl-mezzo'"], "chatcmpl-mezzo", {COST}),
    ],
)
def test_a_request_that_was_touched_is_found(
    books: Path, statements: list[str], request_id: str, rules: set[str]
) -> None:
    """A hold, a charge and a metering row stand or fall together: whatever is missing is named with its request."""
    damage(books, *statements)
    assert rules <= {found["rule"] for found in findings(books) if found["subject"] == request_id}


def test_a_charge_on_the_wrong_account_is_found(books: Path) -> None:
    """One account that pays for the request of another is off, though every sum is right."""
    damage(
        books,
        *TRIGGERS,
        f"UPDATE entries SET account_id = {NEIGHBOUR} WHERE request_id = 'chatcmpl-forte'",
        f"UPDATE accounts SET balance_nano = balance_nano + {FORTE_NANO} WHERE id = {OWNER}",
        f"UPDATE accounts SET balance_nano = balance_nano - {FORTE_NANO} WHERE id = {NEIGHBOUR}",
    )
    assert {found["subject"] for found in findings(books)} == {"chatcmpl-forte"}


def test_a_metering_row_of_no_request_is_found(books: Path) -> None:
    """A row that was slipped in would be in the usage report, so it is off even where it costs nothing."""
    columns = "account_id, key_id, class_id, provider, model, prompt_tokens, cached_tokens, completion_tokens"
    rest = "cost_nano, estimated, status, stream, started_at, first_byte_ms, duration_ms"
    damage(
        books,
        f"INSERT INTO usage (request_id, {columns}, {rest}) SELECT 'chatcmpl-slipped', {columns}, {rest} "
        "FROM usage WHERE request_id = 'chatcmpl-failed'",
    )
    assert {found["subject"] for found in findings(books)} == {"chatcmpl-slipped"}


def test_entries_cannot_be_changed_by_hand(books: Path) -> None:
    """The store itself refuses to rewrite or drop an entry."""
    for statement in ("UPDATE entries SET amount_nano = 1", "DELETE FROM entries"):
        with pytest.raises(sqlite3.IntegrityError):
            damage(books, statement)
    assert findings(books) == []


def test_the_export_has_every_entry(books: Path) -> None:
    """Grants and charges of all accounts, oldest first, with exact amounts and the counts of each charge."""
    first, other, credit, forte, mezzo = exported(books)
    assert [entry["account"] for entry in (first, other, credit, forte, mezzo)] == [EMAIL, OTHER, EMAIL, EMAIL, EMAIL]
    assert (first["kind"], first["amount"], first["amount_nano"]) == ("grant", "5.00", 5_000_000_000)
    assert (first["request_id"], first["estimated"], first["class"]) == (None, None, None)
    assert (credit["amount"], credit["note"]) == ("0.25", NOTE)
    assert (forte["kind"], forte["amount"], forte["amount_nano"]) == ("charge", "-0.00003592", -FORTE_NANO)
    assert (forte["request_id"], forte["class"], forte["estimated"]) == ("chatcmpl-forte", "forte", False)
    assert (forte["prompt_tokens"], forte["cached_tokens"], forte["completion_tokens"]) == (11, 3, 7)
    assert forte["created_at"] == "2027-01-15T08:00:00Z"
    assert (mezzo["amount_nano"], mezzo["estimated"]) == (-MEZZO_NANO, True)


def test_both_forms_of_the_export_say_the_same(books: Path) -> None:
    """CSV, which is the default, has the names in its first line and the same values as JSON lines."""
    done = run(books, "ledger", "export")
    assert done.returncode == 0
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    as_text = [{name: "" if value is None else str(value) for name, value in one.items()} for one in exported(books)]
    assert rows == as_text


def test_an_export_may_be_of_one_account(books: Path) -> None:
    """Only the entries of the account that was named, however its address was written."""
    assert [entry["account"] for entry in exported(books, "--account", "Other@Example.org")] == [OTHER]


def test_entries_of_an_account_sum_to_its_balance(books: Path) -> None:
    """An accountant comes to the balance that the list of accounts shows."""
    accounts = json.loads(run(books, "account", "list", "--json").stdout)
    for account in accounts:
        total_nano = sum(entry["amount_nano"] for entry in exported(books, "--account", account["email"]))
        assert one_row(books, f"SELECT balance_nano FROM accounts WHERE id = '{account['id']}'") == (total_nano,)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_an_export_of_nobody_is_refused(books: Path, form: str) -> None:
    """An unknown account is a sentence and exit 1, and nothing that could pass for an empty export."""
    done = run(books, "ledger", "export", "--account", "nobody@example.org", "--format", form)
    assert_refused(done, "There is no account for 'nobody@example.org'")


def test_an_unknown_form_is_a_mistake_of_usage(books: Path) -> None:
    """Exit 2 with the forms there are."""
    done = run(books, "ledger", "export", "--format", "xml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "jsonl" in done.stderr


def test_usage_is_shown_as_a_table(books: Path) -> None:
    """Groups, their total, and the balance."""
    done = run(books, "usage", "--account", EMAIL, *SPAN)
    assert done.returncode == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows == [
        ["day", "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost"],
        ["2027-01-15", "1", "11", "3", "7", "0.00003592"],
        ["2027-01-16", "2", "11", "3", "7", "0.00000233"],
        ["total", "3", "22", "6", "14", "0.00003825"],
        ["Balance:", "5.24996175", "dollars."],
    ]


def test_usage_is_shown_as_json(books: Path) -> None:
    """With --json it is one array of the groups alone."""
    done = run(books, "usage", "--account", EMAIL, *SPAN, "--group-by", "model", "--json")
    shown = {group["model"]: (group["requests"], group["cost"]) for group in json.loads(done.stdout)}
    assert shown == {"forte": (2, "0.00003592"), "mezzo": (1, "0.00000233")}


@pytest.mark.parametrize(("age_days", "groups"), [(29, 1), (31, 0)])
def test_usage_by_default_is_of_the_last_thirty_days(books: Path, age_days: int, groups: int) -> None:
    """What was used within them is in it, and what was used before them is not."""
    started_at = time.time_ns() // 1_000_000 - age_days * DAY_MS
    damage(books, f"UPDATE usage SET started_at = {started_at}")
    assert len(json.loads(run(books, "usage", "--account", EMAIL, "--json").stdout)) == groups


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--account", "nobody@example.org"), "There is no account for 'nobody@example.org'"),
        (("--account", EMAIL, "--start", "soon"), "start: must be a time"),
        (("--account", EMAIL, "--start", "2027-01-02", "--end", "2027-01-01"), "start: must be before end"),
        (("--account", EMAIL, "--group-by", "hour"), "must be one of day, model, key"),
    ],
)
def test_a_mistake_in_asking_for_usage_is_a_sentence(books: Path, args: tuple[str, ...], sentence: str) -> None:
    """An unknown account, a time that is none, a reversed span and an unknown group: exit 1, and what to mend."""
    assert_refused(run(books, "usage", *args), sentence)
