"""A folder to run commands in, whose store has an account with two keys."""

import shutil
from pathlib import Path

import pytest

from tests.cli.program import run_here

EMAIL = "owner@example.org"
PASSWORD = "correct horse battery staple"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `furnished` copies: an account with 5.00 dollars, a key with full access and a restricted one."""
    folder = tmp_path_factory.mktemp("made")
    for args in (
        ("account", "create", EMAIL, "--credit", "5.00", "--password-stdin"),
        ("key", "create", "--account", EMAIL, "--name", "laptop"),
        ("key", "create", "--account", EMAIL, "--name", "ci", "--scope", "models", "--expires", "30"),
    ):
        done = run_here(folder, *args, given=PASSWORD + "\n")
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def furnished(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path
