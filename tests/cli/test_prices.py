"""cadenza class price."""

import json
from pathlib import Path

import pytest

from tests.cli.program import run_here

CHANGE = ("forte", "--input", "1.20", "--output", "3.60", "--from", "2031-12-01")


def test_prices_are_listed_with_their_changes(tmp_path: Path) -> None:
    """What counts now, without a date if it is the config's, and what comes; after a cancellation it is gone."""
    assert run_here(tmp_path, "migrate").returncode == 0
    done = run_here(tmp_path, "class", "price", *CHANGE)
    assert (done.returncode, done.stdout) == (0, "")
    assert "forte costs 1.20 input / 3.60 output from 2031-12-01T00:00:00Z (UTC) on." in done.stderr
    rows = json.loads(run_here(tmp_path, "class", "price", "forte", "--json").stdout)
    amounts: list[dict[str, str | None]] = [
        {"class": "forte", "state": "now", "from": None, "input": "1.07", "output": "3.45"},
        {"class": "forte", "state": "to come", "from": "2031-12-01T00:00:00Z", "input": "1.20", "output": "3.60"},
    ]
    assert rows == [{**one, "cached_input": None} for one in amounts]
    assert run_here(tmp_path, "class", "price", "forte", "--cancel", "2031-12-01").returncode == 0
    table = run_here(tmp_path, "class", "price").stdout
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [
        [class_id, "now"] for class_id in ("mezzo", "forte", "fortissimo")
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("forte", "--input", "1.20"), "also needs --output and --from"),
        (("--input", "1", "--output", "1", "--from", "2031-12-01"), "needs a CLASS"),
        (("--cancel", "2031-12-01"), "--cancel takes a CLASS"),
        (("forte", "--cancel", "2031-12-01", "--input", "1"), "--cancel takes a CLASS"),
        ((*CHANGE[:-1], "2020-01-01"), "2020-01-01T00:00:00Z is past"),
        ((*CHANGE[:-1], "soon"), "write it like 2026-12-01"),
        (("forte", "--input", "1,20", *CHANGE[3:]), "is not an amount of dollars"),
        (("piano",), "Use one of: mezzo, forte, fortissimo"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, given: tuple[str, ...], words: str) -> None:
    """Each says what to do, with exit code 1."""
    done = run_here(tmp_path, "class", "price", *given)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
