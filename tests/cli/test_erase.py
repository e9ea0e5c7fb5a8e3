"""cadenza account erase: it asks, it shows what is forfeited, and the books still add up."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import EMAIL
from tests.cli.program import run_here

BEFORE = f"{EMAIL} has 5.00 dollars of credit, which are forfeited.\n"


def accounts(folder: Path) -> list[tuple[str, str]]:
    """The address and the state of each."""
    listed = json.loads(run_here(folder, "account", "list", "--json").stdout)
    return [(account["email"], account["state"]) for account in listed]


@pytest.mark.parametrize(("args", "given"), [((), f" {EMAIL.upper()} \n"), (("--yes",), "")])
def test_an_account_is_erased(furnished: Path, args: tuple[str, ...], given: str) -> None:
    """After its address was typed again, or with --yes; the ledger is sound, and the export has no address."""
    run_here(furnished, "memory", "add", "--account", EMAIL, "a note")
    done = run_here(furnished, "account", "erase", EMAIL, *args, given=given)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.startswith(BEFORE)
    assert "Forfeited: 5.00 dollars." in done.stderr
    [(address, state)] = accounts(furnished)
    assert (address.startswith("erased-acct_"), state) == (True, "erased")
    assert run_here(furnished, "ledger", "check").returncode == 0
    exported = run_here(furnished, "ledger", "export").stdout
    assert EMAIL not in exported
    assert "left over when the account was erased" in exported
    assert EMAIL not in run_here(furnished, "audit", "list", "--json").stdout


@pytest.mark.parametrize(
    ("args", "given", "reason"),
    [
        ((EMAIL,), "other@example.org\n", "That is not the address. Nothing was erased."),
        ((EMAIL,), "", "There is no terminal to ask: confirm with --yes. Nothing was erased."),
        (("nobody@example.org", "--yes"), "", "There is no account for 'nobody@example.org'."),
    ],
)
def test_nothing_is_erased_by_mistake(furnished: Path, args: tuple[str, ...], given: str, reason: str) -> None:
    """Without the address typed again, and for an unknown account, nothing happens."""
    done = run_here(furnished, "account", "erase", *args, given=given)
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr
    assert re.search(rf"^cadenza: {re.escape(reason)}", done.stderr, re.MULTILINE)  # not behind the question
    assert accounts(furnished) == [(EMAIL, "active")]
