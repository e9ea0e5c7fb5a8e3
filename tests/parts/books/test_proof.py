"""Proof of an exported month on both databases: no column that people read can be forged unnoticed."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from cadenza.control.account.erasure import erase_account
from cadenza.control.money.refunds import refund_request
from cadenza.core.csv_text import csv_table
from cadenza.core.records import COMMAND_LINE
from cadenza.core.spans import month_span
from cadenza.ledger import credit
from cadenza.ledger.export import EXPORT_FIELDS, export, readable
from cadenza.parts.books.closing import close_month
from cadenza.parts.books.proof import Verified, verify_file
from cadenza.store.store import Store
from tests.parts.books.test_months import LATER, OCTOBER, serve
from tests.store.moves import fund
from tests.store.rows import DOLLAR_NANO, run_sql

Rows = list[dict[str, Any]]


@pytest.fixture
async def closed(store: Store) -> Store:
    """A closed month: a gift with a note that a spreadsheet could run, and a charge."""
    await fund(store, 0)
    await store.transact(lambda tx: credit.grant(tx, "acct_a", DOLLAR_NANO, "=1+1", OCTOBER))
    await serve(store, "october", OCTOBER)
    await close_month(store, "2026-10", COMMAND_LINE, LATER)
    return store


async def exported(store: Store) -> Rows:
    return [readable(entry) async for entry in export(store, None, month_span("2026-10"))]


def write(path: Path, rows: Rows) -> Path:
    """A file as `ledger export` writes it, in the format of its name."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(csv_table(EXPORT_FIELDS, rows) if path.suffix == ".csv" else lines, newline="")
    return path


async def verify(store: Store, path: Path, rows: Rows) -> Verified:
    return await verify_file(store, "2026-10", write(path, rows))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
async def test_each_forged_column_is_named(closed: Store, tmp_path: Path, name: str) -> None:
    """Every column of a charge, but an empty refund; the message says what it must be."""
    rows = await exported(closed)
    assert (await verify(closed, tmp_path / name, rows)).problems == []
    gift, charge = rows
    assert charge["class"]
    for column, value in charge.items():
        forged = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value}0"
        if value is None:
            forged = "7" if column == "origin" else 7
        found = await verify(closed, tmp_path / name, [gift, {**charge, column: forged}])
        assert found.problems, column
        assert found.unproven == {}
    found = await verify(closed, tmp_path / name, [{**gift, "amount": "50.00", "account": "b@example.org"}, charge])
    amount, account = found.problems
    assert amount == f"amount of entry {gift['id']} is '50.00' and must be '1.00'"
    assert account == f"account of entry {gift['id']} is 'b@example.org' and must be 'acct_a@example.org'"
    file = write(tmp_path / name, [gift, charge])
    file.write_text(file.read_text(), encoding="utf-8-sig")  # as a spreadsheet program saves it
    assert (await verify_file(closed, "2026-10", file)).problems == []
    for rows in ([charge], [gift], [charge, gift], [gift, charge, charge]):
        assert (await verify(closed, tmp_path / name, rows)).problems == [f"{tmp_path / name} has other entries"]


async def test_only_the_first_problems_are_named(closed: Store, tmp_path: Path) -> None:
    """A file that is wrong throughout does not fill the screen."""
    gift, charge = await exported(closed)
    forged = {
        **charge,
        **dict.fromkeys(("amount", "created_at", "account", "class", "model", "provider", "key_id"), "x"),
    }
    found = await verify(closed, tmp_path / "a.csv", [gift, forged])
    assert (len(found.problems), found.problems[-1]) == (6, "2 other columns differ")


async def test_what_the_store_no_longer_knows_is_not_proven(closed: Store, tmp_path: Path) -> None:
    """An account that was erased, and metering rows that were removed or corrected since; a refund is younger."""
    rows, file = await exported(closed), tmp_path / "a.csv"
    await refund_request(closed, "october", None, "late", COMMAND_LINE, LATER)
    found = await verify(closed, file, rows)
    assert (found.problems, found.unproven) == ([], {})
    await run_sql(closed, "UPDATE usage SET completion_tokens = 0, cost_nano = 1000")
    found = await verify(closed, file, rows)
    assert (found.problems, found.unproven) == ([], {"request": 1})
    await run_sql(closed, "DELETE FROM usage")
    await erase_account(closed, "acct_a@example.org", COMMAND_LINE, LATER)
    found = await verify(closed, file, rows)
    assert (found.problems, found.unproven) == ([], {"request": 1, "account": 2})
    found = await verify(closed, file, [{**rows[0], "amount": "9.00"}, rows[1]])
    assert len(found.problems) == 1


async def test_a_file_says_each_column_once(closed: Store, tmp_path: Path) -> None:
    """Of two columns with one name a reader may see the other one; any other file is refused."""
    rows, file = await exported(closed), tmp_path / "a.csv"
    text = csv_table(EXPORT_FIELDS, rows)
    table = [*csv.reader(text.splitlines())]
    doubled = "\n".join(",".join([*row, row[4]]) for row in table)
    line = json.dumps(rows[0])
    others = (
        "id\n1\n",
        doubled,
        text.replace("amount_nano", "amount", 1),
        text + "1,2\n",
        line[:-1] + ', "amount": "9"}',
    )
    for other in (*others, '{"id": 1}', "{", text.replace("amount,", "note,", 1)):
        file.write_text(other)
        with pytest.raises(ValueError, match="is not a file of 'cadenza ledger export'"):
            await verify_file(closed, "2026-10", file)
    with pytest.raises(ValueError, match="cannot be read"):
        await verify_file(closed, "2026-10", tmp_path / "missing.csv")
