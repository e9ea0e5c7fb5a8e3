"""Walks the tables of one file over tables of checks and collects every mistake, in the order of the file."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from cadenza.config.checks import Checks, Table, suggest
from cadenza.config.lines import KeyPath, find_lines, nearest_line

NOTHING: Mapping[str, str] = MappingProxyType({})


class Reader:
    """The mistakes of one file so far, and where its relative paths start."""

    def __init__(self, source_text: str, folder: Path) -> None:
        self.folder = folder
        self._lines = find_lines(source_text)
        self._problems: list[tuple[int | None, str]] = []

    def table(
        self, raw: Table, at: KeyPath, checks: Checks, refused: Mapping[str, str] = NOTHING, noun: str = "key"
    ) -> Table:
        """The good values of a table. An unknown or refused key and a value that fails its check become problems.

        `refused` gives the sentence for keys that are known, but not to be used here.
        """
        values: Table = {}
        for name, value in raw.items():
            if name in refused:
                self.problem((*at, name), refused[name])
            elif name not in checks:
                usable = [known for known in checks if known not in refused]
                self.problem((*at, name), f"unknown {noun}; {suggest(name, usable)}")
            else:
                try:
                    values[name] = checks[name](value)
                except ValueError as mistake:
                    self.problem((*at, name), str(mistake))
        return values

    def problem(self, key: KeyPath, sentence: str) -> None:
        line = nearest_line(self._lines, key)
        place = "" if line is None else f"line {line}: "
        self._problems.append((line, f"{place}{_dotted(key)}: {sentence}"))

    def problems(self) -> list[str]:
        """In the order of the file; those without a line come last."""
        return [sentence for _, sentence in sorted(self._problems, key=lambda item: (item[0] is None, item[0] or 0))]


def _dotted(key: KeyPath) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return "".join(parts).removeprefix(".")
