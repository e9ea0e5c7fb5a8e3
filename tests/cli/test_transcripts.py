"""What commands print: the transcripts of transcripts/*.txt, each in a folder of its own.

# A key is revoked once.          the claim; a transcript begins
folder: books                     what the folder has: `furnished` (conftest.py) if nothing is said, or `empty`
| [platform]                      lines of its cadenza.toml
file bill.csv                     the lines that follow are of this file
$ key revoke <id>                 a command; <id> stands for what it matched before
x key revoke nobody               a command that is refused: exit code 1, one sentence, no standard output
y serve --port 0                  the same in a process of its own, as it would never return if it were not refused
= 78                              the exit code, if it is not that of the mark
< secret                          standard input
> prefix name <id> * active       a line of standard output: <id> and * match, runs of blanks are one
> ...                             any number of lines
! is revoked                      a line of standard error has this
% SELECT note FROM entries        a query on the store, whose rows are its output
"""

import re
import shlex
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.cli.program import Done, run, run_here

CODES = {"$": 0, "x": 1, "y": 1, "%": 0}
PLACE = re.compile(r"<(\w+)>|(\*)")


class Step(msgspec.Struct):
    """A command, and what is expected of it."""

    mark: str
    command: str
    code: int
    given: str = ""
    out: list[str] = []
    errors: list[str] = []


class Transcript(msgspec.Struct):
    """A claim, the files of its folder, and its commands."""

    claim: str
    folder: str = "furnished"
    files: dict[str, str] = {}
    steps: list[Step] = []


def read_transcripts() -> Iterator[Transcript]:
    for path in sorted((Path(__file__).parent / "transcripts").glob("*.txt")):
        yield from read(path.read_text())


def read(text: str) -> Iterator[Transcript]:
    found, name = Transcript(""), "cadenza.toml"
    for line in filter(None, text.splitlines()):
        mark, _, rest = line.partition(" ")
        if mark == "#":
            if found.claim:
                yield found
            found, name = Transcript(rest), "cadenza.toml"
        elif mark == "folder:":
            found.folder = rest
        elif mark == "file":
            name = rest
        elif mark == "|":
            found.files[name] = found.files.get(name, "") + rest + "\n"
        elif mark in CODES:
            found.steps.append(Step(mark, rest, CODES[mark]))
        elif mark == "=":
            found.steps[-1].code = int(rest)
        elif mark == "<":
            found.steps[-1].given += rest + "\n"
        else:
            lines = {">": found.steps[-1].out, "!": found.steps[-1].errors}[mark]
            lines.append(" ".join(rest.split()))
    yield found


def play(folder: Path, step: Step, known: dict[str, str]) -> None:
    command = re.sub(r"<(\w+)>", lambda place: known[place[1]], step.command)
    if step.mark == "%":
        check_lines(query(folder, command), step.out, known)
        return
    done = (run if step.mark == "y" else run_here)(folder, *shlex.split(command), given=step.given)
    assert done.returncode == step.code, (command, done.stdout, done.stderr)
    check_lines(done.stdout.splitlines(), step.out, known)
    for words in step.errors:
        pattern, shown = compiled(words, known), " ".join(done.stderr.split())
        assert pattern.search(shown), (command, words, done.stderr)
    if step.mark != "$":
        check_refused(done)


def check_refused(done: Done) -> None:
    assert done.stdout == ""
    assert re.search("^(cadenza|Usage): ", done.stderr, re.MULTILINE), done.stderr
    assert "Traceback" not in done.stderr


def check_lines(lines: Sequence[str], expected: Sequence[str], known: dict[str, str]) -> None:
    left = [" ".join(line.split()) for line in lines]
    skips = False
    for words in expected:
        if words == "...":
            skips = True
            continue
        pattern = compiled(words, known)
        while skips and left and not pattern.fullmatch(left[0]):
            left.pop(0)
        found = pattern.fullmatch(left[0]) if left else None
        assert found, (words, left, lines)
        known |= found.groupdict()
        left.pop(0)
        skips = False
    assert skips or not left, left


def compiled(words: str, known: dict[str, str]) -> re.Pattern[str]:
    """What the words match; a name that is known is its value."""
    parts, end, named = list[str](), 0, set[str]()
    for place in PLACE.finditer(words):
        parts.append(re.escape(words[end : place.start()]))
        name, end = place[1], place.end()
        if name is None:
            parts.append(".*")
        elif name in known:
            parts.append(re.escape(known[name]))
        else:
            parts.append(rf"(?P={name})" if name in named else rf"(?P<{name}>\S+?)")
            named.add(name)
    return re.compile("".join([*parts, re.escape(words[end:])]))


def query(folder: Path, sql: str) -> list[str]:
    with closing(sqlite3.connect(folder / "data" / "cadenza.db")) as store, store:
        store.execute("PRAGMA ignore_check_constraints = ON")  # a query may break the rules of the ledger
        return [" ".join(map(str, row)) for row in store.execute(sql)]


@pytest.mark.parametrize("transcript", [*read_transcripts()], ids=lambda one: one.claim)
def test_transcript(transcript: Transcript, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each command prints what its transcript says."""
    if transcript.folder != "empty":
        source: Path = request.getfixturevalue("made" if transcript.folder == "furnished" else transcript.folder)
        shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    for name, text in transcript.files.items():
        (tmp_path / name).write_text(text)
    known = dict[str, str]()
    for step in transcript.steps:
        play(tmp_path, step, known)
