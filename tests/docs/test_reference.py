"""The pages and the program name the same commands, options and settings."""

import re
from itertools import groupby

import click
from click.testing import CliRunner

from cadenza.cli import app
from cadenza.config.checks import ANY_PROVIDER, CHARACTER, GATE, PRICE, ROUTE, SEARCH, SECTIONS, WATCH, Keys
from tests.docs.markdown import DOCS, PAGES, code, shown_commands

TABLES: dict[str, Keys] = {
    **{name: SECTIONS[name] for name in ("server", "store", "shared_state", "limits", "platform", "mail")},
    "grounding": SECTIONS["grounding"],
    "search": SEARCH,
    "payments": SECTIONS["payments"],
    "stripe": SECTIONS["payments"]["stripe"],
    "billing": SECTIONS["billing"],
    "observe": SECTIONS["observe"],
    "retention": SECTIONS["retention"],
    "character": CHARACTER,
    "prices": PRICE,
    "providers": ANY_PROVIDER,
    "classes": SECTIONS["classes"]["forte"],
    "routes": ROUTE,
    "gate": GATE,
    "watch": WATCH,
    "timeouts": ROUTE["timeouts"],
}
SETTINGS = [f"{table}.{name}" for table, keys in TABLES.items() for name in keys if not isinstance(keys[name], str)]
SHOWN = sorted({shown for page in PAGES for shown in shown_commands(page)}, key=lambda shown: shown.command)
OPTIONS = {
    " ".join(command): sorted({option for shown in alike for option in shown.options})
    for command, alike in groupby(SHOWN, key=lambda shown: shown.command)
}


def _commands(group: click.Group, before: str = "") -> list[str]:
    """Those that the help shows: a hidden one is a former name."""
    found = list[str]()
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if isinstance(command, click.Group):
            found += _commands(command, f"{before}{name} ")
        else:
            found.append(f"{before}{name}")
    return found


def _words_of_docs() -> set[str]:
    """The words in code on the pages of docs/."""
    text = "\n".join(code(page) for page in DOCS)
    return set("".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split())


def test_every_section_is_known_here() -> None:
    """The sections of the config file are those that this file looks at."""
    assert set(SECTIONS) <= set(TABLES)


def test_every_setting_is_documented() -> None:
    """Every setting is named, in code, on a page of docs/."""
    words = _words_of_docs()
    assert [setting for setting in SETTINGS if not set(setting.split(".")) <= words] == []


def test_the_example_shows_every_setting() -> None:
    """The file in docs/operating.md that says so has every section and every setting, in a comment at least."""
    [operating] = [page for page in DOCS if page.name == "operating.md"]
    example = operating.read_text().partition("This file shows every setting:")[2].split("```")[1]
    words = set(re.findall(r"\w+", example))
    assert [setting for setting in SETTINGS if not set(setting.split(".")) <= words] == []


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
