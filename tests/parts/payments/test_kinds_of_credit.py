"""Kinds of credit on both databases: each entry says its origin and its granted part, and granted credit goes first."""

from cadenza.control.account.erasure import erase_account
from cadenza.control.money.credit import correct_credit, give_credit
from cadenza.core.records import COMMAND_LINE, Owner, Usage
from cadenza.ledger import check
from cadenza.parts.payments.events import DisputeClosed, Disputed, Refunded
from cadenza.parts.payments.voucher_rows import VoucherOrder
from cadenza.parts.payments.vouchers import create_vouchers, redeem_voucher
from cadenza.store.schema import entries
from cadenza.store.store import Store
from cadenza.store.tables import accounts
from tests.parts.payments.test_debts import CENT_NANO, TEN_NANO, hold_of, pay_ten, tell
from tests.store.moves import finish, fund, take
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of

EMAIL = "acct_a@example.org"


async def split(store: Store) -> tuple[int, int]:
    """The paid and the granted part of the balance, in cents. The ledger must be sound."""
    assert await check.find_violations(store) == []
    account = await accounts.get(store, "acct_a")
    assert account
    return (account.balance_nano - account.granted_nano) // CENT_NANO, account.granted_nano // CENT_NANO


async def newest(store: Store) -> tuple[str | None, int, int]:
    """The origin, the amount and the granted part of the newest entry, in cents."""
    row = max(await rows_of(store, entries), key=lambda one: one.id)
    return row.origin, row.amount_nano // CENT_NANO, row.granted_nano // CENT_NANO


async def give_voucher(store: Store, amount_nano: int) -> None:
    [(code, _)] = await create_vouchers(store, VoucherOrder(amount_nano=amount_nano), COMMAND_LINE, NOW_MS)
    await redeem_voucher(store, Owner("acct_a", EMAIL), code, NOW_MS)


async def spend(store: Store, name: str, counted: Usage) -> None:
    await take(store, hold_of(name))
    await finish(store, hold_of(name), counted)


async def test_granted_credit_is_spent_before_paid_credit(store: Store) -> None:
    """A voucher, a payment and a grant; each charge says which part of it was granted."""
    await pay_ten(store)
    assert (await newest(store), await split(store)) == (("payment", 1000, 0), (1000, 0))
    await give_voucher(store, 2 * DOLLAR_NANO)
    assert (await newest(store), await split(store)) == (("voucher", 200, 200), (1000, 200))
    await spend(store, "r1", Usage(30, 40))
    assert (await newest(store), await split(store)) == ((None, -150, -150), (1000, 50))
    await spend(store, "r2", Usage(30, 40))
    assert (await newest(store), await split(store)) == ((None, -150, -50), (900, 0))
    await give_credit(store, EMAIL, DOLLAR_NANO, "sorry", NOW_MS, COMMAND_LINE)
    assert (await newest(store), await split(store)) == (("grant", 100, 100), (900, 100))
    await correct_credit(store, EMAIL, -3 * DOLLAR_NANO, "a mistake", COMMAND_LINE, NOW_MS)
    assert (await newest(store), await split(store)) == (("correction", -300, -100), (700, 0))


async def test_opening_credit_is_granted_and_what_is_left_is_forfeited(store: Store) -> None:
    """The first entry and the last one of an account."""
    await fund(store, 5 * DOLLAR_NANO)
    assert (await newest(store), await split(store)) == (("opening", 500, 500), (0, 500))
    await erase_account(store, EMAIL, COMMAND_LINE, NOW_MS)
    assert (await newest(store), await split(store)) == (("erasure", -500, -500), (0, 0))


async def test_a_returned_payment_takes_paid_credit_first(store: Store) -> None:
    """Granted credit stays as long as paid credit is there, and a dispute that is won gives back what was taken."""
    await pay_ten(store)
    await give_credit(store, EMAIL, 3 * DOLLAR_NANO, "", NOW_MS, COMMAND_LINE)
    await spend(store, "r1", Usage(30, 100))
    await spend(store, "r2", Usage(30, 100))
    assert await split(store) == (640, 0)
    await give_credit(store, EMAIL, 3 * DOLLAR_NANO, "", NOW_MS, COMMAND_LINE, reference="again")
    await tell(store, Refunded(4 * DOLLAR_NANO), "evt_refund")
    assert (await newest(store), await split(store)) == (("return", -400, 0), (240, 300))
    await tell(store, Disputed("dp_1", 6 * DOLLAR_NANO), "evt_dispute")
    account = await accounts.get(store, "acct_a")
    assert account
    assert (await newest(store), await split(store)) == (("dispute", -540, -300), (0, 0))
    assert account.debt_nano == 60 * CENT_NANO
    await give_credit(store, EMAIL, DOLLAR_NANO, "", NOW_MS, COMMAND_LINE, reference="third")
    assert (await newest(store), await split(store)) == (("debt", -60, -60), (0, 40))
    await tell(store, DisputeClosed("dp_1", 6 * DOLLAR_NANO, "won"), "evt_won")
    assert (await newest(store), await split(store)) == (("dispute", 600, 360), (240, 400))


async def test_a_debt_that_ended_requests_pay_is_split_too(store: Store) -> None:
    """In the transaction of a batch, after its charges: paid credit first."""
    await pay_ten(store)
    await give_credit(store, EMAIL, 2 * DOLLAR_NANO, "", NOW_MS, COMMAND_LINE)
    for name in ("r1", "r2", "r3"):
        await take(store, hold_of(name))
    await tell(store, Refunded(TEN_NANO), "evt_refund")
    assert (await newest(store), await split(store)) == (("return", -210, 0), (790, 200))
    await finish(store, hold_of("r1"), Usage(30, 40))
    assert (await newest(store), await split(store)) == (("debt", -180, 0), (610, 50))
    await finish(store, hold_of("r2"))
    await finish(store, hold_of("r3"), Usage(30, 10))
    assert (await newest(store), await split(store)) == (("debt", -270, 0), (0, 0))
