"""cadenza documents issue | list | show | export: receipts, statements and credit notes."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from cadenza.cli.console import (
    config_option,
    from_option,
    json_option,
    load_config,
    month_option,
    now_ms,
    print_json,
    print_list,
    print_table,
    read_store,
    say,
    to_option,
    to_row,
    with_store,
)
from cadenza.core.spans import ALWAYS, parse_dates

if TYPE_CHECKING:
    from cadenza.control.money.documents import Issued
    from cadenza.core.documents import Seller
    from cadenza.ledger.documents import Document
    from cadenza.store.store import Store

COLUMNS = ("number", "kind", "issued_at", "account_id", "subject", "amount", "sha256")
account_option = click.option("--account", metavar="EMAIL", help="Only the documents of this account.")


@click.group()
def documents() -> None:
    """Receipts, statements and credit notes."""


@documents.command()
@click.option("--month", metavar="YYYY-MM", help="Issue the statements of this month, UTC, too.")
@config_option
def issue(month: str | None, config: str | None) -> None:
    """Issue the receipts and credit notes that are missing, and the statements of a month.

    A running service does this by itself.
    """
    settings = load_config(config)
    seller = settings.billing
    if seller is None:
        raise ValueError("The config has no section [billing]: documents need the name of a seller.")
    done = with_store(settings, lambda store: _issue(store, seller, month))
    say(f"Issued: receipts {done.receipts}, credit notes {done.credit_notes}, statements {done.statements}.")


async def _issue(store: "Store", seller: "Seller", month: str | None) -> "Issued":
    from cadenza.control.money.documents import issue_of_payments, issue_statements  # noqa: PLC0415 import time

    now = now_ms()
    statements = (await issue_statements(store, seller, month, now)).statements if month else 0
    done = await issue_of_payments(store, seller, now)
    return msgspec.structs.replace(done, statements=statements)


@documents.command("list")
@account_option
@from_option
@to_option
@month_option
@json_option
@config_option
def list_(
    account: str | None, start: str | None, end: str | None, month: str | None, as_json: bool, config: str | None
) -> None:
    """List the documents that were issued in a time, oldest first. `sha256` is that of their facts."""
    from cadenza.control.money.documents import list_issued  # noqa: PLC0415 import time

    span = parse_dates(start, end, month) or ALWAYS
    found = read_store(load_config(config), lambda store: list_issued(store, account, span))
    rows = [to_row(one, *COLUMNS[:-1]) | {"sha256": one.digest.hex()} for one in found]
    print_list(rows, COLUMNS, as_json=as_json)


@documents.command()
@click.argument("number")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as they were issued.")
@config_option
def show(number: str, as_json: bool, config: str | None) -> None:
    """Show one document."""
    document = read_store(load_config(config), lambda store: _find(store, number))
    facts = document.read()
    if as_json:
        print_json([msgspec.json.decode(document.facts)])
        return
    for title, party in (("From", facts.seller), ("To", facts.buyer)):
        tax = [f"Tax id {party.tax_id}"] if party.tax_id else []
        click.echo(f"{title}: {', '.join([party.name, *party.address.splitlines(), *tax])}")
    for label, value in facts.about():
        click.echo(f"{label}: {value}")
    total = {"what": facts.total_label, facts.currency: facts.total}
    print_table(
        [*({"what": what, facts.currency: amount} for what, amount in facts.rows()), total], ("what", facts.currency)
    )
    if facts.charges:
        names = ("class_id", "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "amount")
        print_table([to_row(one, *names) for one in facts.charges], names)
    click.echo(f"SHA-256 of its facts: {document.digest.hex()}")


@documents.command()
@click.argument("numbers", metavar="[NUMBER]...", nargs=-1)
@click.option("--folder", metavar="FOLDER", required=True, help="Where to write them. It is created if needed.")
@account_option
@from_option
@to_option
@month_option
@config_option
def export(  # noqa: PLR0913, PLR0917 its options
    numbers: tuple[str, ...],
    folder: str,
    account: str | None,
    start: str | None,
    end: str | None,
    month: str | None,
    config: str | None,
) -> None:
    """Write documents as PDF, each to a file with its number as name, and print the SHA-256 of each file.

    Without a number: those that were issued in a time.
    """
    from cadenza.control.money.document_pdf import render_pdf  # noqa: PLC0415 import time
    from cadenza.control.money.documents import list_issued  # noqa: PLC0415 import time

    span = parse_dates(start, end, month)
    if numbers and (span or account):
        raise ValueError("Give the numbers of documents, or an account and a time, not both.")

    async def find(store: "Store") -> "list[Document]":
        if numbers:
            return [await _find(store, number) for number in numbers]
        return await list_issued(store, account, span or ALWAYS)

    found = read_store(load_config(config), find)
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    for one in found:
        content = render_pdf(one.read(), one.digest)
        (into / f"{one.number}.pdf").write_bytes(content)
        click.echo(f"{hashlib.sha256(content).hexdigest()}  {one.number}.pdf")
    say(f"Wrote {len(found)} to {into}.")


async def _find(store: "Store", number: str) -> "Document":
    from cadenza.control.money.documents import get_document  # noqa: PLC0415 import time

    found = await get_document(store, number)
    if found is None:
        raise ValueError(f"There is no document {number}: 'cadenza documents list' has those that were issued.")
    return found
