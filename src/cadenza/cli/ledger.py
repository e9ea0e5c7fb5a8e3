"""cadenza ledger check | export, cadenza usage, and cadenza refund."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from cadenza.config import Settings
from cadenza.control.money.refunds import refund_request
from cadenza.control.money.statement import check_ledger, export_ledger, names_of_keys, usage_report
from cadenza.core.csv_text import csv_text
from cadenza.core.money import parse_dollars
from cadenza.core.records import COMMAND_LINE
from cadenza.core.spans import ALWAYS, Span, parse_dates, parse_span
from cadenza.core.usage_report import GROUPS, GROUPS_OF_ALL, Report, parse_group
from cadenza.ledger.export import EXPORT_FIELDS, REQUEST_FIELDS, readable
from cadenza.parts.books.months import Verified, check_all, find_closed_span, verify_month
from cadenza.parts.books.proof import DERIVED, HASHED, verify_file
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

LATER = {"close": ("months.close", "Close a month that is over: nothing in it can change any more.")}


@click.group(cls=LazyGroup, places=LATER, words="ledger")
def ledger() -> None:
    """Check the ledger, export it, or close a month of it."""


@ledger.command()
@click.option("--all", "reads_all", is_flag=True, help="Read the closed months too, and compute their hashes again.")
@json_option
@settings_option
def check(reads_all: bool, as_json: bool, settings: Settings) -> None:
    """Check on the live store that entries, balances, reserves and charges agree. Exit 1 if they do not.

    Every charge is computed again from its token counts and prices. The check begins with the balances of the last
    closed month.
    """
    found = read_store(settings, check_all if reads_all else check_ledger)
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


@ledger.command()
@click.option("--month", required=True, metavar="YYYY-MM", help="The closed month.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@settings_option
def verify(month: str, file: Path | None, settings: Settings) -> None:
    """Compute the hash of a closed month again. Exit 1 if it differs.

    It is computed from the store, with the sums and the balances, or from a FILE that `ledger export --month` wrote. Of
    a file the other columns are compared too, with the hashed ones and with the store.
    """
    found = read_store(settings, lambda store: verify_file(store, month, file) if file else verify_month(store, month))
    if found.problems:
        say(f"{month} is not as it was closed: {'; '.join(found.problems)}. Entries read: {found.entries}.")
        sys.exit(1)
    click.echo(f"{month} is as it was closed. Entries read: {found.entries}, hash {found.found.hex()}.")
    if file:
        _print_proof(found)


def _print_proof(found: Verified) -> None:
    click.echo(f"Proven by the hash: {', '.join((*HASHED, *DERIVED))}.")
    compared = (name for name in REQUEST_FIELDS if name not in HASHED)
    click.echo(f"The same as in the store: account, {', '.join(compared)}; refunded_nano, unless it is empty.")
    if count := found.unproven.get("account"):
        click.echo(f"Not proven: the account of {count} entries, which was erased or has another address now.")
    if count := found.unproven.get("request"):
        click.echo(f"Not proven: the columns of {count} requests, which were removed or corrected in the store.")


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
