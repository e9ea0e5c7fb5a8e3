"""Debts on both databases: credit that is taken back while requests hold it, or after it was spent, is paid first."""

from cadenza.control.money.statement import describe_entry, export_statement, read_statement
from cadenza.core.money import Price
from cadenza.core.records import COMMAND_LINE, Owner, Usage
from cadenza.core.spans import month_span
from cadenza.ledger import check, credit
from cadenza.ledger.origins import CreditMove
from cadenza.ledger.payments import PaymentIds
from cadenza.ledger.rules import HeldCredit, Hold, Insufficient
from cadenza.parts.books.sums import month_of
from cadenza.parts.payments.checkouts import Payer
from cadenza.parts.payments.checkouts import start_payment as begin
from cadenza.parts.payments.events import DisputeClosed, Disputed, Fact, Paid, PaymentEvent, Refunded
from cadenza.parts.payments.payments import apply_event
from cadenza.parts.payments.transfers import Transfer, TransferRefund, record_transfer, refund_transfer
from cadenza.store.schema import debts, entries
from cadenza.store.store import Store
from cadenza.store.tables import accounts
from cadenza.store.tables.audit_events import list_newest
from tests.parts.payments.test_payments import Till
from tests.store.moves import (
    comes_true,
    finish,
    fund,
    make_hold,
    make_outcome,
    money,
    opened,
    register,
    statement_by_pages,
    sweep_process,
    take,
    writing,
)
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of, run_sql

OWNER = Owner("acct_a", "acct_a@example.org")
CENT_NANO = DOLLAR_NANO // 100
TEN_NANO = 10 * DOLLAR_NANO
PRICE = Price(input_nano=CENT_NANO, output_nano=3 * CENT_NANO)
REFUNDED = Refunded(TEN_NANO)
DISPUTED = Disputed("dp_1", TEN_NANO)
MARK = f"""
    INSERT INTO marks SELECT 'r1', 'req-r1', 'proc_a', id, 'key_a', 'forte', 30, 90, {CENT_NANO}, {3 * CENT_NANO}, NULL,
    uses_search, created_at, 3 FROM accounts"""


def hold_of(name: str) -> Hold:
    """A request that holds 3.30 dollars: 30 tokens of prompt, and at most 100 of output."""
    return make_hold(name, prompt_tokens=30, allowance_tokens=100, price=PRICE)


async def tell(store: Store, fact: Fact, event: str) -> None:
    subject = PaymentIds(checkout="cs_1", reference="pi_1") if isinstance(fact, Paid) else PaymentIds(reference="pi_1")
    assert await apply_event(store, "stripe", PaymentEvent(event, "kind", subject, fact), NOW_MS + 1) == "done"


async def pay_ten(store: Store) -> None:
    """An account that has paid 10.00 dollars by card."""
    await fund(store, 0)
    payer = Payer(Owner("acct_a", "acct_a@example.org"), "acct_a@example.org", "https://c.example")
    await begin(store, Till(), payer, TEN_NANO, NOW_MS)
    await tell(store, Paid(TEN_NANO), "evt_paid")


async def cents(store: Store) -> tuple[int, int, int]:
    """The balance, what is held of it, and the debt, in cents. The ledger must be sound."""
    assert await check.find_violations(store) == []
    account = await accounts.get(store, "acct_a")
    assert account
    return account.balance_nano // CENT_NANO, account.held_nano // CENT_NANO, account.debt_nano // CENT_NANO


async def give(store: Store, amount_nano: int) -> int:
    return await store.transact(lambda tx: credit.grant(tx, "acct_a", amount_nano, "a gift", NOW_MS + 2))


