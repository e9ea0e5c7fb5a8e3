"""cadenza key limit, and the rate that a key may be made with. That a server heeds them is in tests/contract."""

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cadenza.core.apikey import is_well_formed
from tests.cli.conftest import EMAIL
from tests.cli.program import Done, run

FIELDS = ["id", "name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at"]
RATE_BOUNDS = "A rate is above 0 and at most 1,000,000 requests a second."
BURST_BOUNDS = "A burst is from 1 to 1,000,000 requests."
BAD: Mapping[str, tuple[tuple[str, ...], str]] = {
    "rate of nothing": (("--rate", "0"), RATE_BOUNDS),
    "rate that is no number": (("--rate", "nan"), RATE_BOUNDS),
    "negative rate": (("--rate", "-2.5"), RATE_BOUNDS),
    "burst too high": (("--rate", "5", "--burst", "1000001"), BURST_BOUNDS),
}

Keys = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("limits"), dirs_exist_ok=True))


@pytest.fixture(scope="module")
def listed(folder: Path) -> Keys:
    return _keys(folder)


@pytest.fixture(scope="module")
def refused(folder: Path, listed: Keys) -> dict[str, Done]:
    """What each bad value was answered with, half of them for a key that is there, half for a new one."""
    commands = [("key", "limit", listed[0]["id"]), ("key", "create", "--account", EMAIL)]

    def give(number: int) -> Done:
        return run(folder, *commands[number % 2], *list(BAD.values())[number][0])

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(BAD, pool.map(give, range(len(BAD))), strict=True))


@pytest.mark.parametrize("name", BAD)
def test_bad_value_is_one_sentence(refused: dict[str, Done], name: str) -> None:
    """The command ends with 1 and says in one sentence what the bounds are; no key is made."""
    done = refused[name]
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"cadenza: {BAD[name][1]}\n"


def test_rate_is_given_by_prefix_and_taken_away_by_id(folder: Path, listed: Keys) -> None:
    """Both names find the key, and what it may do from now on is said on standard error."""
    key = listed[0]
    given = run(folder, "key", "limit", key["prefix"], "--rate", "2.5", "--burst", "7")
    assert (given.returncode, given.stdout) == (0, "")
    assert given.stderr == f"The key {key['prefix']}… ({key['id']}) may make 2.5 requests a second, and 7 at once.\n"
    taken = run(folder, "key", "limit", key["id"])
    assert (taken.returncode, taken.stdout) == (0, "")
    assert taken.stderr == f"The key {key['prefix']}… ({key['id']}) has the usual rate again.\n"


def test_key_is_made_with_a_rate(furnished: Path) -> None:
    """The key alone stands on standard output, and it is listed with exactly the fields of the contract."""
    made = run(furnished, "key", "create", "--account", EMAIL, "--rate", "0.5", "--burst", "3")
    assert made.returncode == 0, made.stderr
    assert is_well_formed(made.stdout.removesuffix("\n").encode())
    assert [list(key) for key in _keys(furnished)] == [FIELDS] * 3


def test_rate_of_an_unknown_key_is_a_mistake(folder: Path) -> None:
    """A name that matches no key ends with 1, and says where the keys are shown."""
    done = run(folder, "key", "limit", "key_unknown", "--rate", "5")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cadenza: No key matches 'key_unknown'")
    assert "cadenza key list" in done.stderr


def _keys(folder: Path) -> Keys:
    done = run(folder, "key", "list", "--account", EMAIL, "--json")
    assert done.returncode == 0, done.stderr
    keys: Keys = json.loads(done.stdout)
    return keys
