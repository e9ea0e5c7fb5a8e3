"""cadenza memory: the notes of an account."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import EMAIL, PASSWORD
from tests.cli.program import run_here

FIELDS = ["id", "text", "created_at", "changed_at"]


def add(folder: Path, text: str) -> str:
    """Add a note and return its id."""
    done = run_here(folder, "memory", "add", "--account", EMAIL, text)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def listed(folder: Path) -> list[dict[str, str]]:
    done = run_here(folder, "memory", "list", "--account", EMAIL, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


def test_a_note_is_added_listed_changed_and_removed(furnished: Path) -> None:
    """Notes are listed oldest first; the id alone is on standard output when one is added."""
    first, second = add(furnished, "  I write British English. "), add(furnished, "Line one\nline two")
    assert first.startswith("note_")
    assert [(note["id"], note["text"]) for note in listed(furnished)] == [
        (first, "I write British English."),
        (second, "Line one\nline two"),
    ]
    assert all(sorted(note) == sorted(FIELDS) for note in listed(furnished))
    assert run_here(furnished, "memory", "edit", first, "I write Canadian English.").returncode == 0
    assert listed(furnished)[0]["text"] == "I write Canadian English."
    assert run_here(furnished, "memory", "remove", second).stderr == "The note is deleted.\n"
    assert [note["id"] for note in listed(furnished)] == [first]


def test_a_note_has_one_line_in_the_table(furnished: Path) -> None:
    """Line breaks of a note do not break the table."""
    add(furnished, "Line one\nline two")
    lines = run_here(furnished, "memory", "list", "--account", EMAIL).stdout.splitlines()
    assert len(lines) == 2
    assert lines[1].endswith("Line one / line two")


def test_the_only_account_needs_no_name(furnished: Path) -> None:
    """Without --account, the notes of the only account are listed; among several, the error says to name one."""
    note = add(furnished, "I live in Oslo.")
    done = run_here(furnished, "memory", "list", "--json")
    assert [one["id"] for one in json.loads(done.stdout)] == [note]
    create = ("account", "create", "second@example.org", "--password-stdin")
    assert run_here(furnished, *create, given=PASSWORD + "\n").returncode == 0
    done = run_here(furnished, "memory", "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert "There are 2 accounts: name one with --account EMAIL. 'cadenza account list' shows them." in done.stderr
    assert run_here(furnished, "account", "erase", "second@example.org", "--yes").returncode == 0
    assert run_here(furnished, "memory", "list").stdout.count(note) == 1


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("add", "--account", EMAIL, " "), "A note must not be empty."),
        (("add", "--account", EMAIL, "x" * 1001), "at most 1,000 characters"),
        (("add", "--account", EMAIL, "a\x1bb"), "control characters"),
        (("add", "--account", "nobody@example.org", "words"), "There is no account for 'nobody@example.org'."),
        (("list", "--account", "nobody@example.org"), "There is no account for 'nobody@example.org'."),
        (("edit", "note_unknown", "words"), "There is no such note."),
        (("remove", "note_unknown"), "There is no such note."),
    ],
)
def test_a_mistake_is_one_sentence(furnished: Path, args: tuple[str, ...], reason: str) -> None:
    """It says what is wrong, changes nothing, and exits with 1."""
    done = run_here(furnished, "memory", *args)
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr
    assert listed(furnished) == []
