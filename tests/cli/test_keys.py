"""cadenza key create | list | revoke. test_mistakes has what they refuse."""

import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cadenza.core.codes import is_well_formed
from tests.cli.conftest import EMAIL
from tests.cli.program import Done, run, run_here

FIELDS = ["id", "name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at"]

Keys = list[dict[str, Any]]


@pytest.fixture(scope="module")
def listed(made: Path) -> Keys:
    """The two keys of every furnished folder."""
    return _keys(made)


@pytest.fixture(scope="module")
def created(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """What `key create` printed."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("created"), dirs_exist_ok=True)
    return run(Path(folder), "key", "create", "--account", EMAIL)


def test_key_is_alone_on_standard_output(created: Done) -> None:
    """A script can take the key from standard output; all that is for a person goes to standard error."""
    assert created.returncode == 0
    secret = created.stdout.removesuffix("\n")
    assert is_well_formed(secret.encode())
    assert secret not in created.stderr
    assert "shown once" in created.stderr
    assert "Scopes: inference, models, usage" in created.stderr


def test_revoke_command_can_be_copied(created: Done) -> None:
    """The printed command that revokes the new key is on one line."""
    assert re.search(r"cadenza key revoke key_[\w-]{24}$", created.stderr, re.MULTILINE)


def test_listed_keys(listed: Keys) -> None:
    """Keys are listed oldest first, each with exactly the documented fields."""
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
    """A key expires the given number of days after its creation, or never."""
    laptop, ci = listed
    assert laptop["expires_at"] is None
    lifetime = datetime.fromisoformat(ci["expires_at"]) - datetime.fromisoformat(ci["created_at"])
    assert lifetime == timedelta(days=30)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(ci["created_at"])) < timedelta(hours=1)


def test_table_shows_what_revoke_takes(made: Path, listed: Keys) -> None:
    """The table shows prefixes and ids in full, so that they can be copied into `key revoke`."""
    shown = run_here(made, "key", "list", "--account", EMAIL).stdout.split()
    for key in listed:
        assert {key["prefix"], key["id"]} <= set(shown)


def test_brackets_in_a_name_are_printed_as_typed(furnished: Path) -> None:
    """A name that looks like terminal markup is listed as it was given."""
    run_here(furnished, "key", "create", "--account", EMAIL, "--name", "[bold]a[/]")
    assert "[bold]a[/]" in run_here(furnished, "key", "list", "--account", EMAIL).stdout


def test_revoke_by_prefix(furnished: Path, listed: Keys) -> None:
    """A key is revoked by its prefix; the other key stays active."""
    laptop, _ = listed
    done = run_here(furnished, "key", "revoke", laptop["prefix"])
    assert (done.returncode, done.stdout) == (0, "")
    assert f"{laptop['id']}) is revoked" in done.stderr
    assert [key["state"] for key in _keys(furnished)] == ["revoked", "active"]


def test_revoke_by_the_whole_key(furnished: Path) -> None:
    """A leaked key can be revoked by its own text, which is not printed again."""
    secret = run_here(furnished, "key", "create", "--account", EMAIL).stdout.strip()
    done = run_here(furnished, "key", "revoke", secret)
    assert done.returncode == 0
    assert f"The key {secret[:12]}… (" in done.stderr
    assert secret not in done.stderr


def test_revoke_twice(furnished: Path, listed: Keys) -> None:
    """A key is revoked by its id; revoking it again succeeds and says that it was already revoked."""
    laptop, _ = listed
    first, second = (run_here(furnished, "key", "revoke", laptop["id"]) for _ in range(2))
    assert first.returncode == second.returncode == 0
    assert f"{laptop['id']}) is revoked" in first.stderr
    assert f"{laptop['id']}) was already revoked" in second.stderr


def _keys(folder: Path) -> Keys:
    done = run_here(folder, "key", "list", "--account", EMAIL, "--json")
    assert done.returncode == 0, done.stderr
    keys: Keys = json.loads(done.stdout)
    return keys
