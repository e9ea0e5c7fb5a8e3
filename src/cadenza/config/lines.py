"""Finds the line on which each key of a TOML text stands, which the parser does not tell.

It reads table headers and `key =` lines only. A key inside an inline value has no line of its own here:
look for the nearest key around it.
"""

import re

KeyPath = tuple[str | int, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_KEY = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_KEY})\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(rf"\s*({_KEY})\s*=")
_COMMENT_OR_STRING = re.compile(
    r"""
    \#[^\n]*
    | \"{3} (?: \\. | . )*? \"{3}
    | '{3} .*? '{3}
    | " (?: \\. | [^"\\\n] )* "
    | ' [^'\n]* '
    """,
    re.DOTALL | re.VERBOSE,
)


def find_lines(text: str) -> dict[KeyPath, int]:
    """The line, from 1, where each key or table first appears; elements of arrays of tables count from 0."""
    lines: dict[KeyPath, int] = {}
    last_index: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, line in enumerate(_COMMENT_OR_STRING.sub(_blank_long_string, text).split("\n"), start=1):
        if header := _HEADER.match(line):
            table = _open_table(_split_key(header[2]), header[1] == "[[", last_index)
            found = table
        elif assignment := _ASSIGNMENT.match(line):
            found = (*table, *_split_key(assignment[1]))
        else:
            continue
        for length in range(1, len(found) + 1):
            lines.setdefault(found[:length], number)
    return lines


def nearest_line(lines: dict[KeyPath, int], key: KeyPath) -> int | None:
    """The line of the key or, where it has none, of the nearest key or table around it."""
    return next((lines[key[:length]] for length in range(len(key), 0, -1) if key[:length] in lines), None)


def _blank_long_string(match: re.Match[str]) -> str:
    """What stands in a string of several lines is no key; its line ends still count."""
    breaks = match[0].count("\n")
    return "\n" * breaks if breaks else match[0]


def _split_key(text: str) -> list[str]:
    return [part.strip("\"'") for part in re.findall(_PART, text)]


def _open_table(parts: list[str], is_array: bool, last_index: dict[KeyPath, int]) -> KeyPath:
    """The path of a header's table. A name that stands for an array of tables means its last element."""
    path: KeyPath = ()
    for depth, part in enumerate(parts, start=1):
        path = (*path, part)
        if is_array and depth == len(parts):
            last_index[path] = last_index.get(path, -1) + 1
        if path in last_index:
            path = (*path, last_index[path])
    return path
