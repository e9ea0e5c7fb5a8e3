"""cadenza ledger export: both of its formats. transcripts/ledger.txt has the rest."""

import csv
import io
import json
import stat
from pathlib import Path

import pytest

from cadenza.core.formats import escape_formula
from tests.cli.program import run, run_here


def test_both_formats_have_the_same_values(books: Path) -> None:
    """CSV, the default, has a header and the same values as JSON lines."""
    done, lines = run(books, "ledger", "export"), run_here(books, "ledger", "export", "--format", "jsonl")
    entries = [json.loads(line) for line in lines.stdout.splitlines()]
    as_text = [{name: "" if value is None else str(value) for name, value in one.items()} for one in entries]
    assert list(csv.DictReader(io.StringIO(done.stdout))) == as_text
    *_, forte, mezzo = entries
    assert (forte["kind"], forte["amount_nano"], forte["request_id"]) == ("charge", -35_920, "req-of-chatcmpl-forte")
    assert (forte["prompt_tokens"], forte["cached_tokens"], forte["completion_tokens"]) == (11, 3, 7)
    assert (forte["input_nano"], forte["output_nano"], forte["cached_input_nano"]) == (1070, 3450, None)
    assert (forte["provider"], forte["model"], forte["short_nano"], forte["source"]) == ("acme", "large", 0, "request")
    assert forte["estimated"] is False
    assert mezzo["estimated"] is True


@pytest.mark.parametrize(
    ("cell", "escaped"),
    [("\t=1", "'\t=1"), ("\r=1", "'\r=1"), ("+cmd", "'+cmd"), ("a=1", "a=1"), (-5, -5), (None, None)],
)
def test_cells_that_begin_like_a_formula(cell: object, escaped: object) -> None:
    """They get a quote in front, also behind a tab or a carriage return; other cells do not change."""
    assert escape_formula(cell) == escaped


def test_every_account_has_its_closing_balance(october: Path, tmp_path: Path) -> None:
    """Of an open month; transcripts/month.txt has the closed one. Files are private and new, all of them or none."""
    file = tmp_path / "accounts.csv"
    assert run_here(october, "report", "month", "2025-10", "--accounts", str(file)).returncode == 0
    rows = sorted([*csv.reader(file.read_text().splitlines())][1:], key=lambda row: row[1])
    assert [row[1:] for row in rows] == [
        ["ann@example.org", "80.00", "80.00", "0.00"],
        ["bob@example.org", "47.00", "47.00", "0.00"],
    ]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_text()
    for unfit, said in ((file, "exists already: give another name"), (tmp_path / "no" / "file", "cannot be written")):
        files = ("--csv", str(tmp_path / "month.csv"), "--accounts", str(unfit))
        done = run_here(october, "report", "month", "2025-10", *files)
        assert (done.returncode, done.stdout, f"{unfit} {said}" in done.stderr) == (1, "", True)
    assert ([*tmp_path.iterdir()], file.read_text()) == ([file], before)
