"""cadenza doctor: check everything that a start needs, and say what to do about each fault."""

import asyncio
import shutil
import sys
import textwrap
from collections.abc import Sequence

import click
import msgspec

from cadenza.cli.doctor.routes import examine, try_models
from cadenza.config import ConfigError
from cadenza.terminal.checks import Check
from cadenza.terminal.configured import load_config
from cadenza.terminal.console import config_option, json_option, print_json, say

COLOURS = {"ok": "green", "warning": "yellow", "fault": "red"}
STATE_WIDTH = 9
NAME_WIDTH = 11
LINE_WIDTH_MIN = 60


@click.command()
@click.option("--try", "one_token", is_flag=True, help="Also ask every model for one token.")
@click.option("--provider", metavar="NAME", help="With --try: only its models.", show_default="all")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=30,
    show_default=True,
    help="With --try: how long each request may take.",
)
@json_option
@config_option
def doctor(one_token: bool, provider: str | None, timeout: float, as_json: bool, config: str | None) -> None:
    """Check the config and all that a start needs, from the store to the routes. Exit 1 if there is a fault.

    If the service runs, its routes are judged by how they answer its chats. With --try, one chat request for one token
    is sent to every model.
    """
    if provider and not one_token:
        raise ValueError("--provider needs --try")
    try:
        settings = load_config(config)
    except ConfigError as error:
        checks = [Check("config", "fault", problem, "Correct the config file.") for problem in error.problems]
    else:
        checks = asyncio.run(examine(settings))
        if one_token:
            checks += asyncio.run(try_models(settings, provider, timeout, say))
    if as_json:
        print_json([msgspec.structs.asdict(check) for check in checks])
    else:
        _print_checks(checks)
    if any(check.state == "fault" for check in checks):
        sys.exit(1)


def _print_checks(checks: Sequence[Check]) -> None:
    """What was found and, below it, what to do, wrapped to the terminal. Findings on a model stand under its name."""
    heading, margin = "", " " * (STATE_WIDTH + NAME_WIDTH)
    width = max(shutil.get_terminal_size().columns - len(margin), LINE_WIDTH_MIN)
    for check in checks:
        if check.heading != heading:
            heading = check.heading
            click.secho(f"\n{heading}", bold=True)
        texts = (*check.found.splitlines(), *check.todo.splitlines())
        first, *others = [part for line in texts for part in _wrapped(line, width)] or [""]
        state = click.style(f"{check.state:<{STATE_WIDTH}}", fg=COLOURS[check.state])
        click.echo(f"{state}{check.check:<{NAME_WIDTH}}{first}")
        for line in others:
            click.echo(margin + line)


def _wrapped(line: str, width: int) -> list[str]:
    """Words are never broken, so that a path or a name can be copied. Leading spaces are kept."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    ) or [line]
