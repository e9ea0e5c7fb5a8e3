"""cadenza key limit, and the limits that a key is created with. tests/contract has their effect on requests."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cadenza.core.codes import is_well_formed
from tests.cli.conftest import EMAIL
from tests.cli.program import run_here

FIELDS = ["id", "name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at"]
RATE_BOUNDS = "A rate is above 0 and at most 1,000,000"
BURST_BOUNDS = "A burst is from 1 to 1,000,000"
BAD: Mapping[str, tuple[tuple[str, ...], str]] = {
    "rate of zero": (("--rate", "0"), RATE_BOUNDS),
    "rate that is not a number": (("--rate", "nan"), RATE_BOUNDS),
    "negative rate": (("--rate", "-2.5"), RATE_BOUNDS),
    "burst too high": (("--rate", "5", "--burst", "1000001"), BURST_BOUNDS),
}

Keys = list[dict[str, Any]]


@pytest.mark.parametrize("name", BAD)
def test_bad_limit_is_refused(furnished: Path, name: str) -> None:
    """Setting and creating exit with 1 and one sentence that says the bounds, and no key is created."""
    options, bounds = BAD[name]
    for command in (("key", "limit", _keys(furnished)[0]["id"]), ("key", "create", "--account", EMAIL)):
        done = run_here(furnished, *command, *options)
        assert (done.returncode, done.stdout) == (1, "")
        assert bounds in done.stderr
        assert done.stderr.startswith("cadenza: ")
    assert len(_keys(furnished)) == 2


def test_limits_are_set_and_removed(furnished: Path) -> None:
    """Prefix and id both name the key; standard error says its limits, and the table lists them."""
    key = _keys(furnished)[0]
    name = f"The key {key['prefix']}… ({key['id']})"
    given = run_here(furnished, "key", "limit", key["prefix"], "--rate", "2.5", "--burst", "7")
    assert (given.returncode, given.stdout) == (0, "")
    assert given.stderr == f"{name} may make 2.5 requests per second, and 7 at once.\n"
    assert _listed_limits(furnished) == [["2.5/s", "7"], ["default", "default"]]
    removed = run_here(furnished, "key", "limit", key["id"])
    assert (removed.returncode, removed.stdout) == (0, "")
    assert removed.stderr == f"{name} has the default limits again.\n"
    assert _listed_limits(furnished) == [["default", "default"]] * 2


def test_key_is_created_with_limits(furnished: Path) -> None:
    """The new key is alone on standard output; JSON lists it with exactly the documented fields."""
    made = run_here(furnished, "key", "create", "--account", EMAIL, "--rate", "0.5", "--burst", "3")
    assert made.returncode == 0, made.stderr
    assert is_well_formed(made.stdout.removesuffix("\n").encode())
    assert [list(key) for key in _keys(furnished)] == [FIELDS] * 3
    assert _listed_limits(furnished)[2] == ["0.5/s", "3"]


def test_limits_of_an_unknown_key_are_refused(furnished: Path) -> None:
    """A name that matches no key exits with 1 and says how to list the keys."""
    done = run_here(furnished, "key", "limit", "key_unknown", "--rate", "5")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cadenza: No key matches 'key_unknown'")
    assert "cadenza key list" in done.stderr


def _keys(folder: Path) -> Keys:
    done = run_here(folder, "key", "list", "--account", EMAIL, "--json")
    assert done.returncode == 0, done.stderr
    keys: Keys = json.loads(done.stdout)
    return keys


def _listed_limits(folder: Path) -> list[list[str]]:
    """The rate and burst columns of the table."""
    header, *lines = run_here(folder, "key", "list", "--account", EMAIL).stdout.splitlines()
    start, end = header.index("rate"), header.index("created_at")
    return [line[start:end].split() for line in lines]
