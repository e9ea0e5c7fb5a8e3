"""cadenza documents issue | list | show | export."""

import contextlib
import hashlib
import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from tests.cli.conftest import EMAIL
from tests.cli.program import run_here

BILLING = '[billing]\nseller = "Example Ltd"\nnumber_prefix = "EX-"\ntax_rate = "8.875"\n'
PAYMENT = (
    "INSERT INTO payments SELECT 'pay_1', id, 'stripe', 'cs_1', 'pi_1', 20000000000, 0, 'paid', 1, 2 FROM accounts"
)
ENTRY = """
    INSERT INTO entries (account_id, kind, amount_nano, note, created_at)
    SELECT id, 'grant', 5, '', 86400000 FROM accounts"""


def test_documents_are_issued_shown_and_exported(furnished: Path) -> None:
    """A receipt and the statement of a month: in the list with the hash of their facts, and as PDF with its hash."""
    (furnished / "cadenza.toml").write_text(BILLING)
    with contextlib.closing(sqlite3.connect(furnished / "data" / "cadenza.db")) as store, store:
        store.execute(PAYMENT)
        store.execute(ENTRY)
    for statements in (1, 0):
        done = run_here(furnished, "documents", "issue", "--month", "1970-01")
        assert done.stderr == f"Issued: receipts {statements}, credit notes 0, statements {statements}.\n"
    rows = json.loads(run_here(furnished, "documents", "list", "--account", EMAIL, "--json").stdout)
    assert [(row["number"], row["subject"], row["amount"]) for row in rows] == [
        ("EX-R-000001", "pay_1", "20.00"),
        ("EX-S-000001", "1970-01", "0.000000005"),
    ]
    shown = run_here(furnished, "documents", "show", "EX-R-000001").stdout
    for line in ("From: Example Ltd", "Tax 8.875%               1.63", rows[0]["sha256"]):
        assert line in shown
    [facts] = json.loads(run_here(furnished, "documents", "show", "EX-S-000001", "--json").stdout)
    assert facts["lines"] == [{"label": "Granted credit", "amount_nano": 5}]
    done = run_here(furnished, "documents", "export", "--folder", "out/pdf")
    names = [line.split() for line in done.stdout.splitlines()]
    assert [name for _, name in names] == ["EX-R-000001.pdf", "EX-S-000001.pdf"]
    for digest, name in names:
        assert hashlib.sha256((furnished / "out" / "pdf" / name).read_bytes()).hexdigest() == digest


def test_what_cannot_be_done_is_said(furnished: Path) -> None:
    """No seller, a month that is not over, a number that does not exist, and numbers beside a time."""
    done = run_here(furnished, "documents", "issue")
    assert (done.returncode, "has no section [billing]" in done.stderr) == (1, True)
    (furnished / "cadenza.toml").write_text(BILLING)
    month = f"{datetime.now(UTC):%Y-%m}"
    for words, said in (
        (("issue", "--month", month), f"{month} is not over"),
        (("issue", "--month", "October"), "must be a month, like 2026-10"),
        (("show", "R-1"), "There is no document R-1"),
        (("export", "R-1", "--month", month, "--folder", "x"), "not both"),
    ):
        done = run_here(furnished, "documents", *words)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
