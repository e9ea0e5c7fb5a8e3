"""cadenza ledger check | export, and cadenza usage."""

import csv
import sys
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import typer

from cadenza.cli.console import AsJson, Config, out, print_list, say, when, with_store
from cadenza.control import usage as control
from cadenza.core.money import format_dollars
from cadenza.core.usage_report import parse_group, parse_span
from cadenza.store.database import Database

ledger = typer.Typer(help="The ledger: prove it, export it.", no_args_is_help=True)
FIELDS = (
    "id",
    "created_at",
    "account",
    "kind",
    "amount",
    "amount_nano",
    "request_id",
    "class",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "estimated",
    "note",
)


@ledger.command()
def check(as_json: AsJson = False, config: Config = None) -> None:
    """Prove on the live store that entries, balances, holds and charges agree. Exit 1 with what is off."""
    findings, counts = with_store(config, control.check_ledger)
    if as_json:
        print_list([msgspec.structs.asdict(finding) for finding in findings], (), as_json=True)
    elif findings:
        rows = [{"rule": one.rule, "subject": one.subject, "off by": one.off_by} for one in findings]
        print_list(rows, ("rule", "subject", "off by"), as_json=False)
    else:
        say(
            f"The ledger holds: {counts.accounts} accounts, {counts.entries} entries, "
            f"{counts.open_holds} open holds, {counts.ended_holds} ended.",
            out,
        )
    if findings:
        say(f"The ledger is off in {len(findings)} places. Keep the store as it is, and look.")
        raise typer.Exit(1)


@ledger.command()
def export(
    account: Annotated[str | None, typer.Option(help="Only this account's, by its email address.")] = None,
    form: Annotated[Literal["csv", "jsonl"], typer.Option("--format", help="csv or jsonl.")] = "csv",
    config: Config = None,
) -> None:
    """Write every entry of the ledger to standard output, oldest first."""
    with_store(config, lambda db: _export(db, account, form))


async def _export(db: Database, account: str | None, form: str) -> None:
    table = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    async with control.export_ledger(db, account) as entries:
        if form == "csv":
            table.writeheader()
        async for entry in entries:
            if form == "csv":
                table.writerow(_row(entry))
            else:
                sys.stdout.write(msgspec.json.encode(_row(entry)).decode() + "\n")


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    estimated = entry["estimated"]
    return {
        **{name: entry.get(name) for name in FIELDS},
        "created_at": when(entry["created_at"]),
        "amount": format_dollars(entry["amount_nano"]),
        "class": entry["class_id"],
        "estimated": None if estimated is None else bool(estimated),
    }


def usage(
    account: Annotated[str, typer.Option("--account", help="The account's email address.")],
    start: Annotated[
        str | None, typer.Option(help="RFC 3339 or Unix seconds. [default: 30 days before the end]")
    ] = None,
    end: Annotated[str | None, typer.Option(help="RFC 3339 or Unix seconds. [default: now]")] = None,
    group_by: Annotated[str, typer.Option(help="day, model or key.")] = "day",
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show what an account used, and what it cost."""
    span, group = parse_span(start, end, datetime.now(UTC)), parse_group(group_by)
    report = with_store(config, lambda db: control.usage_report(db, account, span, group))
    shown = report.shown()
    columns = (group, "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")
    rows = report.rows() if as_json else [*report.rows(), {group: "total", **shown["totals"]}]
    print_list(rows, columns, as_json=as_json)
    if not as_json:
        say(f"Balance: {shown['balance']} dollars.", out)
