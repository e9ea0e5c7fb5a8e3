"""The pages and the program name the same commands, options and settings."""

from itertools import groupby

import pytest
import typer
from typer.testing import CliRunner

from cadenza.cli import app
from cadenza.config import character, routing, sections
from cadenza.config.checks import Checks
from tests.docs.markdown import PAGES, ROOT, code, shown_commands

TABLES: dict[str, Checks] = {
    "server": sections.SERVER,
    "store": sections.STORE,
    "shared_state": sections.SHARED_STATE,
    "limits": sections.LIMITS,
    "character": character.CHARACTER,
    "prices": sections.PRICE,
    "providers": routing.PROVIDER,
    "classes": routing.CLASS,
    "routes": routing.ROUTE,
    "timeouts": routing.TIMEOUTS,
}
SETTINGS = [f"{table}.{name}" for table, checks in TABLES.items() for name in checks]
SHOWN = sorted({shown for page in PAGES for shown in shown_commands(page)}, key=lambda shown: shown.command)
OPTIONS = {
    " ".join(command): sorted({option for shown in alike for option in shown.options})
    for command, alike in groupby(SHOWN, key=lambda shown: shown.command)
}


def _commands(group: typer.Typer, before: str = "") -> list[str]:
    own = [info.name or info.callback.__name__ for info in group.registered_commands if info.callback]
    found = [f"{before}{name}" for name in own]
    for info in group.registered_groups:
        assert info.typer_instance
        found += _commands(info.typer_instance, f"{before}{info.name} ")
    return found


def _words_of_docs() -> set[str]:
    """The words in code on the pages of docs/."""
    text = "\n".join(code(page) for page in PAGES if page.parent == ROOT / "docs")
    return set("".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split())


def test_every_section_is_known_here() -> None:
    """The sections of the config file are those that this file looks at."""
    assert set(sections.SECTIONS) <= set(TABLES)


@pytest.mark.parametrize("setting", SETTINGS)
def test_setting_is_documented(setting: str) -> None:
    """Every setting is named, in code, on a page of docs/."""
    assert set(setting.split(".")) <= _words_of_docs()


@pytest.mark.parametrize("command", _commands(app))
def test_command_is_documented(command: str) -> None:
    """Every command stands on a page of docs/."""
    assert any(f"cadenza {command}" in code(page) for page in PAGES if page.parent == ROOT / "docs")


@pytest.mark.parametrize("command", OPTIONS)
def test_shown_command_exists(command: str) -> None:
    """Every command line on a page is one that the program has, with options that it has."""
    done = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert [option for option in OPTIONS[command] if option not in done.output] == []
