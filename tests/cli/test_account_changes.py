"""cadenza account operator | password | class | suspend | resume | link | invite | remove-second-factor."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from tests.cli.conftest import EMAIL
from tests.cli.program import run_here


def value_of(folder: Path, column: str) -> object:
    with closing(sqlite3.connect(folder / "data" / "cadenza.db")) as connection:
        ((value,),) = connection.execute(f"SELECT {column} FROM accounts")
    return value


def test_the_command_line_makes_an_operator(furnished: Path) -> None:
    """The first account is an ordinary one. It can be made an operator's, and ordinary again."""
    assert value_of(furnished, "is_operator") == 0
    assert "is an operator now" in run_here(furnished, "account", "operator", EMAIL).stderr
    assert value_of(furnished, "is_operator") == 1
    assert "is an ordinary account now" in run_here(furnished, "account", "operator", EMAIL, "--remove").stderr
    assert value_of(furnished, "is_operator") == 0


def test_a_password_is_set(furnished: Path) -> None:
    """The new password counts, and too short a one is refused."""
    done = run_here(furnished, "account", "password", EMAIL, "--password-stdin", given="a new password\n")
    assert done.returncode == 0
    assert PasswordHasher().verify(str(value_of(furnished, "password_hash")), "a new password")
    done = run_here(furnished, "account", "password", EMAIL, "--password-stdin", given="short\n")
    assert (done.returncode, "8 to 1024" in done.stderr) == (1, True)


def test_the_class_of_auto_is_chosen(furnished: Path) -> None:
    """A class is chosen, and what is no class is refused with the list of them."""
    assert "auto means mezzo now" in run_here(furnished, "account", "class", EMAIL, "mezzo").stderr
    (account,) = json.loads(run_here(furnished, "account", "list", "--json").stdout)
    assert account["class"] == "mezzo"
    done = run_here(furnished, "account", "class", EMAIL, "piano")
    assert (done.returncode, "mezzo, forte, fortissimo" in done.stderr) == (1, True)


def test_an_account_is_suspended_and_resumed(furnished: Path) -> None:
    """The time of the suspension is kept until it ends, and the list of accounts shows the state."""
    assert run_here(furnished, "account", "operator", EMAIL, "--remove").returncode == 0
    assert run_here(furnished, "account", "suspend", EMAIL).returncode == 0
    assert value_of(furnished, "suspended_at")
    assert " suspended " in run_here(furnished, "account", "list").stdout
    assert run_here(furnished, "account", "resume", EMAIL).returncode == 0
    assert value_of(furnished, "suspended_at") is None
    assert " active " in run_here(furnished, "account", "list").stdout


def test_an_operator_is_not_suspended(furnished: Path) -> None:
    """The command refuses and names the command that takes the role away, as the page of the operator does."""
    assert run_here(furnished, "account", "operator", EMAIL).returncode == 0
    done = run_here(furnished, "account", "suspend", EMAIL)
    assert (done.returncode, f"cadenza account operator {EMAIL} --remove" in done.stderr) == (1, True)
    assert value_of(furnished, "suspended_at") is None


@pytest.mark.parametrize(("kind", "path"), [("reset", "/reset/"), ("verify", "/verify/")])
def test_a_link_is_printed_alone(furnished: Path, kind: str, path: str) -> None:
    """Standard output has the link and nothing else, with the address of the config."""
    (furnished / "cadenza.toml").write_text('[platform]\nbase_url = "https://cadenza.example"\n')
    done = run_here(furnished, "account", "link", EMAIL, kind)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"https://cadenza.example{path}")
    assert done.stdout.count("\n") == 1
    assert "works once" in done.stderr


def test_an_invitation_needs_a_sign_up_that_is_not_closed(furnished: Path) -> None:
    """While sign-up is closed, the command says how to change that."""
    done = run_here(furnished, "account", "invite")
    assert (done.returncode, 'sign_up = "invite"' in done.stderr) == (1, True)


@pytest.mark.parametrize(
    "args",
    [
        ("operator", "nobody@example.org"),
        ("class", "nobody@example.org", "forte"),
        ("suspend", "nobody@example.org"),
        ("resume", "nobody@example.org"),
        ("link", "nobody@example.org", "reset"),
        ("remove-second-factor", "nobody@example.org"),
    ],
)
def test_an_unknown_account_is_told(furnished: Path, args: tuple[str, ...]) -> None:
    """Every command says that there is no such account."""
    done = run_here(furnished, "account", *args)
    assert (done.returncode, "There is no account for" in done.stderr) == (1, True)
