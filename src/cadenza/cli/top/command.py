"""cadenza top: a live view in a terminal, and one plain reading everywhere else."""

import asyncio
import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from functools import partial

import click
import msgspec

from cadenza.cli.doctor.installation import has_other_store
from cadenza.cli.running_service import address_of, read_all
from cadenza.cli.top.readings import compare
from cadenza.cli.top.view import draw
from cadenza.terminal.configured import load_config
from cadenza.terminal.console import config_option

SPAN_S = 10.0  # of rates and percentiles
DRAW_S = 0.5  # a new size of the terminal is seen as soon
OPEN, HOME, CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[H", "\x1b[?25h\x1b[?1049l"  # another screen, without a cursor
CLEAR_LINE, CLEAR_REST = "\x1b[K", "\x1b[J"
URL_HELP = "Like http://10.0.0.5:8080; again for each of a fleet. By default host and port of the config."

OTHER_STORE = "What answers at {} has another store than this config. Name the address of the service with --url."


@click.command()
@click.option("--url", "urls", metavar="URL", multiple=True, help=URL_HELP)
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(0.5, 60),
    default=2.0,
    show_default=True,
    help="Between two reads.",
)
@click.option("--once", is_flag=True, help="Read twice, print the numbers, and end; as without a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and end.")
@config_option
def top(urls: tuple[str, ...], interval: float, once: bool, as_json: bool, config: str | None) -> None:
    """Show what is wrong with the service and what it does: requests, tokens, money, slots, and every route.

    It reads /metrics and /readyz. Rates and percentiles are of the last 10 seconds. If the metrics need a token, it is
    taken from the variable that metrics_token_env in the config names.
    """
    settings = load_config(config)
    addresses = [_address(url) for url in urls] or [address_of(settings.server)]
    read = partial(read_all, addresses, settings.server.metrics_token)
    readings = [read()]
    if not urls and any(asyncio.run(has_other_store(settings, process)) for process in readings[0].processes):
        raise ValueError(OTHER_STORE.format(addresses[0]))
    if once or as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        time.sleep(interval)
        numbers = compare(readings[0], read())
        if not numbers.answered:
            raise ValueError(" ".join(f"{one.words} {one.advice}" for one in numbers.problems))
        click.echo(msgspec.json.format(msgspec.json.encode(numbers)) if as_json else "\n".join(draw(numbers)))
        return
    with contextlib.suppress(KeyboardInterrupt), _open_screen():
        while True:
            readings = [one for one in readings if one.at_s > time.time() - SPAN_S] or readings[-1:]
            readings.append(read())
            numbers, due_s = compare(readings[0], readings[-1]), time.monotonic() + interval
            while (left_s := due_s - time.monotonic()) > 0:
                columns, lines = os.get_terminal_size()  # whatever COLUMNS and LINES were when the command began
                shown = draw(numbers, columns or 80, lines or 24, "q quits")
                click.echo(HOME + "\n".join(line + CLEAR_LINE for line in shown) + CLEAR_REST, nl=False)
                if select.select([sys.stdin], [], [], min(left_s, DRAW_S))[0] and sys.stdin.read(1) in ("q", ""):
                    return


def _address(url: str) -> str:
    found = url if "://" in url else f"http://{url}"
    if not found.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is not an address. Write it like http://10.0.0.5:8080.", param_hint="--url")
    return found.rstrip("/").removesuffix("/metrics").removesuffix("/v1")


@contextlib.contextmanager
def _open_screen() -> Iterator[None]:
    """Another screen and keys without Enter for the block; afterwards the terminal is as it was."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        click.echo(OPEN, nl=False)
        yield
    finally:
        click.echo(CLOSE, nl=False)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
