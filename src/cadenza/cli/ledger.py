"""cadenza ledger check | export, cadenza usage, and cadenza refund."""

import sys
from datetime import UTC, datetime

import click
import msgspec

from cadenza import parts
from cadenza.config import Settings
from cadenza.control.money.refunds import refund_request
from cadenza.control.money.statement import CheckLedger, check_ledger, export_ledger, names_of_keys, usage_report
from cadenza.core.csv_text import csv_text
from cadenza.core.money import parse_dollars
from cadenza.core.records import COMMAND_LINE
from cadenza.core.spans import ALWAYS, Span, parse_dates, parse_span
from cadenza.core.usage_report import GROUPS, GROUPS_OF_ALL, Report, parse_group
from cadenza.ledger.export import EXPORT_FIELDS, readable
from cadenza.ledger.months import find_closed_span
from cadenza.store.store import Store
from cadenza.terminal.configured import read_store, settings_option, with_store
from cadenza.terminal.console import (
    from_option,
    json_option,
    month_option,
    now_ms,
    print_json,
    print_list,
    print_table,
    say,
    to_option,
)
from cadenza.terminal.lazy import LazyGroup


@click.group(cls=LazyGroup, places={}, words="ledger")
def ledger() -> None:
    """Check the ledger, and export it."""


@ledger.command()
@click.option("--all", "reads_all", is_flag=True, help="Read the closed months too, and compute their hashes again.")
@json_option
@settings_option
def check(reads_all: bool, as_json: bool, settings: Settings) -> None:
    """Check on the live store that entries, balances, reserves and charges agree. Exit 1 if they do not.

    Every charge is computed again from its token counts and prices. The check begins with the balances of the last
    closed month.
    """
    found = read_store(settings, _check_all() if reads_all else check_ledger)
    findings, counts = found.findings, found.counts
    if as_json:
        print_json([msgspec.structs.asdict(finding) for finding in findings])
    elif findings:
        rows = [
            {"rule": one.rule, "subject": one.subject, "off by": one.off_by_dollars if one.off_by else None}
            for one in findings
        ]
        print_table(rows, ("rule", "subject", "off by"))
    else:
        click.echo(
            f"The ledger is sound. Accounts: {counts.accounts}, entries: {counts.entries}, "
            f"requests: {counts.requests}, reserves: {counts.reserves}."
        )
        if found.closed:
            click.echo(f"The months up to {found.closed.month} are closed and were not read; --all reads them too.")
    if findings:
        say(f"The ledger is not sound; findings: {len(findings)}. Keep a copy of the store before you change it.")
        sys.exit(1)


def _check_all() -> CheckLedger:
    part = parts.find("ledger verify")
    assert part
    check_all: CheckLedger = part.load("proof").check_all
    return check_all


@ledger.command()
@click.option("--account", metavar="EMAIL", help="Only the entries of this account.")
@from_option
@to_option
@month_option
@click.option(
    "--format", "form", type=click.Choice(["csv", "jsonl"]), default="csv", show_default=True, help="The output format."
)
@settings_option
def export(
    account: str | None, start: str | None, end: str | None, month: str | None, form: str, settings: Settings
) -> None:
    """Write the entries of the ledger to standard output, oldest first. Times are in UTC.

    A whole month that is closed can be compared with its hash later: see `ledger verify`.
    """
    span = parse_dates(start, end, month) or ALWAYS
    read_store(settings, lambda store: _export(store, account, span, form))


async def _export(store: Store, account: str | None, span: Span, form: str) -> None:
    entries = await export_ledger(store, account, span)
    if form == "csv":
        sys.stdout.write(csv_text([EXPORT_FIELDS]))
    async for entry in entries:
        row = readable(entry)
        if form == "csv":
            sys.stdout.write(csv_text([[row[name] for name in EXPORT_FIELDS]]))
        else:
            sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
    closed = None if account else await find_closed_span(store, span)
    if closed and closed.hash:
        say(f"{closed.month} is closed, with the hash {closed.hash.hex()}. Entries: {closed.entries}.")


@click.command()
@click.argument("refunded", metavar="ID")
@click.option("--part", metavar="DOLLARS", show_default="all of it", help="How much of it, in dollars.")
@click.option("--reason", metavar="TEXT", required=True, help="Why, for the ledger. The account's owner sees it.")
@settings_option
def refund(refunded: str, part: str | None, reason: str, settings: Settings) -> None:
    """Refund a request: all of it or a part, once. ID is the id of the reply, which begins with chatcmpl-."""
    part_nano = None if part is None else parse_dollars(part)
    done = with_store(
        settings, lambda store: refund_request(store, refunded, part_nano, reason, COMMAND_LINE, now_ms())
    )
    say(done.sentence)


@click.command()
@click.option("--account", metavar="EMAIL", show_default="all accounts", help="Only the usage of this account.")
@from_option
@to_option
@month_option
@click.option("--group-by", metavar="GROUP", default="day", show_default=True, help="day, model, key or account.")
@json_option
@settings_option
def usage(  # noqa: PLR0913, PLR0917 its options
    account: str | None,
    start: str | None,
    end: str | None,
    month: str | None,
    group_by: str,
    as_json: bool,
    settings: Settings,
) -> None:
    """Show what an account used, or all of them, and what it cost: by default in the last 30 days. Days are in UTC."""
    span = parse_dates(start, end, month) or parse_span(None, None, datetime.now(UTC))
    group = parse_group(group_by, GROUPS if account else GROUPS_OF_ALL)

    async def work(store: Store) -> tuple[Report, dict[str, str]]:
        report = await usage_report(store, account, span, group)
        return report, await names_of_keys(store, report, now_ms()) if group == "key" else {}

    report, names = read_store(settings, work)
    shown = report.shown()
    columns = [group, "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost"]
    if names:
        columns.insert(1, "name")
    named = [{**row, "name": names.get(str(row[group]), "")} if names else row for row in report.rows()]
    rows = named if as_json else [*named, {group: "total", "name": "", **shown["totals"]}]
    print_list(rows, columns, as_json=as_json)
    if not as_json:
        click.echo(f"Balance{'' if account else ' of all accounts'}: {shown['balance']} dollars.")
