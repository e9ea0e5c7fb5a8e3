"""cadenza usage and cadenza ledger check | export, on a store with two accounts and a few requests."""

import asyncio
import csv
import io
import json
import shutil
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cadenza.core.formats import escape_formula
from cadenza.core.money import Price
from cadenza.core.records import Outcome, Usage
from cadenza.fleet import presence
from cadenza.ledger import transaction
from cadenza.ledger.rules import Demand, End, Hold
from cadenza.ledger.transaction import AccountMoves
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Transaction
from tests.cli.conftest import EMAIL, PASSWORD
from tests.cli.program import Done, run, run_here

OTHER = "other@example.org"
PROCESS = "proc_gone"
NOTE = 'a "gift", for once'
FORTE = Price(1_070, 3_450)
MEZZO = Price(100, 210, 20)
START_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z
DAY_MS = 24 * 60 * 60 * 1000
SPAN = ("--month", "2027-01")
FORTE_NANO = 11 * 1_070 + 7 * 3_450
MEZZO_NANO = 8 * 100 + 3 * 20 + 7 * 210

BALANCE = "the balance is the sum of the entries"
HELD = "the held sum is the sum of the reserves"
COVERED = "the held sum never exceeds the balance"
ONCE = "a request is charged at most once"
METERED = "a charge has its metering row, on the same account"
GRANTED = "granted credit is a part of the balance"
COST = "a metering row costs what was charged and corrected"
OWNER = f"(SELECT id FROM accounts WHERE email = '{EMAIL}')"
NEIGHBOUR = f"(SELECT id FROM accounts WHERE email = '{OTHER}')"
COLUMNS = "account_id, kind, amount_nano, completion_id, note, created_at, granted_nano"
SECOND_CHARGE = f"INSERT INTO entries ({COLUMNS}) SELECT {COLUMNS} FROM entries WHERE completion_id = 'chatcmpl-forte'"
ADD = "balance_nano = balance_nano + {0}, granted_nano = granted_nano + {0}"
TRIGGERS = ("DROP TRIGGER entries_refuse_update", "DROP TRIGGER entries_refuse_delete")


