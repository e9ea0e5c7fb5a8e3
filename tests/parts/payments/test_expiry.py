"""Granted credit that expires, on both databases: what is left of it is taken after its time, and no more."""

import pytest

from cadenza.control.money.credit import give_credit, list_expiring
from cadenza.control.money.refunds import refund_request
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Owner, Usage
from cadenza.core.spans import DAY_MS
from cadenza.ledger import check, credit, lots
from cadenza.ledger.rules import HeldCredit
from cadenza.parts.payments.voucher_rows import VoucherOrder
from cadenza.parts.payments.vouchers import create_vouchers, redeem_voucher
from cadenza.store.schema import credit_lots, entries
from cadenza.store.store import Store
from cadenza.store.tables import accounts
from tests.parts.payments.test_debts import CENT_NANO, hold_of, pay_ten
from tests.parts.payments.test_kinds_of_credit import EMAIL, newest, spend, split
from tests.store.moves import ALONE, comes_true, finish, fund, make_hold, make_outcome, money, take, writing
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of, run_sql


async def grant(store: Store, amount: int, days: int | None) -> None:
    """Grant this many cents."""
    await give_credit(store, EMAIL, amount * CENT_NANO, f"for {days}", NOW_MS, COMMAND_LINE, expires_days=days)


async def expire(store: Store, days: int) -> int:
    """Take what has expired after this many days; the cents."""
    now_ms = NOW_MS + days * DAY_MS
    due = await lots.accounts_due(store, now_ms, 10)
    taken = [await store.transact(lambda tx, one=one: credit.expire(tx, one, now_ms)) for one in due]  # type: ignore[misc]
    return sum(taken) // CENT_NANO


async def expiring(store: Store) -> list[tuple[int, int]]:
    """The cents that expire, and after how many days."""
    account = await accounts.get(store, "acct_a")
    assert account
    found = await list_expiring(store, account)
    return [(lot.left_nano // CENT_NANO, ((lot.expires_at or 0) - NOW_MS) // DAY_MS) for lot in found]


async def test_what_is_left_of_a_grant_expires(store: Store) -> None:
    """Not before its time, once, by an entry; paid credit and other grants stay."""
    await pay_ten(store)
    await grant(store, 200, None)
    await grant(store, 300, 90)
    await grant(store, 100, 30)
    assert await expiring(store) == [(100, 30), (300, 90)]
    await spend(store, "r1", Usage(30, 40))
    assert await expiring(store) == [(250, 90)]
    assert await expire(store, 89) == 0
    assert await split(store) == (1000, 450)
    assert await expire(store, 90) == 250
    assert (await newest(store), await split(store)) == (("expiry", -250, -250), (1000, 200))
    assert (await expire(store, 90), await expire(store, 900), await expiring(store)) == (0, 0, [])
    [entry] = [row for row in await rows_of(store, entries) if row.origin == "expiry"]
    assert (entry.kind, entry.note) == ("correction", "for 90")


async def test_credit_that_was_spent_before_a_grant_does_not_shield_it(store: Store) -> None:
    """Ten dollars that never expire were granted and spent: a later grant expires all the same."""
    await fund(store, 0)
    await grant(store, 150, None)
    await spend(store, "r1", Usage(30, 40))
    await grant(store, 500, 30)
    assert await expire(store, 30) == 500
    assert await split(store) == (0, 0)


async def test_the_credit_of_a_voucher_expires_after_it_was_redeemed(store: Store) -> None:
    """So many days after that, and not after the voucher was made."""
    await fund(store, 0)
    order = VoucherOrder(amount_nano=DOLLAR_NANO, credit_days=7)
    [(code, voucher)] = await create_vouchers(store, order, COMMAND_LINE, NOW_MS - 5 * DAY_MS)
    assert voucher.credit_days == 7
    await redeem_voucher(store, Owner("acct_a", EMAIL), code, NOW_MS)
    assert (await expiring(store), await expire(store, 6)) == ([(100, 7)], 0)
    assert (await expire(store, 7), await split(store)) == (100, (0, 0))


async def test_what_running_requests_hold_may_be_spent(store: Store) -> None:
    """Free credit is taken at once; the rest when the requests have ended, unless they have spent it."""
    await fund(store, 0)
    await grant(store, 500, 30)
    await take(store, hold_of("r1"))
    assert await expire(store, 30) == 170
    assert await split(store) == (0, 330)
    await finish(store, hold_of("r1"), Usage(30, 40))
    assert await expire(store, 30) == 180
    assert (await split(store), await expire(store, 31)) == ((0, 0), 0)
    assert [row.left_nano for row in await rows_of(store, credit_lots)] == [0]


async def test_a_refund_after_the_expiry_does_not_expire(store: Store) -> None:
    """It is credit of its own."""
    await fund(store, 0)
    await grant(store, 300, 30)
    await spend(store, "r1", Usage(30, 40))
    assert await expire(store, 30) == 150
    await refund_request(store, "r1", None, "late", COMMAND_LINE, NOW_MS)
    assert (await split(store), await expire(store, 999)) == ((0, 150), 0)


async def test_a_refund_before_the_expiry_expires_with_its_grant(store: Store) -> None:
    """As if it had not been spent."""
    await fund(store, 0)
    await grant(store, 300, 30)
    await spend(store, "r1", Usage(30, 40))
    await refund_request(store, "r1", None, "at once", COMMAND_LINE, NOW_MS)
    assert (await expire(store, 30), await split(store)) == (300, (0, 0))


async def test_the_service_takes_what_has_expired(store: Store) -> None:
    """A sweep does it, also what it finds when the service starts."""
    await fund(store, 0)
    await grant(store, 300, 1)
    await run_sql(store, "UPDATE credit_lots SET expires_at = 1")
    async with writing(store, timing=ALONE) as (writer, _):
        assert await money(store) == (0, 0)
        assert not isinstance(await writer.hold(make_hold("r1")), HeldCredit)
    assert await check.find_violations(store) == []


async def test_spare_reserves_are_asked_back(store: Store) -> None:
    """What a process has reserved and does not use does not shield credit from its expiry."""
    await fund(store, 0)
    await grant(store, 300, 30)
    async with writing(store) as (writer, _):
        held = await writer.hold(make_hold("r1"))
        assert isinstance(held, HeldCredit)

        async def is_taken() -> bool:
            await expire(store, 30)
            return await money(store) == (held.amount_nano, held.amount_nano)

        assert await comes_true(is_taken)
        await writer.end(make_outcome("r1", Usage(100, 50)))
    assert await check.find_violations(store) == []


@pytest.mark.parametrize("days", [0, -1, 3651])
async def test_other_days_are_refused(store: Store, days: int) -> None:
    """With what they may be."""
    await fund(store, 0)
    with pytest.raises(ControlError, match=r"Credit expires after 1 to 3,650 days"):
        await grant(store, 100, days)
