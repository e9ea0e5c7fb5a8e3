"""Walks the tables of one config file and collects every mistake: its line, its dotted key and a sentence."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from cadenza.config.checks import NOT_BOTH, CheckError, Keys, Table, suggest, table, tables
from cadenza.config.settings import Secret
from cadenza.core.records import CLASSES

T = TypeVar("T")
KeyPath = tuple[str | int, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_KEY = rf"({_PART}(?:\s*\.\s*{_PART})*)"
_HEADER_OR_KEY = re.compile(rf"\s*(?:(\[\[?)\s*{_KEY}\s*\]\]?\s*(?:#.*)?$|{_KEY}\s*=)")
_COMMENT_OR_STRING = re.compile(
    r"""\#[^\n]* | \"{3} (?: \\. | . )*? \"{3} | '{3} .*? '{3} | " (?: \\. | [^"\\\n] )* " | ' [^'\n]* '""",
    re.DOTALL | re.VERBOSE,
)


class ConfigReader:
    """One file, its environment, and the mistakes found so far: for each key the first one."""

    def __init__(self, source_text: str, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder  # relative paths start here
        self.environ = environ
        self.missing_secrets: list[str] = []
        self._lines = find_lines(source_text)
        self._problems: dict[KeyPath, str] = {}

    def table(self, raw: Table, keys: Keys, at: KeyPath = ()) -> Table:
        """The good values of a table. Every other key is a problem."""
        values: Table = {}
        for name, value in raw.items():
            if name not in keys:
                noun = "class" if keys.keys() >= set(CLASSES) else "key"
                usable = [known for known, check in keys.items() if not isinstance(check, str)]
                self.problem((*at, name), f"unknown {noun}; {suggest(name, usable)}")
                continue
            found = self.attempt((*at, name), self._value, value, keys[name], (*at, name))
            if found is not None:
                values[name] = found
        for one, other in NOT_BOTH:
            if one in raw and other in raw and one in keys:
                self.problem(at, f"must have {one} or {other}, not both")
        return values

    def attempt(self, key: KeyPath, function: Callable[..., T], *given: object) -> T | None:
        """What the function returns. If it raises ValueError, that is a problem of this key."""
        try:
            return function(*given)
        except ValueError as mistake:
            self.problem(key, str(mistake))
            return None

    def file(self, name: str, key: KeyPath) -> str | None:
        """The text of the file that this key names, without blanks around it; None after a problem."""
        try:
            if (found := read_file(self.folder / name).strip()) and "\0" not in found:
                return found
            self.problem(key, "the file is empty or contains null characters")
        except CheckError as mistake:
            self.problem(key, f"the file {mistake}")
        return None

    def secret(self, variable: str | None, key: KeyPath | None, what: str) -> Secret | None:
        """The secret in an environment variable. If it is unset or blank, and a key names it, it is missing."""
        value = self.environ.get(variable, "").strip() if variable else ""
        if variable and key and not value:
            self.missing_secrets.append(
                f"{_dotted(key)}: the environment variable {variable} is unset or empty; put {what} into it."
            )
        return Secret(value) if value else None

    def problem(self, key: KeyPath, sentence: str) -> None:
        self._problems.setdefault(key, sentence)

    def problems(self) -> list[str]:
        """In the order of the file; problems without a line come last."""
        lines = {key: self._nearest_line(key) for key in self._problems}
        ordered = sorted(lines, key=lambda key: (lines[key] is None, lines[key]))
        return [
            f"{f'line {lines[key]}: ' if lines[key] else ''}{_dotted(key)}: {self._problems[key]}" for key in ordered
        ]

    def _value(self, value: object, check: object, at: KeyPath) -> object:
        if isinstance(check, tuple):
            check = check[isinstance(value, dict)]
        if callable(check):
            return check(value)
        if isinstance(check, dict):
            return self.table(table(value), check, at)
        if not isinstance(check, list):
            raise CheckError(str(check))  # the reason why the key is refused
        return [self.table(item, check[0], (*at, index)) for index, item in enumerate(tables(value))]

    def line_of(self, key: KeyPath) -> int | None:
        """The line where this key first appears in the file; None if it does not."""
        return self._lines.get(key)

    def _nearest_line(self, key: KeyPath) -> int | None:
        """The line of the key or, for a key inside an inline table, of the nearest key or table around it."""
        return next((self._lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self._lines), None)


def find_lines(source_text: str) -> dict[KeyPath, int]:
    """The line, from 1, where each key or table first appears, which the parser does not tell.

    Only table headers and `key =` lines are read. Elements of arrays of tables count from 0; in a header, the name of
    an array means its last element.
    """
    lines: dict[KeyPath, int] = {}
    last_index: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, line in enumerate(_COMMENT_OR_STRING.sub(_blank_long_string, source_text).split("\n"), start=1):
        if not (match := _HEADER_OR_KEY.match(line)):
            continue
        brackets, header, key = match.groups()
        path = () if header else table
        parts = [part.strip("\"'") for part in re.findall(_PART, header or key)]
        for left, part in enumerate(parts, start=1 - len(parts)):
            path = (*path, part)
            lines.setdefault(path, number)
            if brackets == "[[" and left == 0:
                last_index[path] = last_index.get(path, -1) + 1
            if path in last_index:
                path = (*path, last_index[path])
                lines.setdefault(path, number)
        table = path if header else table
    return lines


def _blank_long_string(match: re.Match[str]) -> str:
    """A string of several lines contains no keys, but its line breaks count."""
    return "\n" * match[0].count("\n") or match[0]


def read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CheckError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CheckError("is not UTF-8 text") from None


def _dotted(key: KeyPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")
