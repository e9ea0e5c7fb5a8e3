"""What requests earned and cost, and attempts without a metering row, on both databases."""

from cadenza.control.money.credit import give_credit
from cadenza.control.money.refunds import refund_request
from cadenza.core.attempts import AttemptCounts, AttemptKey, AttemptSums
from cadenza.core.money import format_dollars
from cadenza.core.records import COMMAND_LINE, Route, Usage
from cadenza.core.spans import ALWAYS, DAY_MS, Span
from cadenza.ledger import credit
from cadenza.ledger.origins import CreditMove
from cadenza.parts.books import margin_rows as margins
from cadenza.parts.books.bill_file import DayModel
from cadenza.parts.books.bills import ModelCounts
from cadenza.parts.books.margin import MARGIN_GROUPS, MarginGroup, MarginSums, Revenue
from cadenza.parts.books.sums import month_of
from cadenza.parts.payments.transfers import Transfer, record_transfer
from cadenza.store.store import Store
from cadenza.store.tables import attempts
from tests.store.moves import finish, fund, make_hold, take
from tests.store.rows import DOLLAR_NANO, NOW_MS

DAY = 20_000  # 2024-10-04
EMAIL = "acct_a@example.org"
ROUTE = Route("acme", "large", 1000, 100)


async def test_requests_without_tokens_cost_nothing(store: Store) -> None:
    """A request that failed is in no group; one whose cost is not known is counted apart, in every grouping."""
    await fund(store, DOLLAR_NANO)
    for name, counted in (("r1", Usage(100, 10, estimated=True)), ("r2", None)):
        hold = make_hold(name, started_at=DAY * DAY_MS)
        await take(store, hold)
        await finish(store, hold, counted)
    for group in MARGIN_GROUPS:
        [(_, sums)] = await margins.read_margins(store, ALWAYS, group)
        assert (sums.requests, sums.unknown_requests, sums.margin_nano) == (1, 1, 0)
        assert sums == MarginSums(1, sums.earned_nano, 0, 1, sums.earned_nano)
    [(place, counts)] = (await margins.read_counts(store, "acme", ALWAYS)).items()
    assert place == DayModel("2024-10-04", "acme-large")
    assert counts == ModelCounts(1, 100, 0, 10, 0, 1, 1, 0)


def test_the_percent_is_of_what_has_a_known_cost() -> None:
    """What requests with an unknown cost earned is neither in the margin nor in what it is a part of."""
    assert (MarginSums(3, 100, 30, 1, 40).percent, MarginSums(1, 40, 0, 1, 40).percent) == (50.0, None)


async def test_attempts_are_added_up(store: Store) -> None:
    """Processes add to the same sums; a span has its days only; what was not written is counted again."""
    counts = AttemptCounts(lambda: DAY * DAY_MS)
    counts.add(ROUTE, "trial", 5, 1)
    counts.add(ROUTE, "timed_out")
    taken = counts.take()
    counts.requeue(taken)
    assert counts.take() == taken
    counts.add(ROUTE, "trial", 5, 1)
    counts.requeue(taken)
    assert counts.take() == taken | {AttemptKey(DAY, "acme", "large", "trial"): AttemptSums(2, 10, 2)}
    for _ in range(2):
        await attempts.add(store, taken)
    found = await margins.read_attempts(store, "acme", Span(DAY * DAY_MS, (DAY + 1) * DAY_MS))
    assert found == {
        AttemptKey(DAY, "acme", "large", "trial"): AttemptSums(2, 10, 2),
        AttemptKey(DAY, "acme", "large", "timed_out"): AttemptSums(2),
    }
    assert await margins.read_attempts(store, "acme", Span(0, DAY * DAY_MS)) == {}


async def test_revenue_is_known_by_its_credit(store: Store) -> None:
    """By account and by month, in a span: what was paid and granted credit, what a late end gave back, and refunds."""
    await fund(store, 0)
    await give_credit(store, EMAIL, 1_000, "", NOW_MS, COMMAND_LINE)
    await record_transfer(store, EMAIL, Transfer(DOLLAR_NANO, "INV-1"), COMMAND_LINE, NOW_MS)
    for name in ("r1", "r2"):
        await take(store, make_hold(name))
        await finish(store, make_hold(name), Usage(100, 10))
    cost_nano = (await margins.read_margins(store, ALWAYS, "month"))[0][1].earned_nano // 2
    await refund_request(store, "r1", 500, "why", COMMAND_LINE, NOW_MS)
    late = CreditMove("acct_a", "late-end", 7, "", NOW_MS, "late-end:r2", "r2")
    await store.transact(lambda tx: credit.give(tx, late))
    found = Revenue(2 * cost_nano - 1_007, 1_000, 500, 200)
    assert (await margins.read_revenue(store, ALWAYS, "account")) == {EMAIL: found}
    others: list[MarginGroup] = ["month", "class", "provider"]
    for group in others:
        assert (await margins.read_revenue(store, ALWAYS, group)) == {month_of(NOW_MS): found}
    assert await margins.read_revenue(store, Span(0, NOW_MS - DAY_MS), "account") == {}
    assert found.shown() == {
        "paid": format_dollars(found.paid_nano),
        "granted": "0.000001",
        "refunded": "0.0000005",
    }
