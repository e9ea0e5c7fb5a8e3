"""cadenza account create | list | credit. What they refuse is in test_mistakes."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

from argon2 import PasswordHasher

from tests.cli.conftest import EMAIL, PASSWORD
from tests.cli.program import Done, run

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def test_created_account_is_listed(tmp_path: Path) -> None:
    """An account has the class and the credit that it was created with, and an address in lower case."""
    args = ("account", "create", "New@Example.org", "--credit", "0.000000001", "--class", "mezzo", "--password-stdin")
    done = run(tmp_path, *args, given=PASSWORD)
    assert done.returncode == 0
    assert done.stdout == ""
    assert "Created new@example.org with 0.000000001 dollars" in done.stderr
    (account,) = json.loads(run(tmp_path, "account", "list", "--json").stdout)
    assert account.pop("id").startswith("acct_")
    assert RFC_3339.fullmatch(account.pop("created_at"))
    assert account == {"email": "new@example.org", "class": "mezzo", "balance": "0.000000001", "held": "0.00"}


def test_password_is_the_line_that_was_given(made: Path) -> None:
    """The stored hash is that of the line on standard input, without its end."""
    assert PasswordHasher().verify(_only_value(made, "SELECT password_hash FROM accounts"), PASSWORD)


def test_brackets_in_an_address_are_no_markup(tmp_path: Path) -> None:
    """An address that looks like the markup of a terminal is an address like any other."""
    done = run(tmp_path, "account", "create", "[/x]@example.org", "--password-stdin", given=PASSWORD)
    assert "Traceback" not in done.stderr
    assert "Created [/x]@example.org" in done.stderr


def test_credit_is_added_exactly(furnished: Path) -> None:
    """Credit adds to the balance to the last nano-dollar, and its note goes into the ledger."""
    done = run(furnished, "account", "credit", EMAIL, "0.000000001", "--note", "a nano-dollar")
    assert done.returncode == 0
    assert f"The balance of {EMAIL} is 5.000000001 dollars." in done.stderr
    assert _only_value(furnished, "SELECT note FROM entries WHERE amount_nano = 1") == "a nano-dollar"


def test_table_shows_the_id_in_full(made: Path) -> None:
    """Without --json the list is a table whose values can be copied, though nobody says how wide the terminal is."""
    account_id = str(_only_value(made, "SELECT id FROM accounts"))
    done = run(made, "account", "list")
    assert done.returncode == 0
    assert _shows(done, EMAIL, "5.00", account_id)


def _shows(done: Done, *words: str) -> bool:
    return set(words) <= set(done.stdout.split())


def _only_value(folder: Path, sql: str) -> str:
    with closing(sqlite3.connect(folder / "data" / "cadenza.db")) as connection:
        ((value,),) = connection.execute(sql)
    return str(value)
