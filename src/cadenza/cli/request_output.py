"""How requests are printed: one with all that is known of it (cadenza explain), or a line for each (cadenza tail)."""

import asyncio
import contextlib
import os
import select
import shutil
import sys
import time
from collections.abc import Callable

import click
import msgspec

from cadenza.config import Settings
from cadenza.control.requests import OperatorRequest, RequestFilter, RequestFollower, check_filter
from cadenza.core.formats import rfc3339
from cadenza.core.money import format_dollars
from cadenza.core.public import to_public
from cadenza.store.store import Store, StoreUnavailable
from cadenza.store.tables.request_details import RecentRequest
from cadenza.terminal.configured import read_store
from cadenza.terminal.console import now_ms, say

LABEL_CHARS = 10
POLL_S = 0.5
SECOND_MS = 1_000
MIDDLE, WIDE = 103, 160  # from these columns on, lines have more
PIPED_COLUMNS = 200  # all columns of a line


def print_request(one: OperatorRequest) -> None:
    """Facts, steps and money, for a terminal."""
    for label, value in _facts(one):
        click.echo(f"{label:<{LABEL_CHARS}} {value}".rstrip())
    if one.steps:
        click.echo()
        width = max(len(f"{step.at_ms:,}") for step in one.steps)
        for step in one.steps:
            click.echo(f"{step.at_ms:>{width},} ms  {step.text}")
    click.echo()
    for line in _money(one):
        click.echo(line)


def _facts(one: OperatorRequest) -> list[tuple[str, str]]:
    kind = {True: ", streamed", False: ", not streamed", None: ""}[one.is_stream]
    key = f"{one.key_name or 'without a name'}, {one.key_prefix}… ({one.key_id})" if one.key_prefix else one.key_id
    version = f", version {one.version}" if one.version is not None else ""
    facts = [
        ("request", one.request_id or ""),
        ("completion", one.completion_id or "none: no credit was held"),
        ("began", f"{one.started_at or '?'}, {one.endpoint}{kind}"),
        ("account", f"{one.email} ({one.account_id})"),
        ("key", key or ""),
        ("class", f"{one.class_id}{version}" if one.class_id else ""),
        ("route", f"{one.provider}/{one.model}" if one.provider else ""),
        ("end", f"{one.status}: {one.end}" if one.status else ""),
        ("", one.advice),
    ]
    return [(label, value) for label, value in facts if value]


def _money(one: OperatorRequest) -> list[str]:
    lines = [f"held       ${one.held}"] if one.held else []
    charged = one.charged.removeprefix("-")
    estimated = ", by our own count" if one.is_estimated else ""
    lines.append(f"charged    ${charged}{estimated}" if one.charge or charged.strip("0.") else "charged    nothing")
    width = max((len(f"{part.tokens:,}") for part in one.charge), default=0)
    for part in one.charge:
        amount = f"= {part.amount_nano:,} nano-dollars"
        lines.append(f"           {part.tokens:>{width},} tokens {part.kind} × {part.price_nano:,} {amount}")
    if one.granted and one.granted.strip("-0."):
        lines.append(f"           ${one.granted.removeprefix('-')} of it from granted credit")
    for label, value, note in (
        ("searches", one.searches, "charged beside it"),
        ("short", one.short, "due, but the account could not pay it"),
        ("refunded", one.refunded, ""),
        ("cost", one.provider_cost, "what the provider charges"),
    ):
        if value:
            lines.append(f"{label:<{LABEL_CHARS}} ${value}" + (f" {note}" if note else ""))
    return lines


def follow_requests(settings: Settings, wanted: RequestFilter, last: int, *, follows: bool, as_json: bool) -> None:
    """Print the last requests and, if it follows, those that end from now on. Ctrl-C and a closed pipe end it."""

    async def run(store: Store) -> None:
        await check_filter(store, wanted, now_ms())
        follower = RequestFollower(store, wanted)
        show = print_object if as_json else DatedLines(now_ms()).print
        for one in await follower.newest(last):
            show(one)
        sys.stdout.flush()
        while follows and not _is_closed():
            await asyncio.sleep(POLL_S)
            await _print_more(follower, show)

    try:
        read_store(settings, run)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # the reader closed the pipe; flushing the buffer at the exit must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _print_more(follower: RequestFollower, show: Callable[[RecentRequest], None]) -> None:
    try:
        found, missed = await follower.more()
    except StoreUnavailable as error:
        say(f"cadenza: {error}")
        return
    for one in found:
        show(one)
    if missed:
        say(f"… {missed:,} requests were left out, because they came faster than they were printed.")
    sys.stdout.flush()


def _is_closed() -> bool:
    """Whether standard output is a pipe whose reader has closed it."""
    with contextlib.suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLERR)
        return any(events & select.POLLERR for _, events in poll.poll(0))
    return False


def print_object(one: RecentRequest) -> None:
    sys.stdout.write(msgspec.json.encode(to_public(RecentRequest, one)).decode() + "\n")


class DatedLines:
    """Prints a line for each request. A line with the day comes before those of another day than today, in UTC."""

    def __init__(self, now_ms: int) -> None:
        self._day = _day(now_ms)

    def print(self, one: RecentRequest) -> None:
        if (day := _day(one.ended_at)) != self._day:
            click.echo(day)
            self._day = day
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED_COLUMNS
        color = "red" if one.status >= 500 else "yellow" if one.status >= 400 else None
        click.secho(request_line(one, columns), fg=color)


def _day(at_ms: int) -> str:
    return rfc3339(at_ms).partition("T")[0]


def request_line(one: RecentRequest, columns: int) -> str:
    """One line that fits, with the id last, to be copied for `cadenza explain`."""
    at = time.strftime("%H:%M:%S", time.gmtime(one.ended_at / SECOND_MS))
    what = f"{one.provider} {one.fault}".strip() if one.fault or not one.cause else one.cause
    parts = [f"{at} {one.status} {one.class_id or '–':<10.10} {what:<20.20} {show_ms(one.duration_ms):>7}"]
    if columns >= WIDE:
        first = show_ms(one.first_byte_ms) if one.first_byte_ms is not None else "–"
        tokens = f"{one.prompt_tokens:,}+{one.completion_tokens:,}"
        parts.append(f"first {first:>7} {tokens:>12} ${format_dollars(one.cost_nano):<11} {one.key_prefix}…")
    if columns >= MIDDLE:
        parts.append(f"{one.email:<20}" if columns >= WIDE else f"{one.email:<20.20}")
    return " ".join([*parts, one.request_id])


def show_ms(time_ms: int) -> str:
    return f"{time_ms} ms" if time_ms < 10 * SECOND_MS else f"{time_ms / SECOND_MS:.1f} s"
