"""cadenza top: a live view in a terminal, and one plain reading everywhere else."""

import sys
import time
from typing import TYPE_CHECKING

import click

from cadenza.cli.console import config_option, load_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cadenza.cli.top.numbers import Readings

FIRST_S = 1.0
EVERY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 they are compared with


@click.command()
@click.option(
    "--url",
    "urls",
    metavar="URL",
    multiple=True,
    show_default="host and port in the config",
    help="The address of a service, like http://10.0.0.5:8080; again for each of a fleet.",
)
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(0.5, 60),
    default=2.0,
    show_default=True,
    help="How often the numbers are read.",
)
@click.option("--once", is_flag=True, help="Read twice, print the numbers, and end; as without a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and end.")
@config_option
def top(urls: tuple[str, ...], interval: float, once: bool, as_json: bool, config: str | None) -> None:
    """Show what the service does now: requests, first token, tokens, money, slots, and the state of every route.

    It reads /metrics and /readyz. Rates are of the last 10 seconds, percentiles of the last minute. If the metrics need
    a token, it is taken from the variable that metrics_token_env in the config names.
    """
    from cadenza.cli.top.numbers import Readings  # noqa: PLC0415 import time

    settings = load_config(config)
    host, port, token = settings.server.host, settings.server.port, settings.server.metrics_token
    host = "127.0.0.1" if host in EVERY_ADDRESS else f"[{host}]" if ":" in host else host
    addresses = [_address(url) for url in urls] or [f"http://{host}:{port}"]
    readings = Readings()
    if once or as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print_once(readings, addresses, token, interval, as_json=as_json)
    else:
        _show(readings, addresses, token, interval)


def _address(url: str) -> str:
    found = url if "://" in url else f"http://{url}"
    if not found.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is not an address. Write it like http://10.0.0.5:8080.", param_hint="--url")
    return found.rstrip("/").removesuffix("/metrics").removesuffix("/v1")


def _print_once(
    readings: "Readings", urls: "Sequence[str]", token: str | None, interval_s: float, *, as_json: bool
) -> None:
    import msgspec  # noqa: PLC0415 import time

    from cadenza.cli.top.scrape import scrape  # noqa: PLC0415 import time
    from cadenza.cli.top.view import COLUMNS, draw  # noqa: PLC0415 import time

    for number in range(2):
        if number:
            time.sleep(interval_s)
        found = scrape(urls, token)
        if not found.answered:
            raise ValueError(" ".join(found.problems) + " Is the service running? Give its address with --url.")
        readings.add(found)
    numbers = readings.numbers(len(urls))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(numbers), indent=2).decode())
        return
    for line in draw(numbers, COLUMNS, sys.maxsize):
        click.echo(line)


def _show(readings: "Readings", urls: "Sequence[str]", token: str | None, interval_s: float) -> None:
    """Until q or Ctrl-C."""
    from cadenza.cli.top.scrape import scrape  # noqa: PLC0415 import time
    from cadenza.cli.top.screen import open_screen  # noqa: PLC0415 import time
    from cadenza.cli.top.view import KEYS, SORTS, draw  # noqa: PLC0415 import time

    sort, wait_s = 0, min(FIRST_S, interval_s)  # rates need a second reading
    try:
        with open_screen() as screen:
            while True:
                readings.add(scrape(urls, token))
                numbers, due_s = readings.numbers(len(urls)), time.monotonic() + wait_s
                wait_s = interval_s
                while (left_s := due_s - time.monotonic()) > 0:
                    screen.draw(draw(numbers, *screen.size, SORTS[sort], KEYS))
                    key = screen.wait(left_s)
                    if key in ("q", "Q", "\x03"):
                        return
                    if key in ("s", "\x1b[C", "\x1b[D"):
                        sort = (sort + (-1 if key == "\x1b[D" else 1)) % len(SORTS)
    except KeyboardInterrupt:
        return
