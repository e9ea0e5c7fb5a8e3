"""The pages and the program name the same commands, options and settings."""

from itertools import groupby

import click
from click.testing import CliRunner

from cadenza.cli import app
from cadenza.cli.lazy import LazyGroup
from cadenza.config.write import settings_page
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


def test_the_page_of_the_config_is_up_to_date() -> None:
    """docs/config.md is what `make docs` writes: each key with what it may be, its default and its sentence."""
    [page] = [page for page in DOCS if page.name == "config.md"]
    assert page.read_text() == settings_page()


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
