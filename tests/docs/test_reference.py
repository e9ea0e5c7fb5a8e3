"""The pages and the program name the same commands, options and settings."""

from collections.abc import Callable
from itertools import groupby

import click
import pytest
from click.testing import CliRunner
from docs.writers.commands import commands_page
from docs.writers.settings import settings_page

from cadenza.cli import app
from cadenza.terminal.lazy import LazyGroup
from tests.docs.markdown import DOCS, PAGES, code, shown_commands

SHOWN = sorted({shown for page in PAGES for shown in shown_commands(page)}, key=lambda shown: shown.command)
OPTIONS = {
    " ".join(command): sorted({option for shown in alike for option in shown.options})
    for command, alike in groupby(SHOWN, key=lambda shown: shown.command)
}


def _commands(group: click.Group, before: str = "") -> list[str]:
    """The commands of a group and of the groups in it."""
    found = list[str]()
    for name, stub in group.commands.items():
        command = group.load(name) if isinstance(group, LazyGroup) else stub
        if isinstance(command, click.Group):
            found += _commands(command, f"{before}{name} ")
        else:
            found.append(f"{before}{name}")
    return found


@pytest.mark.parametrize(("name", "write"), [("config.md", settings_page), ("commands.md", commands_page)])
def test_the_generated_pages_are_up_to_date(name: str, write: Callable[[], str]) -> None:
    """The pages of settings and of commands are what `make docs` writes."""
    [page] = [page for page in DOCS if page.name == name]
    assert page.read_text() == write()


def test_every_command_is_documented() -> None:
    """Every command is on a page of docs/."""
    text = "\n".join(code(page) for page in DOCS)
    assert [command for command in _commands(app) if f"cadenza {command}" not in text] == []


def test_shown_commands_exist() -> None:
    """Every command line on a page is one that the program has, with options that it has."""
    for command, options in OPTIONS.items():
        done = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        assert [option for option in options if option not in done.output] == [], command
