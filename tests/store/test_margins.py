"""What requests earned and cost, and attempts without a metering row, on both databases."""

from cadenza.core.attempts import AttemptCounts, AttemptKey, AttemptSums
from cadenza.core.bills import DayModel, ModelCounts
from cadenza.core.margin import MARGIN_GROUPS, MarginSums
from cadenza.core.records import Route, Usage
from cadenza.core.spans import ALWAYS, DAY_MS, Span
from cadenza.store.store import Store
from cadenza.store.tables import attempts, margins
from tests.store.moves import finish, fund, make_hold, take
from tests.store.rows import DOLLAR_NANO

DAY = 20_000  # 2024-10-04
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


async def test_attempts_are_added_up(store: Store) -> None:
    """Processes add to the same sums; a span has its days only; what was not written is counted again."""
    counts = AttemptCounts(lambda: DAY * DAY_MS)
    counts.add(ROUTE, "trial", 5, 1)
    counts.add(ROUTE, "timed_out")
    taken = counts.take()
    counts.requeue(taken)
    assert counts.take() == taken
    for _ in range(2):
        await attempts.add(store, taken)
    found = await attempts.read(store, "acme", Span(DAY * DAY_MS, (DAY + 1) * DAY_MS))
    assert found == {
        AttemptKey(DAY, "acme", "large", "trial"): AttemptSums(2, 10, 2),
        AttemptKey(DAY, "acme", "large", "timed_out"): AttemptSums(2),
    }
    assert await attempts.read(store, "acme", Span(0, DAY * DAY_MS)) == {}
