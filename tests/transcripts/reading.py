"""Reads transcripts: text files of claims, and of the requests, upstream replies and results that show each.

    | line of the config               only at the top; without any, the ordinary service answers
    # One sentence: the claim.          a claim begins; the lines before its first `>` hold for all of its cases
    ## One sentence: the claim.         the same, but it is played in process only: it is large, or takes long
    > n:2 user"Hi."                     a case begins: what the client sends (`+` in the lines for all cases)
    < role "Hel" "lo" stop usage:9/2    what the upstream answers, a line for each request that it gets
    ^ model:loopback-forte -n           what the upstream gets, a line for each request; `none`: it is not asked
    = 200 "Hello" finish:stop           what the client gets
    $ forte 9/2                         what is charged: prompt, completion and cached tokens; or `none`
    ! status:200                        what the log line of the request has
    >> user"Hi again."                  another request of the same case

`> request => result` is short for a case of two lines, `* reply => result` for one with the usual request. A line that
begins with blanks continues the one before it. `{{name}}` stands for what the case saw: `id`, `request_id`, `call0`
... of its last reply. The words of a line are bare (`stop`), have an argument (`n:2`), or have JSON (`stop["a"]`,
`"text"`, `"long "*1000`). requests.py, upstreams.py and playing.py know them.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parent
MARKS = "><^=$!"
WORD = re.compile(r'\s*([^\s"{\[]*)')
TIMES = re.compile(r"\*(\d+)")
DECODER = json.JSONDecoder()
NOTHING: Any = object()


class Word(msgspec.Struct, frozen=True):
    """One word of a line. A word with an argument has it as text in `argument`, and as JSON in `value` if it is any."""

    name: str
    argument: str = ""
    value: Any = NOTHING


class Turn(msgspec.Struct):
    """One request, and the lines about it by their marks."""

    lines: dict[str, list[str]]

    def words(self, mark: str) -> list[Word]:
        """The words of all lines with this mark."""
        return [word for line in self.lines.get(mark, ()) for word in read_words(line)]


class Case(msgspec.Struct):
    """Some requests, one after the other."""

    line: int
    turns: list[Turn]


class Claim(msgspec.Struct):
    """A sentence, and the cases that show it."""

    file: str
    sentence: str
    is_costly: bool = False  # played in process only
    common: dict[str, list[str]] = {}
    cases: list[Case] = []


class Transcript(msgspec.Struct):
    """A file. Without a config, it is about the ordinary service."""

    name: str
    config: str
    claims: list[Claim]


def read_transcript(path: Path) -> Transcript:
    transcript = Transcript(path.stem, "", [])
    for number, line in _logical_lines(path.read_text()):
        mark, _, rest = line.partition(" ")
        claim = transcript.claims[-1] if transcript.claims else None
        if mark == "|":
            transcript.config += f"{rest}\n"
        elif mark in ("#", "##"):
            transcript.claims.append(Claim(path.name, rest, mark == "##"))
        elif claim and mark in (">", ">>", "*"):
            given, _, result = f" {rest}".partition(" => ")
            if mark != ">>":
                claim.cases.append(Case(number, []))
            common = {} if mark == ">>" else claim.common
            turn = Turn({**common, ">": [*claim.common.get("+", ())]})
            turn.lines["<" if mark == "*" else ">"] = [given] if mark == "*" else [*turn.lines[">"], given]
            claim.cases[-1].turns.append(turn)
            if result:
                _add(turn, claim, "=", result)
        elif claim and claim.cases and mark in MARKS:
            _add(claim.cases[-1].turns[-1], claim, mark, rest)
        elif claim and mark in f"{MARKS}+":
            claim.common.setdefault(mark, []).append(rest)
        else:
            raise ValueError(f"{path.name}:{number}: not a line of a transcript: {line!r}")
    return transcript


def _add(turn: Turn, claim: Claim, mark: str, line: str) -> None:
    """Results add to those of the claim; any other line of a case replaces them."""
    common = claim.common.get(mark, [])
    before = turn.lines.get(mark, [])
    turn.lines[mark] = [line] if before is common and mark != "=" else [*before, line]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, each with those that continue it."""
    begun, parts = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith(" ") and parts:
            parts.append(line.strip())
            continue
        if parts:
            yield begun, " ".join(parts)
        begun, parts = number, [line] if line else []


def read_words(line: str) -> Iterator[Word]:
    place = 0
    while place < len(line) and (found := WORD.match(line, place)):
        text, place = found[1], found.end()
        name, _, argument = ("", "", text) if text.startswith("/") else text.partition(":")
        if place < len(line) and line[place] in '"{[':
            value, place = DECODER.raw_decode(line, place)
            if times := TIMES.match(line, place):
                value, place = value * int(times[1]), times.end()
            yield Word(name, argument, value)
        elif text:
            yield Word(name, argument, _json(argument))


def _json(argument: str) -> Any:
    try:
        return json.loads(argument)
    except ValueError:
        return argument or NOTHING