async def test_a_refund_while_requests_run_leaves_nothing_more_to_spend(store: Store, url: str) -> None:
    """Of 10.00 dollars, 9.90 are held when they are refunded: ended requests and new credit pay the rest first."""
    await pay_ten(store)
    async with writing(store) as (writer, _), opened(url) as beside, writing(beside) as (other, _):
        for name in ("r1", "r2", "r3"):
            assert isinstance(await writer.hold(hold_of(name)), HeldCredit)
        await tell(store, REFUNDED, "evt_refund")
        assert await cents(store) == (990, 990, 990)
        for process, name in ((writer, "r4"), (other, "r5")):
            refused = await process.hold(make_hold(name))
            assert isinstance(refused, Insufficient)
            assert refused.debt_nano == 990 * CENT_NANO
        await writer.end(make_outcome("r1", Usage(10, 30)))
        assert await cents(store) == (660, 660, 760)
        await writer.end(make_outcome("r2"))
        assert await cents(store) == (330, 330, 430)
        assert isinstance(await other.hold(make_hold("r6")), Insufficient)
        await writer.end(make_outcome("r3", Usage(30, 100)))
        assert await cents(store) == (0, 0, 430)
        await give(store, 5 * DOLLAR_NANO)
        assert await cents(store) == (70, 0, 0)
        assert isinstance(await other.hold(make_hold("r7")), HeldCredit)
        await other.end(make_outcome("r7"))
    notes = [(one.amount_nano // CENT_NANO, one.note) for one in await rows_of(store, entries) if one.debt_id]
    said = "refund of a card payment: pays a debt of 9.90 dollars"
    assert notes == [(-230, said), (-330, said), (-430, said)]
    details = {one.event: one.detail for one in await list_newest(store, "acct_a")}
    assert details["payment.debt"] == "9.90 of 10.00 dollars are a debt of the account"


async def test_spare_reserves_pay_a_debt_at_once(store: Store) -> None:
    """What a process has reserved and does not use is asked back at once, and pays the debt."""
    await pay_ten(store)
    async with writing(store) as (writer, _):
        held = await writer.hold(make_hold("r1"))
        assert isinstance(held, HeldCredit)

        async def is_given_back() -> bool:
            return (await money(store))[1] == held.amount_nano

        assert not await is_given_back()
        await tell(store, REFUNDED, "evt_refund")
        assert await comes_true(is_given_back)
        assert isinstance(await writer.hold(make_hold("r2")), Insufficient)
        await writer.end(make_outcome("r1", Usage(100, 50)))
    account = await accounts.get(store, "acct_a")
    assert account
    assert (account.balance_nano, account.debt_nano) == (0, 2500)


async def test_a_dispute_that_is_won_cancels_its_debt_and_gives_back_the_rest(store: Store) -> None:
    """What was paid of the debt comes back with what was taken at once; what is still owed is owed no more."""
    await pay_ten(store)
    await take(store, hold_of("r1"))
    await tell(store, DISPUTED, "evt_dispute")
    assert await cents(store) == (330, 330, 330)
    await finish(store, hold_of("r1"), Usage(0, 100))
    assert await cents(store) == (0, 0, 300)
    await tell(store, DisputeClosed("dp_1", TEN_NANO, "won"), "evt_won")
    assert await cents(store) == (700, 0, 0)
    details = {one.event: one.detail for one in await list_newest(store, "acct_a")}
    assert details["payment.dispute_won"] == ("7.00 dollars were given back, and a debt of 3.00 dollars was cancelled")


async def test_the_oldest_debt_is_paid_first(store: Store) -> None:
    """Two debts of the same moment, and credit that pays for one and a half: the first is paid, the second in part."""
    await fund(store, 0)
    for name in ("first", "second"):
        move = CreditMove("acct_a", "correction", 40 * CENT_NANO, name, NOW_MS, name)
        await store.transact(lambda tx, move=move: credit.take(tx, move))  # type: ignore[misc]
    for amount, left in ((10, (30, 40)), (50, (0, 20))):
        await store.transact(lambda tx, nano=amount * CENT_NANO: credit.grant(tx, "acct_a", nano, "", NOW_MS))  # type: ignore[misc]
        found = {row.source: row.left_nano // CENT_NANO for row in await rows_of(store, debts)}
        assert found == dict(zip(("first", "second"), left, strict=True))
    assert await cents(store) == (0, 0, 20)


async def test_free_credit_beside_a_debt_pays_it_with_the_next_move(store: Store) -> None:
    """However it came to be free, the next move of the account pays the debt with it."""
    await pay_ten(store)
    await take(store, hold_of("r1"))
    await tell(store, REFUNDED, "evt_refund")
    await run_sql(store, "UPDATE reserves SET amount_nano = 0", "UPDATE accounts SET held_nano = 0")
    assert [one.rule for one in await check.find_violations(store)] == ["an account with a debt has no free credit"]
    assert isinstance(await take(store, make_hold("r2")), Insufficient)  # the debt is paid, and nothing is left
    assert await cents(store) == (0, 0, 0)


async def test_credit_of_a_dead_process_pays_the_debt(store: Store) -> None:
    """What a killed process held is not free again after a refund: the sweep that frees it pays the debt."""
    await pay_ten(store)
    await take(store, hold_of("r1"))
    await tell(store, REFUNDED, "evt_refund")
    assert await cents(store) == (330, 330, 330)
    await give(store, DOLLAR_NANO)
    assert await cents(store) == (330, 330, 230), "what is held pays nothing"
    await sweep_process(store)
    assert await cents(store) == (100, 0, 0)


async def test_what_a_late_end_corrects_pays_the_debt(store: Store) -> None:
    """A sweep charged too much for a marked request: what comes back is not free while there is a debt."""
    await pay_ten(store)
    await take(store, hold_of("r1"))
    await run_sql(store, MARK)
    await tell(store, REFUNDED, "evt_refund")
    await sweep_process(store)
    assert await cents(store) == (0, 0, 300)
    await register(store)
    ended = await finish(store, hold_of("r1"), Usage(30, 50), is_uncertain=True)
    assert (ended.charged_nano, ended.corrected_nano) == (180 * CENT_NANO, 120 * CENT_NANO)
    assert await cents(store) == (0, 0, 180)
    assert isinstance(await take(store, hold_of("r2")), Insufficient)


async def test_a_statement_has_what_was_returned_in_one_line_and_the_debt_in_another(store: Store) -> None:
    """Of 10.00 dollars 3.00 are spent when all is refunded: the lines add up, page by page and in the export."""
    await pay_ten(store)
    await take(store, hold_of("r1"))
    await finish(store, hold_of("r1"), Usage(30, 90))
    await tell(store, REFUNDED, "evt_refund")
    lines = [
        ("Credit added: card payment", 1000, 1000),
        ("Request to forte, 120 tokens", -300, 700),
        ("Debt: refund of a card payment: leaves a debt of 3.00 dollars", 300, 1000),
        ("Returned: refund of a card payment", -1000, 0),
    ]
    assert await described(store) == lines
    await give(store, 5 * DOLLAR_NANO)
    paid = ("Debt: refund of a card payment: pays a debt of 3.00 dollars", -300, 200)
    assert await described(store) == [*lines, ("Credit added: a gift", 500, 500), paid]


async def test_what_is_all_a_debt_is_in_the_statement_too(store: Store) -> None:
    """Credit that is spent to the last cent leaves an entry of nothing, so that its two lines have a place."""
    await fund(store, 0)
    await record_transfer(store, "acct_a@example.org", Transfer(3 * DOLLAR_NANO, "INV-1"), COMMAND_LINE, NOW_MS)
    await take(store, make_hold("r1", prompt_tokens=30, allowance_tokens=90, price=PRICE))
    await finish(store, make_hold("r1", prompt_tokens=30, allowance_tokens=90, price=PRICE), Usage(30, 90))
    back = TransferRefund("INV-1", None, "not wanted")
    await refund_transfer(store, back, COMMAND_LINE, NOW_MS)
    assert await cents(store) == (0, 0, 300)
    assert (await described(store))[-2:] == [
        ("Debt: refund of bank transfer INV-1: not wanted: leaves a debt of 3.00 dollars", 300, 300),
        ("Returned: refund of bank transfer INV-1: not wanted", -300, 0),
    ]


async def described(store: Store) -> list[tuple[str, int, int]]:
    """Each line of the export, its amount and its balance in cents. The pages have the same, newest first."""
    found = [entry async for entry in export_statement(store, OWNER)]
    by_page = await statement_by_pages(store, "acct_a", count=1)
    assert by_page[::-1] == found
    month = month_span(month_of(NOW_MS))
    assert [entry async for entry in export_statement(store, OWNER, month)] == found
    assert (await read_statement(store, OWNER, span=month)).entries == by_page
    return [(describe_entry(one), one.amount_nano // CENT_NANO, one.balance_nano // CENT_NANO) for one in found]
