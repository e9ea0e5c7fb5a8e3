"""cadenza key create | list | revoke. What they refuse is in test_mistakes."""

import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cadenza.core.apikey import is_well_formed
from tests.cli.conftest import EMAIL
from tests.cli.program import Done, run

FIELDS = ["id", "name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at"]

Keys = list[dict[str, Any]]


@pytest.fixture(scope="module")
def listed(made: Path) -> Keys:
    """The two keys that every furnished folder has."""
    return _keys(made)


@pytest.fixture(scope="module")
def created(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """What a command printed that made a key."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("created"), dirs_exist_ok=True)
    return run(Path(folder), "key", "create", "--account", EMAIL)


def test_key_stands_alone_on_standard_output(created: Done) -> None:
    """A script can take the key from standard output; what a person wants to know stands on the other one."""
    assert created.returncode == 0
    secret = created.stdout.removesuffix("\n")
    assert is_well_formed(secret.encode())
    assert secret not in created.stderr
    assert "shown once" in created.stderr
    assert "Scopes: inference, models, usage" in created.stderr


def test_command_that_revokes_can_be_copied(created: Done) -> None:
    """The command that is shown to revoke the new key stands on one line."""
    assert re.search(r"cadenza key revoke key_[\w-]{24}$", created.stderr, re.MULTILINE)


def test_listed_keys(listed: Keys) -> None:
    """Keys come oldest first, each with exactly the fields of the contract."""
    laptop, ci = listed
    assert list(laptop) == list(ci) == FIELDS
    assert (laptop["name"], laptop["scopes"]) == ("laptop", ["inference", "models", "usage"])
    assert (ci["name"], ci["scopes"]) == ("ci", ["models"])
    assert laptop["state"] == ci["state"] == "active"
    assert laptop["last_used_at"] is ci["last_used_at"] is None
    assert laptop["id"].startswith("key_")
    assert laptop["prefix"].startswith("sk-cdz-")
    assert len(laptop["prefix"]) == 12


def test_expiry(listed: Keys) -> None:
    """A key expires so many days after it was made, or never."""
    laptop, ci = listed
    assert laptop["expires_at"] is None
    lifetime = datetime.fromisoformat(ci["expires_at"]) - datetime.fromisoformat(ci["created_at"])
    assert lifetime == timedelta(days=30)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(ci["created_at"])) < timedelta(hours=1)


def test_table_shows_what_revoke_takes(made: Path, listed: Keys) -> None:
    """Without --json the list is a table whose prefixes and ids can be copied into `key revoke`."""
    shown = run(made, "key", "list", "--account", EMAIL).stdout.split()
    for key in listed:
        assert {key["prefix"], key["id"]} <= set(shown)


def test_brackets_in_a_name_are_no_markup(furnished: Path) -> None:
    """A name that looks like the markup of a terminal is listed as it was given."""
    run(furnished, "key", "create", "--account", EMAIL, "--name", "[bold]a[/]")
    done = run(furnished, "key", "list", "--account", EMAIL, COLUMNS="200")
    assert "Traceback" not in done.stderr
    assert "[bold]a[/]" in done.stdout


def test_revoke_by_prefix(furnished: Path, listed: Keys) -> None:
    """A key is revoked by its prefix; the other key stays active."""
    laptop, _ = listed
    done = run(furnished, "key", "revoke", laptop["prefix"])
    assert done.returncode == 0
    assert done.stdout == ""
    assert f"{laptop['id']}) is revoked" in done.stderr
    assert [key["state"] for key in _keys(furnished)] == ["revoked", "active"]


def test_revoke_by_the_whole_key(furnished: Path) -> None:
    """Whoever holds a key that leaked can revoke it by itself, and it is not repeated."""
    secret = run(furnished, "key", "create", "--account", EMAIL).stdout.strip()
    done = run(furnished, "key", "revoke", secret)
    assert done.returncode == 0
    assert f"The key {secret[:12]}… (" in done.stderr
    assert secret not in done.stderr


def test_revoke_twice(furnished: Path, listed: Keys) -> None:
    """A key is revoked by its id; to do it again is no mistake, and is told."""
    laptop, _ = listed
    first, second = (run(furnished, "key", "revoke", laptop["id"]) for _ in range(2))
    assert first.returncode == second.returncode == 0
    assert f"{laptop['id']}) is revoked" in first.stderr
    assert f"{laptop['id']}) was revoked already" in second.stderr


def _keys(folder: Path) -> Keys:
    done = run(folder, "key", "list", "--account", EMAIL, "--json")
    assert done.returncode == 0, done.stderr
    keys: Keys = json.loads(done.stdout)
    return keys
