"""cadenza class suite check."""

import json
from pathlib import Path

from tests.cli.program import run_here

CASE = {
    "id": "sum",
    "tags": ["arithmetic"],
    "messages": [{"role": "user", "content": "1 + 1?"}],
    "graders": [{"kind": "number", "value": 2}],
}


def test_check_counts_by_tag_and_by_grader(tmp_path: Path) -> None:
    """A good suite is counted, as text and as JSON."""
    (tmp_path / "good.jsonl").write_text(json.dumps(CASE) + "\n" + json.dumps(CASE | {"id": "b", "is_cheap": True}))
    done = run_here(tmp_path, "class", "suite", "check", "good.jsonl")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith("good.jsonl: 2 cases, 1 of them cheap, digest ")
    assert done.stdout.splitlines()[1:] == ["By tag: arithmetic 2", "By grader: number 2"]
    (row,) = json.loads(run_here(tmp_path, "class", "suite", "check", "good.jsonl", "--json").stdout)
    assert (row["cases"], row["cheap"], row["tags"], row["graders"]) == (2, 1, {"arithmetic": 2}, {"number": 2})


def test_check_names_every_mistake(tmp_path: Path) -> None:
    """A bad suite ends with status 1, and a sentence for each line."""
    (tmp_path / "bad.jsonl").write_text(json.dumps(CASE | {"tag": "x"}) + "\n{}\n")
    done = run_here(tmp_path, "class", "suite", "check", "bad.jsonl")
    assert done.returncode == 1
    assert "bad.jsonl:1: unknown key: 'tag'; did you mean 'tags'?" in done.stderr
    assert "bad.jsonl:2: Object missing required field `id`" in done.stderr


def test_check_without_a_file_is_of_the_starter_suite(tmp_path: Path) -> None:
    """The starter suite comes with the program."""
    assert run_here(tmp_path, "class", "suite", "check").stdout.startswith("starter: 125 cases, 30 of them cheap")
