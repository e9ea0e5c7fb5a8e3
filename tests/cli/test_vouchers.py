"""cadenza voucher create | list | revoke and cadenza account correct."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import EMAIL
from tests.cli.program import run_here

CODE = re.compile(r"CDZ(-[0-9A-HJKMNP-TV-Z]{4}){5}")


def test_codes_are_alone_on_standard_output(furnished: Path) -> None:
    """Codes come one a line; the list has no code, but what tells them apart."""
    done = run_here(furnished, "voucher", "create", "2.50", "--count", "3", "--expires", "30", "--note", "for a talk")
    codes = done.stdout.split()
    assert done.returncode == 0, done.stderr
    assert len(codes) == 3
    assert all(CODE.fullmatch(code) for code in codes)
    assert "Made 3 of 2.50 dollars, good until 20" in done.stderr
    rows = json.loads(run_here(furnished, "voucher", "list", "--json").stdout)
    assert sorted(row["prefix"] for row in rows) == sorted(code[:8] for code in codes)
    assert {(row["amount"], row["state"], row["note"], row["redeemed_by"]) for row in rows} == {
        ("2.50", "unused", "for a talk", None)
    }
    assert not any(code[8:] in run_here(furnished, "voucher", "list").stdout for code in codes)


def test_credit_may_expire(furnished: Path) -> None:
    """That of a voucher, so many days after it is redeemed, and that of a grant."""
    run_here(furnished, "voucher", "create", "1.00", "--credit-expires", "90")
    [row] = json.loads(run_here(furnished, "voucher", "list", "--json").stdout)
    assert (row["expires_at"], row["credit_days"]) == (None, 90)
    assert run_here(furnished, "account", "credit", EMAIL, "2.00", "--expires", "30").returncode == 0
    done = run_here(furnished, "account", "credit", EMAIL, "2.00", "--expires", "0")
    assert (done.returncode, "Credit expires after 1 to 3,650 days." in done.stderr) == (1, True)
    assert run_here(furnished, "ledger", "check").returncode == 0


def test_a_voucher_is_revoked_once(furnished: Path) -> None:
    """An unused voucher can be revoked; a second time, and an unknown one, is refused."""
    code = run_here(furnished, "voucher", "create", "1").stdout.strip()
    assert "has expired" in run_here(furnished, "voucher", "revoke", code[:8]).stderr
    [row] = json.loads(run_here(furnished, "voucher", "list", "--json").stdout)
    assert row["state"] == "expired"
    again = run_here(furnished, "voucher", "revoke", row["id"])
    assert (again.returncode, "it is expired" in again.stderr) == (1, True)
    assert run_here(furnished, "voucher", "revoke", "CDZ-XXXX").returncode == 1


@pytest.mark.parametrize(
    "args",
    [
        ("-5",),
        ("0",),
        ("five",),
        ("2000000",),
        ("0.0000000001",),
        ("1", "--count", "0"),
        ("1", "--count", "1001"),
        ("1", "--expires", "0"),
        ("1", "--credit-expires", "0"),
    ],
)
def test_absurd_vouchers_are_refused(furnished: Path, args: tuple[str, ...]) -> None:
    """Amounts, counts and expiries that make no sense are one sentence and exit code 1."""
    done = run_here(furnished, "voucher", "create", *args)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cadenza: ")


def test_credit_is_taken_back(furnished: Path) -> None:
    """A correction lowers the balance exactly and has its reason in the ledger."""
    done = run_here(furnished, "account", "correct", EMAIL, "-1.000000001", "--reason", "granted twice")
    assert done.returncode == 0, done.stderr
    assert "The balance is 3.999999999 dollars." in done.stderr
    exported = run_here(furnished, "ledger", "export", "--format", "jsonl").stdout.splitlines()
    entry = json.loads(exported[-1])
    assert (entry["kind"], entry["amount"], entry["note"]) == ("correction", "-1.000000001", "granted twice")
    assert run_here(furnished, "ledger", "check").returncode == 0


@pytest.mark.parametrize(
    ("amount", "reason", "said"),
    [
        ("-5.01", "x", "5.01 dollars cannot be taken from owner@example.org: the balance is 5.00."),
        ("5", "x", "write a negative amount"),
        ("0", "x", "write a negative amount"),
        ("--5", "x", "negative"),
        ("-0.0000000001", "x", "more than 9 decimals"),
        ("-1", " ", "needs a reason"),
    ],
)
def test_a_bad_correction_is_refused(furnished: Path, amount: str, reason: str, said: str) -> None:
    """A correction that would pass zero, or makes no sense, is refused with the numbers."""
    done = run_here(furnished, "account", "correct", "--reason", reason, "--", EMAIL, amount)
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
