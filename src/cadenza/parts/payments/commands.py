"""cadenza voucher create | list | revoke, and the commands of the core that know of bank transfers too."""

import click

from cadenza.config import Settings
from cadenza.control.money.refunds import refund_request
from cadenza.core.formats import rfc3339_or_none
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.records import COMMAND_LINE
from cadenza.parts.payments import voucher_rows
from cadenza.parts.payments.transfers import (
    Transfer,
    TransferRefund,
    find_transfer,
    record_transfer,
    refund_transfer,
)
from cadenza.parts.payments.voucher_rows import VoucherOrder, VoucherTerms
from cadenza.parts.payments.vouchers import create_vouchers, revoke_voucher
from cadenza.store.store import Store
from cadenza.terminal.configured import read_store, settings_option, with_store
from cadenza.terminal.console import (
    AmountCommand,
    json_option,
    now_ms,
    print_list,
    say,
    say_repeated,
    to_row,
)
from cadenza.terminal.credit import credit_options, give, say_balance
from cadenza.terminal.lazy import CommandGroup
from cadenza.terminal.orders import order_options

TERMS = tuple(name.removesuffix("_nano") for name in VoucherTerms.__struct_fields__)
COLUMNS = ("prefix", "state", *TERMS, "created_at", "expires_at", "redeemed_at", "redeemed_by", "id")


@click.group(cls=CommandGroup)
def voucher() -> None:
    """Vouchers: codes that give credit once."""


@voucher.command(cls=AmountCommand)
@order_options(VoucherOrder)
@settings_option
def create(order: VoucherOrder, settings: Settings) -> None:
    """Make vouchers of AMOUNT dollars and print their codes, one a line. A code is shown only this once."""
    made = with_store(settings, lambda store: create_vouchers(store, order, COMMAND_LINE, now_ms()))
    for code, _ in made:
        click.echo(code)
    until = f"until {rfc3339_or_none(made[0][1].expires_at)}" if order.expires_days else "until they are used"
    say(f"Made {len(made)} of {format_dollars(order.amount_nano)} dollars, good {until}. Only their hashes are stored.")


@voucher.command("list")
@json_option
@settings_option
def list_(as_json: bool, settings: Settings) -> None:
    """List the vouchers, without their codes."""
    now = now_ms()
    fields = ("id", "prefix", *TERMS, "created_at", "expires_at", "redeemed_at")
    rows = [
        {**to_row(one, *fields), "state": one.state(now), "redeemed_by": one.email}
        for one in read_store(settings, voucher_rows.list_all)
    ]
    print_list(rows, COLUMNS, as_json=as_json)


@voucher.command()
@click.argument("named", metavar="PREFIX_OR_ID")
@settings_option
def revoke(named: str, settings: Settings) -> None:
    """Make an unused voucher expire now. Name it by its id, its first characters or its code."""
    done = with_store(settings, lambda store: revoke_voucher(store, named, COMMAND_LINE, now_ms()))
    say(f"The voucher {done.prefix} ({done.id}) of {format_dollars(done.amount_nano)} dollars has expired.")


@click.command(cls=AmountCommand)
@click.option("--paid", is_flag=True, help="A bank transfer paid for it. --reference names the transfer, once.")
@credit_options
def account_credit(  # noqa: PLR0913, PLR0917 its options
    email: str, amount: str, note: str, expires: int | None, paid: bool, reference: str, settings: Settings
) -> None:
    """Add credit to an account: an amount of dollars, like 5.00. Without --paid it is a gift.

    Paid credit is spent after gifts, does not expire, and is in the report of the month as paid by transfer.
    """
    amount_nano = parse_dollars(amount)
    if not paid:
        give(settings, email, amount_nano, note, expires, reference)
        return
    if expires is not None:
        raise click.UsageError("Paid credit does not expire: leave out --expires.")
    transfer = Transfer(amount_nano, reference, note)
    account = with_store(settings, lambda store: record_transfer(store, email, transfer, COMMAND_LINE, now_ms()))
    say_balance(account, f"{format_dollars(amount_nano)} dollars were recorded as a bank transfer {reference}; the")


@click.command()
@click.argument("refunded", metavar="ID")
@click.option("--part", metavar="DOLLARS", show_default="all of it", help="How much of it, in dollars.")
@click.option("--reason", metavar="TEXT", required=True, help="Why, for the ledger. The account's owner sees it.")
@click.option("--reference", metavar="TEXT", default="", help="Of the refund of a transfer, so it takes effect once.")
@settings_option
def refund(refunded: str, part: str | None, reason: str, reference: str, settings: Settings) -> None:
    """Refund a request, or record that a bank transfer was sent back: all of it or a part.

    ID is the id of the reply, which begins with chatcmpl-, and is refunded once; or the reference of the transfer,
    whose credit is taken back. Refund a card payment at Stripe.
    """
    part_nano = None if part is None else parse_dollars(part)

    async def work(store: Store) -> str:
        if not await find_transfer(store, refunded):
            return (await refund_request(store, refunded, part_nano, reason, COMMAND_LINE, now_ms())).sentence
        wanted = TransferRefund(refunded, part_nano, reason, reference)
        back = await refund_transfer(store, wanted, COMMAND_LINE, now_ms())
        if back.earlier_at is not None:
            say_repeated(back.earlier_at)
        payment = back.payment
        return (
            f"{format_dollars(payment.refunded_nano)} of the {format_dollars(payment.amount_nano)} dollars of the "
            f"bank transfer {payment.reference} are refunded now."
        )

    say(with_store(settings, work))