@pytest.fixture(scope="session")
def kept(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `books` copies: two charged requests of different classes, one released, and one that runs."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("kept"), dirs_exist_ok=True)
    for args in (
        ("account", "create", OTHER, "--credit", "1.00", "--password-stdin"),
        ("account", "credit", EMAIL, "0.25", "--note", NOTE),
    ):
        assert run_here(folder, *args, given=PASSWORD).returncode == 0
    asyncio.run(serve_some(folder))
    return folder


@pytest.fixture
def books(kept: Path, tmp_path: Path) -> Path:
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    return tmp_path


async def serve_some(folder: Path) -> None:
    store = SqliteStore(folder / "data" / "cadenza.db")
    account_id, key_id = one_row(folder, "SELECT account_id, id FROM keys WHERE name = 'laptop'")

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


def one_row(folder: Path, sql: str) -> Any:
    with closing(sqlite3.connect(folder / "data" / "cadenza.db")) as store:
        [row] = store.execute(sql)
    return row


def damage(folder: Path, *statements: str) -> None:
    """Change the store by hand, in ways that its rules do not allow."""
    with closing(sqlite3.connect(folder / "data" / "cadenza.db")) as store, store:
        store.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            store.execute(statement)


def findings(folder: Path) -> list[Any]:
    done = run_here(folder, "ledger", "check", "--json")
    found: list[Any] = json.loads(done.stdout)
    assert done.returncode == (1 if found else 0), done.stderr
    return found


def exported(folder: Path, *args: str) -> list[Any]:
    done = run_here(folder, "ledger", "export", "--format", "jsonl", *args)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_refused(done: Done, sentence: str) -> None:
    assert done.returncode == 1
    assert done.stdout == ""
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_sound_ledger(books: Path) -> None:
    """A sound ledger exits with 0 and prints one line of counts; with --json it is an empty array."""
    done = run_here(books, "ledger", "check")
    assert done.returncode == 0
    assert done.stdout == "The ledger is sound. Accounts: 2, entries: 5, requests: 3, reserves: 1.\n"
    assert findings(books) == []


@pytest.mark.parametrize(
    ("statements", "rules"),
    [
        ([f"UPDATE accounts SET balance_nano = balance_nano + 1 WHERE id = {OWNER}"], {BALANCE}),
        ([f"UPDATE accounts SET balance_nano = balance_nano - 1 WHERE id = {OWNER}"], {BALANCE, GRANTED}),
        ([f"UPDATE accounts SET held_nano = held_nano - 1 WHERE id = {OWNER}"], {HELD}),
        ([f"UPDATE accounts SET held_nano = balance_nano + 1 WHERE id = {OWNER}"], {HELD, COVERED}),
        ([f"UPDATE accounts SET held_nano = -1 WHERE id = {OWNER}"], {HELD, COVERED}),
    ],
)
def test_changed_balance_is_found(books: Path, statements: list[str], rules: set[str]) -> None:
    """Each broken rule is reported with its account, and no other account is reported."""
    (account_id,) = one_row(books, f"SELECT {OWNER}")
    damage(books, *statements)
    assert {(found["rule"], found["subject"]) for found in findings(books)} == {(rule, account_id) for rule in rules}


def test_findings_are_printed_with_their_amount(books: Path) -> None:
    """The table has the rule, the account and the nano-dollars, and the advice is to keep a copy of the store."""
    (account_id,) = one_row(books, f"SELECT {OWNER}")
    damage(books, f"UPDATE accounts SET balance_nano = balance_nano + 12345 WHERE id = {OWNER}")
    done = run_here(books, "ledger", "check")
    assert done.returncode == 1
    assert BALANCE in done.stdout
    assert account_id in done.stdout
    assert "12345" in done.stdout
    assert "is not sound; findings: 1" in done.stderr
    assert "sound" not in done.stdout


@pytest.mark.parametrize(
    ("statements", "request_id", "rules"),
    [
        (["DROP INDEX uq_entries_charge", SECOND_CHARGE], "chatcmpl-forte", {ONCE}),
        ([*TRIGGERS, "DELETE FROM entries WHERE completion_id = 'chatcmpl-forte'"], "chatcmpl-forte", {COST}),
        (["DELETE FROM usage WHERE completion_id = 'chatcmpl-forte'"], "chatcmpl-forte", {METERED}),
        (
            ["UPDATE usage SET cost_nano = cost_nano + 1 WHERE completion_id = 'chatcmpl-mezzo'"],
            "chatcmpl-mezzo",
            {COST},
        ),
    ],
)
def test_changed_request_is_found(books: Path, statements: list[str], request_id: str, rules: set[str]) -> None:
    """A charge and its metering row belong together: what is missing or different is reported with its request."""
    damage(books, *statements)
    assert rules <= {found["rule"] for found in findings(books) if found["subject"] == request_id}


def test_charge_on_the_wrong_account_is_found(books: Path) -> None:
    """A charge on another account is reported, although every sum is right."""
    damage(
        books,
        *TRIGGERS,
        f"UPDATE entries SET account_id = {NEIGHBOUR} WHERE completion_id = 'chatcmpl-forte'",
        f"UPDATE accounts SET {ADD.format(FORTE_NANO)} WHERE id = {OWNER}",
        f"UPDATE accounts SET {ADD.format(-FORTE_NANO)} WHERE id = {NEIGHBOUR}",
    )
    assert {found["subject"] for found in findings(books)} == {"chatcmpl-forte"}


def test_metering_row_without_a_charge_is_found(books: Path) -> None:
    """A row that costs something would be in the usage report, though nobody paid it."""
    columns = "account_id, key_id, class_id, provider, model, prompt_tokens, cached_tokens, completion_tokens"
    rest = "estimated, status, stream, started_at, duration_ms, request_id, input_nano, output_nano, short_nano, source"
    damage(
        books,
        f"INSERT INTO usage (completion_id, cost_nano, {columns}, {rest}) SELECT 'chatcmpl-slipped', 1, {columns}, "
        f"{rest} FROM usage WHERE completion_id = 'chatcmpl-failed'",
    )
    assert {found["subject"] for found in findings(books)} == {"chatcmpl-slipped"}


def test_export_has_every_entry(books: Path) -> None:
    """The export has grants and charges of all accounts, oldest first, with exact amounts and token counts."""
    first, other, credit, forte, mezzo = exported(books)
    assert [entry["account"] for entry in (first, other, credit, forte, mezzo)] == [EMAIL, OTHER, EMAIL, EMAIL, EMAIL]
    assert (first["kind"], first["amount"], first["amount_nano"]) == ("grant", "5.00", 5_000_000_000)
    assert (first["completion_id"], first["request_id"], first["class"]) == (None, None, None)
    assert first["estimated"] is None
    assert (credit["amount"], credit["note"]) == ("0.25", NOTE)
    assert (forte["kind"], forte["amount"], forte["amount_nano"]) == ("charge", "-0.00003592", -FORTE_NANO)
    assert (forte["completion_id"], forte["class"], forte["estimated"]) == ("chatcmpl-forte", "forte", False)
    assert forte["request_id"] == "req-of-chatcmpl-forte"
    assert (forte["prompt_tokens"], forte["cached_tokens"], forte["completion_tokens"]) == (11, 3, 7)
    assert forte["created_at"] == "2027-01-15T08:00:00Z"
    assert (forte["input_nano"], forte["output_nano"], forte["cached_input_nano"]) == (1070, 3450, None)
    assert (forte["provider"], forte["model"], forte["short_nano"], forte["source"]) == ("acme", "large", 0, "request")
    assert (mezzo["amount_nano"], mezzo["estimated"]) == (-MEZZO_NANO, True)


def test_a_request_is_refunded_once(books: Path) -> None:
    """Without --part it is all that the request cost; the export has it beside the charge. A second one is refused."""
    done = run_here(books, "refund", "chatcmpl-forte", "--reason", "a bad answer")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"Refunded 0.00003592 of the 0.00003592 dollars that chatcmpl-forte cost, to {EMAIL}.\n"
    *_, forte, mezzo, refund = exported(books)
    assert (forte["refunded_nano"], mezzo["refunded_nano"]) == (FORTE_NANO, None)
    assert (refund["origin"], refund["amount_nano"], refund["note"]) == ("refund", FORTE_NANO, "a bad answer")
    assert (refund["source"], refund["completion_id"]) == ("refund:chatcmpl-forte", "chatcmpl-forte")
    again = run_here(books, "refund", "chatcmpl-forte", "--part", "0.00000001", "--reason", "again")
    assert_refused(again, "was refunded before: 0.00003592 of 0.00003592 dollars")
    part = run_here(books, "refund", "chatcmpl-mezzo", "--part", "0.00000001", "--reason", "half an answer")
    assert part.returncode == 0
    assert findings(books) == []
    assert_refused(run_here(books, "refund", "chatcmpl-open", "--reason", "why"), "No request with this id was charged")


def test_both_formats_have_the_same_values(books: Path) -> None:
    """CSV, the default, has a header and the same values as JSON lines."""
    done = run(books, "ledger", "export")
    assert done.returncode == 0
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    as_text = [{name: "" if value is None else str(value) for name, value in one.items()} for one in exported(books)]
    assert rows == as_text


@pytest.mark.parametrize("note", ["=1+2", "+cmd", "-2+3", "@SUM(A1)", "-0.5 dollars"])
def test_csv_escapes_formulas(books: Path, note: str) -> None:
    """A note that a spreadsheet would run as a formula gets a quote in CSV; JSON lines have it as it is."""
    assert run_here(books, "account", "credit", EMAIL, "0.01", f"--note={note}").returncode == 0
    rows = list(csv.DictReader(io.StringIO(run_here(books, "ledger", "export").stdout)))
    assert rows[-1]["note"] == f"'{note}"
    assert exported(books)[-1]["note"] == note


def test_csv_keeps_numbers(books: Path) -> None:
    """Negative amounts and a note that is a plain number stay numbers in CSV."""
    assert run_here(books, "account", "credit", EMAIL, "0.01", "--note=-0.5").returncode == 0
    rows = list(csv.DictReader(io.StringIO(run_here(books, "ledger", "export").stdout)))
    assert rows[-1]["note"] == "-0.5"
    assert "-0.00003592" in [row["amount"] for row in rows]
    assert str(-FORTE_NANO) in [row["amount_nano"] for row in rows]


@pytest.mark.parametrize(
    ("cell", "escaped"), [("\t=1", "'\t=1"), ("\r=1", "'\r=1"), ("a=1", "a=1"), (-5, -5), (None, None)]
)
def test_cells_that_begin_with_white_space(cell: object, escaped: object) -> None:
    """A tab or carriage return in front counts as the start of a formula; other cells do not change."""
    assert escape_formula(cell) == escaped


def test_export_of_one_account(books: Path) -> None:
    """With --account only its entries are exported, whatever the case of the address."""
    assert [entry["account"] for entry in exported(books, "--account", "Other@Example.org")] == [OTHER]


def test_entries_of_an_account_sum_to_its_balance(books: Path) -> None:
    """The exported entries of an account add up to its balance."""
    accounts = json.loads(run_here(books, "account", "list", "--json").stdout)
    for account in accounts:
        total_nano = sum(entry["amount_nano"] for entry in exported(books, "--account", account["email"]))
        assert one_row(books, f"SELECT balance_nano FROM accounts WHERE id = '{account['id']}'") == (total_nano,)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_export_of_an_unknown_account_is_refused(books: Path, form: str) -> None:
    """An unknown account is one sentence and exit code 1, not an empty export."""
    done = run_here(books, "ledger", "export", "--account", "nobody@example.org", "--format", form)
    assert_refused(done, "There is no account for 'nobody@example.org'")


def test_unknown_format_is_refused(books: Path) -> None:
    """An unknown format exits with 2 and names the known ones."""
    done = run_here(books, "ledger", "export", "--format", "xml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "jsonl" in done.stderr


def test_usage_is_shown_as_a_table(books: Path) -> None:
    """The table has the groups, their total and the balance."""
    done = run_here(books, "usage", "--account", EMAIL, *SPAN)
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
    """With --json the output is one array of the groups."""
    done = run_here(books, "usage", "--account", EMAIL, *SPAN, "--group-by", "model", "--json")
    shown = {group["model"]: (group["requests"], group["cost"]) for group in json.loads(done.stdout)}
    assert shown == {"forte": (2, "0.00003592"), "mezzo": (1, "0.00000233")}


def test_usage_of_all_accounts(books: Path) -> None:
    """Without --account it is of all of them, also by account."""
    shown = json.loads(run_here(books, "usage", *SPAN, "--group-by", "account", "--json").stdout)
    assert [(group["account"], group["requests"], group["cost"]) for group in shown] == [(EMAIL, 3, "0.00003825")]
    assert "Balance of all accounts: 6.24996175 dollars." in run_here(books, "usage", *SPAN).stdout


@pytest.mark.parametrize(
    ("args", "ids"),
    [
        (("--month", "2027-01"), ["chatcmpl-forte", "chatcmpl-mezzo"]),
        (("--month", "2027-02"), []),
        (("--from", "2027-01-16"), ["chatcmpl-mezzo"]),
        (("--from", "2027-01-01", "--to", "2027-01-15"), ["chatcmpl-forte"]),
        (("--from", "2027-01-15", "--to", "2027-01-15T08:00:00Z"), []),
        (("--from", "2027-01-15T09:00:00+01:00", "--to", "2027-01-16", "--account", OTHER), []),
    ],
)
def test_export_of_a_span(books: Path, args: tuple[str, ...], ids: list[str]) -> None:
    """A month, or dates and times in UTC: a date at the end includes that day, a time does not."""
    assert [entry["completion_id"] for entry in exported(books, *args)] == ids


@pytest.mark.parametrize(("age_days", "groups"), [(29, 1), (31, 0)])
def test_usage_covers_thirty_days_by_default(books: Path, age_days: int, groups: int) -> None:
    """By default the report covers the last 30 days and nothing before them."""
    started_at = time.time_ns() // 1_000_000 - age_days * DAY_MS
    damage(books, f"UPDATE usage SET started_at = {started_at}")
    assert len(json.loads(run_here(books, "usage", "--account", EMAIL, "--json").stdout)) == groups


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--account", "nobody@example.org"), "There is no account for 'nobody@example.org'"),
        (("--account", EMAIL, "--from", "soon"), "from: must be a time"),
        (("--account", EMAIL, "--from", "2027-01-02", "--to", "2027-01-01"), "from: must be before to"),
        (("--month", "2027-13"), "month: must be a month, like 2026-10"),
        (("--month", "2027-01", "--to", "2027-01-01"), "leave out from and to"),
        (("--account", EMAIL, "--group-by", "hour"), "must be one of day, model, key"),
    ],
)
def test_bad_usage_options_are_refused(books: Path, args: tuple[str, ...], sentence: str) -> None:
    """An unknown account, a bad time, a reversed span and an unknown group exit with 1 and a sentence."""
    assert_refused(run_here(books, "usage", *args), sentence)
