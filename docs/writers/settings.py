"""docs/config.md, from the declarations of the settings."""

from collections.abc import Iterable
from typing import Any

from cadenza import parts
from cadenza.config.kinds import BUILT_IN
from cadenza.config.reader import BY_CLASS, ConfigKey, keys_of
from cadenza.config.settings import file_with
from cadenza.config.write import Off, write_config, write_value
from cadenza.core.config_keys import DOLLARS, ConfigTable
from cadenza.core.money import format_dollars

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
    default = "" if key.is_required or key.default in (None, "", ()) else f"`{write_value(_written(key, key.default))}`"
    cells = [f"`{key.name}`", key.check.rule, default, key.sentence]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _written(key: ConfigKey, value: object) -> object:
    """The value as the file has it: amounts are in nano-dollars inside."""
    return format_dollars(value) if key.check is DOLLARS and isinstance(value, int) else value
