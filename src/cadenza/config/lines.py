"""The line of each key of a TOML file, which the parser does not tell."""

import re

KeyPath = tuple[str | int, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_KEY = rf"({_PART}(?:\s*\.\s*{_PART})*)"
_HEADER_OR_KEY = re.compile(rf"\s*(?:(\[\[?)\s*{_KEY}\s*\]\]?\s*(?:#.*)?$|{_KEY}\s*=)")
_COMMENT_OR_STRING = re.compile(
    r"""\#[^\n]* | \"{3} (?: \\. | . )*? \"{3} | '{3} .*? '{3} | " (?: \\. | [^"\\\n] )* " | ' [^'\n]* '""",
    re.DOTALL | re.VERBOSE,
)


def find_lines(source_text: str) -> dict[KeyPath, int]:
    """The line, from 1, where each key or table first appears.

    Only table headers and `key =` lines are read. Elements of arrays of tables count from 0; in a header, the name of
    an array means its last element.
    """
    lines: dict[KeyPath, int] = {}
    last_index: dict[KeyPath, int] = {}
    table: KeyPath = ()
    # a string of several lines contains no keys, but its line breaks count
    blanked = _COMMENT_OR_STRING.sub(lambda match: "\n" * match[0].count("\n") or match[0], source_text)
    for number, line in enumerate(blanked.split("\n"), start=1):
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
