"""Writes config files, with the sentence of each key."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cadenza.config.reader import ConfigKey, Table, keys_of
from cadenza.config.settings import file_with
from cadenza.core.config_keys import ConfigTable

COMMENT_COLUMN = 40
LONG = 10_000  # a number of five digits or more is written in groups


class Off:
    """A value that is written in a comment."""

    def __init__(self, value: object) -> None:
        self.value = value


def write_config(tables: Mapping[str, Any]) -> str:
    """TOML of tables as `tomllib` reads them, or with values that are Off. Each key has its sentence once."""
    return "\n".join(_lines(file_with(tables), tables, "", set())).lstrip("\n") + "\n"


def _lines(section: type[ConfigTable], table: Mapping[str, Any], path: str, said: set[str]) -> Iterable[str]:
    """The values of a table, then the tables in it."""
    for name, value in table.items():
        key = keys_of(section)[name]
        if not key.section or isinstance(value, bool):
            yield _line(name, value, "" if key.sentence in said else key.sentence)
            said.add(key.sentence)
    for name, value in table.items():
        key, here = keys_of(section)[name], f"{path}{_name(name)}"
        if not key.section or isinstance(value, bool):
            continue
        for header, one in _tables(key, here, value):
            if key.shape == "tables" or not one or any(_is_value(key, name, it) for name, it in one.items()):
                yield from ["", _line(header, None, "" if key.sentence in said else key.sentence)]
                said.add(key.sentence)
            yield from _lines(key.section, one, f"{header.strip('[]')}.", said)


def _tables(key: ConfigKey, path: str, value: Table | list[Table]) -> list[tuple[str, Table]]:
    if isinstance(value, list):
        return [(f"[[{path}]]", one) for one in value]
    if key.shape == "named":
        return [(f"[{path}.{_name(name)}]", one) for name, one in value.items()]
    return [(f"[{path}]", value)]


def _is_value(key: ConfigKey, name: str, value: object) -> bool:
    assert key.section
    return isinstance(value, bool) or not keys_of(key.section)[name].section


def _line(name: str, value: object, sentence: str) -> str:
    off, value = ("# ", value.value) if isinstance(value, Off) else ("", value)
    setting = name if value is None else f"{off}{_name(name)} = {write_value(value)}"
    return f"{setting:<{COMMENT_COLUMN}} # {sentence}" if sentence else setting


def write_value(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_name(name)} = {write_value(one)}' for name, one in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(write_value, value))}]"
    if isinstance(value, str | Path):
        return _quote(str(value))
    is_long = isinstance(value, int) and value >= LONG
    return f"{value:_}" if is_long else str(value).lower()


def _name(name: str) -> str:
    return name if name.startswith("[") or name.replace("_", "").replace("-", "").isalnum() else _quote(name)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
