"""cadenza doctor: check everything that a start needs, and say what to do about each fault."""

import sys

import click
import msgspec

from cadenza.cli.console import config_option, json_option, load_config, print_json

COLOURS = {"ok": "green", "warning": "yellow", "fault": "red"}
STATE_WIDTH = 9
NAME_WIDTH = 11


@click.command()
@json_option
@config_option
def doctor(as_json: bool, config: str | None) -> None:
    """Check config, store, region, metrics, retention and routes. Exit 1 if there is a fault."""
    from cadenza.cli.check import Check  # noqa: PLC0415 import time
    from cadenza.cli.checks import examine  # noqa: PLC0415 import time
    from cadenza.config import ConfigError  # noqa: PLC0415 import time

    try:
        settings = load_config(config)
    except ConfigError as error:
        checks = [Check("config", "fault", problem, "Correct the config file.") for problem in error.problems]
    else:
        checks = examine(settings)
    if as_json:
        print_json([msgspec.structs.asdict(check) for check in checks])
    else:
        for check in checks:
            _print_check(check.state, check.check, check.found, check.todo)
    if any(check.state == "fault" for check in checks):
        sys.exit(1)


def _print_check(state: str, name: str, found: str, todo: str) -> None:
    """One line for what was found and, below it, what to do."""
    margin = " " * (STATE_WIDTH + NAME_WIDTH)
    lines = [f"{name:<{NAME_WIDTH}}{found}".replace("\n", f"\n{margin}")]
    if todo:
        lines.append(f"{margin}{todo}")
    click.echo(click.style(f"{state:<{STATE_WIDTH}}", fg=COLOURS[state]) + "\n".join(lines))
