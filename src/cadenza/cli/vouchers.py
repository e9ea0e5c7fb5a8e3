"""cadenza voucher create | list | revoke."""

import click

from cadenza.config import Settings
from cadenza.core.formats import rfc3339_or_none
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.records import COMMAND_LINE
from cadenza.parts.payments.vouchers import VoucherOrder, create_vouchers, list_vouchers, revoke_voucher
from cadenza.terminal.configured import read_store, settings_option, with_store
from cadenza.terminal.console import (
    AmountCommand,
    json_option,
    now_ms,
    print_list,
    reference_option,
    say,
    to_row,
)
from cadenza.terminal.lazy import CommandGroup

COLUMNS = ("prefix", "amount", "state", "created_at", "expires_at", "redeemed_at", "redeemed_by", "note", "id")


@click.group(cls=CommandGroup)
def vouchers() -> None:
    """Vouchers: codes that give credit once."""


@vouchers.command(cls=AmountCommand)
@click.argument("amount")
@click.option("--count", metavar="NUMBER", type=int, default=1, show_default=True, help="How many vouchers to make.")
@click.option("--expires", metavar="DAYS", type=int, show_default="never", help="After how many days they expire.")
@click.option(
    "--credit-expires",
    metavar="DAYS",
    type=int,
    show_default="never",
    help="After how many days the rest of the credit expires, once it is redeemed.",
)
@click.option("--note", metavar="TEXT", default="", help="What they are for. Only operators see it.")
@reference_option
@settings_option
def create(  # noqa: PLR0913, PLR0917 its options
    amount: str,
    count: int,
    expires: int | None,
    credit_expires: int | None,
    note: str,
    reference: str,
    settings: Settings,
) -> None:
    """Make vouchers of AMOUNT dollars and print their codes, one a line. A code is shown only this once."""
    order = VoucherOrder(parse_dollars(amount), count, expires, note, reference, credit_expires)
    made = with_store(settings, lambda store: create_vouchers(store, order, COMMAND_LINE, now_ms()))
    for code, _ in made:
        click.echo(code)
    until = f"until {rfc3339_or_none(made[0][1].expires_at)}" if expires else "until they are used"
    say(f"Made {len(made)} of {format_dollars(order.amount_nano)} dollars, good {until}. Only their hashes are stored.")


@vouchers.command("list")
@json_option
@settings_option
def list_(as_json: bool, settings: Settings) -> None:
    """List the vouchers, without their codes."""
    now = now_ms()
    rows = [
        {
            **to_row(voucher, "id", "prefix", "amount"),
            "state": voucher.state(now),
            **to_row(voucher, "note", "created_at", "expires_at", "credit_days", "redeemed_at"),
            "redeemed_by": redeemed_by,
        }
        for voucher, redeemed_by in read_store(settings, list_vouchers)
    ]
    print_list(rows, COLUMNS, as_json=as_json)


@vouchers.command()
@click.argument("voucher", metavar="PREFIX_OR_ID")
@settings_option
def revoke(voucher: str, settings: Settings) -> None:
    """Make an unused voucher expire now. Name it by its id, its first characters or its code."""
    done = with_store(settings, lambda store: revoke_voucher(store, voucher, COMMAND_LINE, now_ms()))
    say(f"The voucher {done.prefix} ({done.id}) of {format_dollars(done.amount_nano)} dollars has expired.")
