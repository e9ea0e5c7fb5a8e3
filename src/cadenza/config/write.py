"""Writes config files, with the sentence of each key, and docs/config.md: `python -m cadenza.config.write`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cadenza import parts
from cadenza.config.kinds import BUILT_IN
from cadenza.config.reader import BY_CLASS, ConfigKey, Table, keys_of
from cadenza.config.settings import file_with
from cadenza.core.config_keys import DOLLARS, ConfigTable
from cadenza.core.money import format_dollars

COMMENT_COLUMN = 40
LONG = 10_000  # a number of five digits or more is written in groups
PAGE = """\
# Config

`make docs` writes this page from the declarations of the settings. [Deploy](deploy.md#config-file) says how
the file is found; [routes](routes.md) and [limits](limits.md) say what the settings do together.

## Example

This file shows every setting. A line that begins with `#` is off:

```toml
{example}```

## Settings
"""


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
    setting = name if value is None else f"{off}{_name(name)} = {_value(value)}"
    return f"{setting:<{COMMENT_COLUMN}} # {sentence}" if sentence else setting


def _value(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_name(name)} = {_value(one)}' for name, one in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str | Path):
        return _quote(str(value))
    is_long = isinstance(value, int) and value >= LONG
    return f"{value:_}" if is_long else str(value).lower()


def _name(name: str) -> str:
    return name if name.startswith("[") or name.replace("_", "").replace("-", "").isalnum() else _quote(name)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def example_config() -> str:
    """A file with every setting, which a start accepts."""
    tables = _example(file_with(parts.TABLES))
    tables["providers"]["local"] = {"kind": BUILT_IN, "retention": "zero"}
    tables["classes"]["forte"]["routes"].append({"provider": "local", "order": 1})
    tables["classes"]["forte"]["candidates"] = [{"provider": "acme", "model": "acme-large-2"}]
    return write_config(tables)


def _example(section: type[ConfigTable]) -> dict[str, Any]:
    return {name: _example_value(key) for name, key in keys_of(section).items()}


def _example_value(key: ConfigKey) -> object:
    if not key.section:
        return Off(key.example) if key.like and key.like.is_off else _written(key, key.example)
    one = _example(key.section)
    if key.shape == "named":
        return {("forte" if key.name == "classes" else "mezzo" if key.name in BY_CLASS else "acme"): one}
    return [one] if key.shape == "tables" else one


def settings_page() -> str:
    return PAGE.format(example=example_config()) + "".join(_page_of(file_with(parts.TABLES), ""))


def _page_of(section: type[ConfigTable], path: str) -> Iterable[str]:
    for key in keys_of(section).values():
        if key.section:
            name = {"named": ".CLASS" if key.name in BY_CLASS else ".NAME"}.get(key.shape, "")
            here = f"{path}{key.name}{name}"
            header = f"[[{here}]]" if key.shape == "tables" else f"[{here}]"
            is_new = key.name != "candidates"  # they have the keys of routes
            rows = [_row(one) for one in keys_of(key.section).values() if is_new and not one.section]
            yield f"\n### `{header}`\n\n{key.sentence[0].upper()}{key.sentence[1:]}.\n"
            if rows:
                yield "\n| key | value | default | meaning |\n|---|---|---|---|\n" + "".join(rows)
            if is_new:
                yield from _page_of(key.section, f"{here}.")


def _row(key: ConfigKey) -> str:
    assert key.check
    default = "" if key.is_required or key.default in (None, "", ()) else f"`{_value(_written(key, key.default))}`"
    cells = [f"`{key.name}`", key.check.rule, default, key.sentence]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _written(key: ConfigKey, value: object) -> object:
    """The value as the file has it: amounts are in nano-dollars inside."""
    return format_dollars(value) if key.check is DOLLARS and isinstance(value, int) else value


if __name__ == "__main__":
    Path("docs/config.md").write_text(settings_page())
