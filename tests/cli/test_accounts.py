"""The password of an account, and the mode of its archive. transcripts/accounts.txt has the rest."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from argon2 import PasswordHasher

from tests.cli.conftest import EMAIL, PASSWORD
from tests.cli.program import run, run_here


def test_password_is_the_first_line_of_standard_input(made: Path) -> None:
    """The stored hash is the hash of that line, without its line end."""
    with closing(sqlite3.connect(made / "data" / "cadenza.db")) as connection:
        [(stored,)] = connection.execute("SELECT password_hash FROM accounts")
    assert PasswordHasher().verify(stored, PASSWORD)


def test_without_a_terminal_the_option_is_named(tmp_path: Path) -> None:
    """A command that can ask nobody says how to send the password."""
    done = run(tmp_path, "account", "create", EMAIL)
    assert done.returncode == 1
    assert done.stderr == "cadenza: There is no terminal to ask for the password: send it with --password-stdin.\n"


def test_an_archive_is_its_owners(furnished: Path) -> None:
    """Nobody else can read what `account export` writes."""
    assert run_here(furnished, "account", "export", EMAIL, "--out", "mine.zip").returncode == 0
    assert stat.S_IMODE((furnished / "mine.zip").stat().st_mode) == 0o600
