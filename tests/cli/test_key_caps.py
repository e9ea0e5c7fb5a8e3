"""cadenza key cap and key rename, and the cap that a key is created with. tests/contract has their effect."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cadenza.core.codes import is_well_formed
from tests.cli.conftest import EMAIL
from tests.cli.program import run_here

BAD: Mapping[str, tuple[tuple[str, ...], int, str]] = {
    "no amount": (("five",), 1, "'five' is not an amount of dollars"),
    "too exact": (("0.0000000001",), 1, "more than 9 decimals"),
    "too large": (("1000000001",), 1, "is more than"),
    "unknown period": (("5", "--period", "week"), 2, "'week' is not one of 'total', 'month'"),
}


def test_a_cap_is_set_and_removed(furnished: Path) -> None:
    """Prefix and id both name the key; standard error says its cap and what is spent, and the table lists it."""
    key = _keys(furnished)[0]
    name = f"The key {key['prefix']}… ({key['id']})"
    for words, said, listed in (
        (("5.00",), "may spend 5.00 dollars in total; 0.00 are spent.", ["5.00", "0.00"]),
        (("2.5", "--period", "month"), "may spend 2.50 dollars a month; 0.00 are spent.", ["2.50/month", "0.00"]),
        (("none",), "has no spend cap.", ["–", "–"]),
    ):
        done = run_here(furnished, "key", "cap", key["prefix"], *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{name} {said}\n")
        assert _listed_caps(furnished) == [listed, ["–", "–"]]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_cap_is_refused(furnished: Path, name: str) -> None:
    """The reason is one sentence, and nothing changes."""
    words, code, reason = BAD[name]
    done = run_here(furnished, "key", "cap", _keys(furnished)[0]["id"], *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert reason in done.stderr
    assert _listed_caps(furnished) == [["–", "–"]] * 2


def test_a_key_is_created_with_a_cap(furnished: Path) -> None:
    """The key is alone on standard output, and standard error says the cap."""
    made = run_here(furnished, "key", "create", "--account", EMAIL, "--cap", "5", "--cap-period", "month")
    assert made.returncode == 0, made.stderr
    assert is_well_formed(made.stdout.removesuffix("\n").encode())
    assert "It may spend 5.00 dollars a month." in made.stderr
    assert _listed_caps(furnished)[2] == ["5.00/month", "0.00"]


def test_a_key_is_renamed(furnished: Path) -> None:
    """Standard error says the new name, and the list has it."""
    key = _keys(furnished)[0]
    done = run_here(furnished, "key", "rename", key["id"], "the new laptop")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"The key {key['prefix']}… ({key['id']}) is named 'the new laptop'.\n"
    assert _keys(furnished)[0]["name"] == "the new laptop"


def _keys(folder: Path) -> list[dict[str, Any]]:
    done = run_here(folder, "key", "list", "--account", EMAIL, "--json")
    assert done.returncode == 0, done.stderr
    keys: list[dict[str, Any]] = json.loads(done.stdout)
    return keys


def _listed_caps(folder: Path) -> list[list[str]]:
    """The cap and spent columns of the table."""
    header, *lines = run_here(folder, "key", "list", "--account", EMAIL).stdout.splitlines()
    start, end = header.index("cap"), header.index("rate")
    return [line[start:end].split() for line in lines]
