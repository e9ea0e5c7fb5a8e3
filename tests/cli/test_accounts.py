"""cadenza account create | list | credit. test_mistakes has what they refuse."""

import json
import re
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from argon2 import PasswordHasher

from tests.cli.conftest import EMAIL, PASSWORD
from tests.cli.program import COMMAND_S, PROGRAM, run, run_here
from tests.environment import environment

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def test_created_account_is_listed(tmp_path: Path) -> None:
    """An account gets the class and the credit of its command line, and its email address in lower case."""
    args = ("account", "create", "New@Example.org", "--credit", "0.000000001", "--class", "mezzo", "--password-stdin")
    done = run(tmp_path, *args, given=PASSWORD)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Created new@example.org with 0.000000001 dollars" in done.stderr
    (account,) = json.loads(run(tmp_path, "account", "list", "--json").stdout)
    assert account.pop("id").startswith("acct_")
    assert RFC_3339.fullmatch(account.pop("created_at"))
    money = {"balance": "0.000000001", "granted": "0.000000001", "held": "0.00", "debt": "0.00"}
    state = {"state": "active", "is_operator": False}
    assert account == {"email": "new@example.org", "class": "mezzo", **state, **money}


def test_password_is_the_first_line_of_standard_input(made: Path) -> None:
    """The stored hash is the hash of that line, without its line end."""
    assert PasswordHasher().verify(_only_value(made, "SELECT password_hash FROM accounts"), PASSWORD)


def test_without_a_terminal_the_option_is_named(tmp_path: Path) -> None:
    """A command that can ask nobody says how to send the password."""
    done = subprocess.run(
        [PROGRAM, "account", "create", EMAIL],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 1
    assert "cadenza: There is no terminal to ask for the password: send it with --password-stdin." in done.stderr


def test_brackets_in_an_address_are_printed_as_typed(tmp_path: Path) -> None:
    """An address that looks like terminal markup is an ordinary address."""
    done = run_here(tmp_path, "account", "create", "[/x]@example.org", "--password-stdin", given=PASSWORD)
    assert "Created [/x]@example.org" in done.stderr


def test_credit_is_added_exactly(furnished: Path) -> None:
    """Credit is added to the nano-dollar, and its note goes into the ledger."""
    done = run_here(furnished, "account", "credit", EMAIL, "0.000000001", "--note", "-1 nano-dollar")
    assert done.returncode == 0
    assert f"The balance of {EMAIL} is 5.000000001 dollars." in done.stderr
    assert _only_value(furnished, "SELECT note FROM entries WHERE amount_nano = 1") == "-1 nano-dollar"


def test_table_is_never_cut(made: Path) -> None:
    """Without --json the list is a table whose values can be copied, whatever the width of the terminal."""
    account_id = str(_only_value(made, "SELECT id FROM accounts"))
    done = run(made, "account", "list", COLUMNS="40")
    assert done.returncode == 0
    names, values = (line.split() for line in done.stdout.splitlines())
    assert names == ["email", "state", "class", "balance", "granted", "held", "debt", "created_at", "id"]
    assert values[:6] == [EMAIL, "active", "forte", "5.00", "5.00", "0.00"]
    assert values[8] == account_id


def _only_value(folder: Path, sql: str) -> str:
    with closing(sqlite3.connect(folder / "data" / "cadenza.db")) as connection:
        ((value,),) = connection.execute(sql)
    return str(value)
