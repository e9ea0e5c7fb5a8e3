"""cadenza report month, cadenza ledger close and cadenza ledger verify."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from cadenza import parts
from cadenza.config import Settings
from cadenza.control.money.statement import check_ledger
from cadenza.core.csv_text import csv_table
from cadenza.core.formats import rfc3339
from cadenza.core.money import format_dollars
from cadenza.core.records import COMMAND_LINE
from cadenza.ledger.check import Violation
from cadenza.ledger.export import REQUEST_FIELDS
from cadenza.parts.books.closing import close_month
from cadenza.parts.books.margin_commands import margin, reconcile
from cadenza.parts.books.months import (
    BALANCE_FIELDS,
    REPORT_FIELDS,
    Compared,
    MonthReport,
    compare_payments,
    list_balances,
    listing_span,
    report_month,
)
from cadenza.parts.books.payment_rows import list_entries
from cadenza.parts.books.proof import DERIVED, HASHED, Verified, verify_file, verify_month
from cadenza.store.store import Store
from cadenza.terminal.configured import ListPayments, read_store, settings_option, with_store
from cadenza.terminal.console import json_option, now_ms, print_json, print_table, say, to_row
from cadenza.terminal.lazy import CommandGroup
from cadenza.terminal.new_files import new_file

__all__ = ["ledger_close", "ledger_verify", "margin", "reconcile", "report"]
PAYMENT_FIELDS = (
    "id",
    "created_at",
    "origin",
    "provider",
    "checkout",
    "reference",
    "account_id",
    "amount",
    "source",
    "note",
)


@click.group(cls=CommandGroup)
def report() -> None:
    """Show reports over all accounts."""


@report.command()
@click.argument("month", metavar="YYYY-MM")
@click.option("--csv", "file", metavar="FILE", help="Also write the report to this new file, as CSV.")
@click.option("--payments", metavar="FILE", help="Also write payments and what was returned of any to this new file.")
@click.option("--accounts", metavar="FILE", help="Also write the closing balance of every account to this new file.")
@click.option("--verify", "is_compared", is_flag=True, help="Compare the payments with what the provider lists.")
@json_option
@settings_option
def month(  # noqa: PLR0913, PLR0917 its options
    month: str,
    file: str | None,
    payments: str | None,
    accounts: str | None,
    is_compared: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Show what all accounts had, got and spent in a month (UTC): from the opening to the closing balance.

    To an accountant the paid part of the line Charged is revenue, and that of the closing balance deferred revenue. If
    the month is not closed, the ledger is checked first. Exit 1 if it is not sound, or if --verify finds a difference.
    """

    async def read(store: Store) -> tuple[MonthReport, list[Violation], Sequence[object], list[dict[str, str]]]:
        found = await report_month(store, month, now_ms())
        findings = [] if found.closed else (await check_ledger(store)).findings
        credited = await list_entries(store, found.span) if payments else []
        return found, findings, credited, await list_balances(store, month) if accounts else []

    found, findings, credited, balances = read_store(settings, read)
    compared = _compare(settings, month) if is_compared else None
    with ExitStack() as stack:  # all of the files, or none
        for path, fields, rows in (
            (file, REPORT_FIELDS, found.rows()),
            (payments, PAYMENT_FIELDS, [to_row(one, *PAYMENT_FIELDS) for one in credited]),
            (accounts, BALANCE_FIELDS, balances),
        ):
            if path:
                stack.enter_context(new_file(Path(path))).write(csv_table(fields, rows).encode())
    if as_json:
        print_json(found.rows())
    else:
        _print_report(found)
    if findings:
        say(f"The ledger is not sound; findings: {len(findings)}. Run 'cadenza ledger check' to see them.")
        sys.exit(1)
    if compared:
        for difference in compared.differences:
            say(difference)
        say(
            f"The provider lists {compared.count} payments of the month, {format_dollars(compared.amount_nano)} "
            f"dollars. Payments of other programs: {compared.others}. Differences: {len(compared.differences)}."
        )
        if compared.differences:
            sys.exit(1)
    if found.closed is None:
        say("The month is not closed: its sums may still change. The ledger was checked, and is sound.")


def _compare(settings: Settings, month: str) -> Compared:
    part = parts.find("[payments]")
    assert part
    list_payments: ListPayments = part.load("open").list_payments

    async def compare(store: Store) -> Compared:
        return await compare_payments(store, month, await list_payments(settings, listing_span(month)))

    return read_store(settings, compare)


def _print_report(report: MonthReport) -> None:
    lines = [row for row in report.rows() if row["origin"] is None and row["day"] is None]
    print_table([{**row, "": row["line"]} for row in lines], ("", "amount", "paid", "granted", "count"))
    requests, moved = report.sums.requests, report.sums.accounts
    click.echo(f"Accounts: {report.accounts}, with entries in the month: {moved}. Requests charged: {requests}.")
    for one in report.payments:
        click.echo(f"Payments on {one.day} by {one.provider}: {one.count}, {format_dollars(one.amount_nano)} dollars.")
    if report.closed and report.closed.hash:
        closed_at = rfc3339(report.closed.closed_at or 0)
        click.echo(f"Closed at {closed_at}, entries: {report.closed.entries}, hash {report.closed.hash.hex()}.")


@click.command("close")
@click.argument("month", metavar="YYYY-MM")
@settings_option
def ledger_close(month: str, settings: Settings) -> None:
    """Close a month that is over: nothing in it can change any more.

    Every earlier month must be closed or empty, and the ledger is checked first. An entry that is written later is
    dated in the first open month.
    """
    closed = with_store(settings, lambda store: close_month(store, month, COMMAND_LINE, now_ms()))
    assert closed.hash
    click.echo(closed.hash.hex())
    say(
        f"Closed {month}. Entries: {closed.entries}, requests: {closed.requests}, closing balance: "
        f"{format_dollars(closed.closing_nano)} dollars. Keep the hash above with your records."
    )


@click.command("verify")
@click.option("--month", required=True, metavar="YYYY-MM", help="The closed month.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@settings_option
def ledger_verify(month: str, file: Path | None, settings: Settings) -> None:
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
