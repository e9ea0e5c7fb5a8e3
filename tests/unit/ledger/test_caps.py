"""The rules of spend caps, without a store: what a key may hold and pay, and which month a request counts for."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.money import Price
from cadenza.core.records import Cap, Outcome, Usage
from cadenza.core.spans import month_of, span_of
from cadenza.ledger.cap_holds import CapHolds
from cadenza.ledger.caps import NO_CAP_USE, CapState, CapStatus, CapUse
from cadenza.ledger.charging import begin_caps, end_requests
from cadenza.ledger.rules import (
    AMPLE_TIMES,
    RESERVED_ELSEWHERE,
    BatchFacts,
    Changes,
    Demand,
    End,
    Ended,
    HeldCredit,
    Hold,
    HoldResult,
    Insufficient,
    LockedAccount,
    take_hold,
)

PRICE = Price(input_nano=10, output_nano=30)
WHOLE_NANO = 100 * 10 + 50 * 30  # an ordinary hold
SHORT_NANO = 100 * 10 + 16 * 30  # its prompt and the shortest answer
RICH_NANO = 10**9
NOVEMBER, DECEMBER = 202611, 202612


def at(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp()) * 1000


IN_NOVEMBER, IN_DECEMBER = at(2026, 11, 30), at(2026, 12, 1)


def total(limit_nano: int, *, spent_nano: int = 0, held_nano: int = 0, mine_nano: int = 0) -> CapState:
    return CapState("k", Cap(limit_nano), 0, spent_nano, 0, held_nano, mine_nano)


def monthly(limit_nano: int, spent_nano: int, **others: int) -> CapState:
    """A cap whose month is November, and what was spent in others."""
    months = {int(month.removeprefix("m")): nano for month, nano in others.items()}
    return CapState("k", Cap(limit_nano, "month"), NOVEMBER, spent_nano, 0, 0, 0, months)


def make_hold(completion_id: str = "r1", *, started_at: int = 1) -> Hold:
    return Hold(completion_id, "a", "k", "forte", 100, 50, PRICE, stream=True, started_at=started_at, is_capped=True)


def rich() -> LockedAccount:
    return LockedAccount("a", RICH_NANO, 0, 0)


def take(cap: CapState, hold: Hold, account: LockedAccount | None = None, *, is_final: bool = False) -> HoldResult:
    wanted = msgspec.structs.replace(hold, is_final=is_final)
    return take_hold(account or rich(), wanted, BatchFacts(caps={"k": cap}), Changes())


def make_end(
    due_nano: int,
    completion_id: str = "r1",
    *,
    held_nano: int = WHOLE_NANO,
    started_at: int = 1,
    is_capped: bool = True,
    is_late: bool = False,
) -> End:
    outcome = Outcome(
        request_id="req", completion_id=completion_id, endpoint="chat", status=200, duration_ms=1, ended_at=1,
        usage=Usage(0, 0),
    )  # fmt: skip
    hold = make_hold(completion_id, started_at=started_at)
    return End(outcome, hold, held_nano, due_nano, is_capped=is_capped, is_uncertain=is_late, is_late=is_late)


def end(cap: CapState, *ends: End, use: CapUse = NO_CAP_USE) -> list[Ended]:
    begin_caps([cap], use, [*ends])
    return end_requests(rich(), Demand(0, 0, 0, 0), [*ends], BatchFacts(caps={"k": cap}), Changes())


@pytest.mark.parametrize(
    ("limit_nano", "spent_nano", "held_nano", "tokens"),
    [
        (WHOLE_NANO, 0, 0, 50),
        (WHOLE_NANO + 7, 4, 3, 50),
        (WHOLE_NANO, 1, 0, 49),
        (WHOLE_NANO, 0, 1, 49),
        (SHORT_NANO, 0, 0, 16),
        (SHORT_NANO, 0, 1, None),
        (SHORT_NANO, 1, 0, None),
        (0, 0, 0, None),
        (5, 9, 0, None),
    ],
)
def test_a_hold_is_fitted_to_what_the_cap_leaves(
    limit_nano: int, spent_nano: int, held_nano: int, tokens: int | None
) -> None:
    """What is spent and what running requests hold is not there; below 16 tokens the refusal names the cap."""
    cap = total(limit_nano, spent_nano=spent_nano, held_nano=held_nano)
    answer = take(cap, make_hold())
    left_nano = max(0, limit_nano - spent_nano - held_nano)
    if tokens is None:
        assert answer == Insufficient(left_nano, SHORT_NANO, CapStatus(Cap(limit_nano), spent_nano, left_nano))
        assert (cap.held_nano, cap.mine_nano) == (held_nano, 0)
    else:
        amount_nano = 1000 + tokens * 30
        assert answer == HeldCredit(amount_nano, tokens, is_capped=True)
        assert (cap.held_nano, cap.mine_nano) == (held_nano + amount_nano, amount_nano)


@pytest.mark.parametrize("is_final", [False, True])
def test_a_cap_waits_for_nobody(is_final: bool) -> None:
    """Other processes cannot give back a cap: a hold is fitted or refused at once."""
    assert isinstance(take(total(SHORT_NANO), make_hold(), is_final=is_final), HeldCredit)
    assert isinstance(take(total(SHORT_NANO - 1), make_hold(), is_final=is_final), Insufficient)


def test_the_lower_of_credit_and_cap_decides() -> None:
    """If the account has less than the cap leaves, the hold waits for credit, and the refusal names the account."""
    poor = LockedAccount("a", SHORT_NANO - 1, 0, 0)
    assert take(total(SHORT_NANO), make_hold(), poor) == RESERVED_ELSEWHERE
    assert take(total(SHORT_NANO), make_hold(), poor, is_final=True) == Insufficient(SHORT_NANO - 1, SHORT_NANO)
    refusal = take(total(SHORT_NANO - 2), make_hold(), poor)
    assert refusal == Insufficient(SHORT_NANO - 2, SHORT_NANO, CapStatus(Cap(SHORT_NANO - 2), 0, SHORT_NANO - 2))


def test_an_uncounted_prompt_needs_a_cap_for_256_of_it() -> None:
    """With less it is counted first, so that its bytes do not use up the cap."""
    hold = msgspec.structs.replace(make_hold(), is_counted=False)
    assert isinstance(take(total(AMPLE_TIMES * WHOLE_NANO), hold), HeldCredit)
    assert isinstance(take(total(AMPLE_TIMES * WHOLE_NANO - 1), hold), Insufficient)


@pytest.mark.parametrize(
    ("limit_nano", "due_nano", "charged_nano"),
    [(9000, 7000, 7000), (9000, 9001, 9000), (WHOLE_NANO, 9000, WHOLE_NANO), (9, WHOLE_NANO, WHOLE_NANO), (9, 0, 0)],
)
def test_a_charge_is_within_the_hold_and_what_the_cap_leaves(limit_nano: int, due_nano: int, charged_nano: int) -> None:
    """A limit that was lowered below the hold does not take the hold away."""
    cap = total(limit_nano, held_nano=WHOLE_NANO, mine_nano=WHOLE_NANO)
    [ended] = end(cap, make_end(due_nano), use=CapUse({}, {"r1": WHOLE_NANO}))
    assert (ended.charged_nano, ended.short_nano, ended.is_lost) == (charged_nano, due_nano - charged_nano, False)
    assert (cap.spent_nano, cap.held_nano, cap.mine_nano, cap.excused_nano) == (charged_nano, 0, 0, 0)


def test_a_long_answer_does_not_take_the_hold_of_another_that_ends_with_it() -> None:
    """Each is paid from its own hold first, in any order."""
    for long, usual in (("r1", "r2"), ("r2", "r1")):
        cap = total(2 * WHOLE_NANO, held_nano=2 * WHOLE_NANO, mine_nano=2 * WHOLE_NANO)
        ends = [make_end(9000 if name == long else WHOLE_NANO, name) for name in ("r1", "r2")]
        charged = end(cap, *ends, use=CapUse({}, {long: WHOLE_NANO, usual: WHOLE_NANO}))
        assert [one.charged_nano for one in charged] == [WHOLE_NANO, WHOLE_NANO]


def test_what_a_short_answer_leaves_pays_for_a_long_one() -> None:
    """The rest of a hold is free once its request has ended."""
    cap = total(2 * WHOLE_NANO, held_nano=2 * WHOLE_NANO, mine_nano=2 * WHOLE_NANO)
    charged = end(cap, make_end(500), make_end(9000, "r2"), use=CapUse({}, {"r1": WHOLE_NANO, "r2": WHOLE_NANO}))
    assert [one.charged_nano for one in charged] == [500, 2 * WHOLE_NANO - 500]


def test_a_process_that_was_swept_has_no_hold_left() -> None:
    """Its requests pay what the cap leaves by now, and what runs on under its new name stays held."""
    cap = total(5000, spent_nano=1000, held_nano=3000, mine_nano=3000)
    [ended] = end(cap, make_end(WHOLE_NANO, is_late=True), use=CapUse({"k": 3000}, {}))
    assert (ended.charged_nano, ended.is_lost) == (1000, True)
    assert (cap.spent_nano, cap.held_nano, cap.excused_nano) == (2000, 3000, 0)
    cap = total(5000, spent_nano=5000)
    [ended] = end(cap, make_end(WHOLE_NANO, is_late=True), use=CapUse({}, {"r1": WHOLE_NANO}))
    assert (ended.charged_nano, cap.held_nano, cap.mine_nano) == (0, 0, 0)


def test_a_request_that_ran_when_the_cap_was_set_is_counted_in_full() -> None:
    """It pays what is due, and what is beyond the limit is excused."""
    cap = total(1000, spent_nano=400)
    [ended] = end(cap, make_end(900, is_capped=False))
    assert (ended.charged_nano, cap.spent_nano, cap.excused_nano) == (900, 1300, 300)
    assert isinstance(take(cap, make_hold()), Insufficient)


def test_a_request_of_an_earlier_cap_is_counted_in_full() -> None:
    """The cap was removed and set again while it ran: it holds nothing of the new one, and is excused."""
    cap = total(1000, spent_nano=400)
    [ended] = end(cap, make_end(WHOLE_NANO), use=CapUse({}, {"r1": WHOLE_NANO}))
    assert (ended.charged_nano, ended.is_lost) == (WHOLE_NANO, False)
    assert (cap.spent_nano, cap.held_nano, cap.excused_nano) == (400 + WHOLE_NANO, 0, WHOLE_NANO - 600)


def test_what_the_store_holds_for_nobody_is_given_back() -> None:
    """After an unknown commit, the next batch sets the number to what the process knows, up or down."""
    cap = total(9000, held_nano=5000, mine_nano=4000)
    end(cap, use=CapUse({"k": 700}, {}))
    assert (cap.held_nano, cap.mine_nano, cap.excused_nano) == (1700, 700, 0)
    end(cap, use=CapUse({"k": 9000}, {}))
    assert (cap.held_nano, cap.mine_nano, cap.excused_nano) == (10_000, 9000, 1000)


def test_requests_that_end_share_what_the_store_holds_for_them() -> None:
    """In their order, and none gets less than nothing."""
    cap = total(9000, held_nano=3000, mine_nano=3000)
    cap.begin(0, dict.fromkeys(("r1", "r2", "r3"), WHOLE_NANO))
    assert [*cap.ending_nano.values()] == [WHOLE_NANO, 3000 - WHOLE_NANO, 0]


def test_a_month_begins_with_its_first_request() -> None:
    """Then nothing is spent, or what the metering rows of that month say."""
    cap = monthly(WHOLE_NANO, WHOLE_NANO, m202612=0)
    assert isinstance(take(cap, make_hold(started_at=IN_NOVEMBER)), Insufficient)
    assert isinstance(take(cap, make_hold(started_at=IN_DECEMBER)), HeldCredit)
    assert (cap.month, cap.spent_nano) == (DECEMBER, 0)
    cap = monthly(WHOLE_NANO, 0, m202612=7)
    end(cap, make_end(5, started_at=IN_DECEMBER))
    assert (cap.month, cap.spent_nano) == (DECEMBER, 12)


def test_a_request_of_an_earlier_month_counts_for_that_month() -> None:
    """It is held and charged by what that month leaves, and the new month has spent nothing of it."""
    cap = monthly(WHOLE_NANO, 0, m202610=WHOLE_NANO - SHORT_NANO)
    in_october = at(2026, 10, 31)
    answer = take(cap, make_hold(started_at=in_october))
    assert answer == HeldCredit(SHORT_NANO, 16, is_capped=True)
    fitted = make_end(9000, started_at=in_october, held_nano=SHORT_NANO)
    [ended] = end(cap, fitted, use=CapUse({}, {"r1": SHORT_NANO}))
    assert ended.charged_nano == SHORT_NANO
    assert (cap.month, cap.spent_nano, cap.held_nano) == (NOVEMBER, 0, 0)


@pytest.mark.parametrize(
    ("year", "month", "day", "of"), [(1970, 1, 1, 197001), (2024, 2, 29, 202402), (2026, 12, 31, 202612)]
)
def test_the_month_of_a_time(year: int, month: int, day: int, of: int) -> None:
    """A calendar month in UTC, to its last millisecond; a cap in total has only one period."""
    assert month_of("month", at(year, month, day)) == of
    assert month_of("total", at(year, month, day)) == 0
    first, after = span_of(of)
    assert [month_of("month", moment) for moment in (first, after - 1)] == [of, of]
    assert month_of("month", after) == (of + 1 if of % 100 < 12 else of + 89)


class Move(msgspec.Struct, frozen=True):
    """A process takes a hold, or ends its oldest request."""

    process: int
    due_nano: int | None  # None: take a hold
    in_december: bool


moves = st.builds(Move, process=st.integers(0, 1), due_nano=st.none() | st.integers(0, 6000), in_december=st.booleans())


@given(limit_nano=st.integers(0, 9000), steps=st.lists(moves, max_size=25))
def test_no_moves_of_two_processes_pass_a_cap(limit_nano: int, steps: list[Move]) -> None:
    """In either month, what was charged never exceeds the limit; nothing is excused or left held."""
    spent_nano, month = {NOVEMBER: 0, DECEMBER: 0}, NOVEMBER
    running: list[list[tuple[int, int]]] = [[], []]  # of each process: when a request started, and its hold
    for number, step in enumerate(steps):
        started_at = IN_DECEMBER if step.in_december else IN_NOVEMBER
        mine, held = running[step.process], sum(amount for one in running for _, amount in one)
        cap = CapState(
            "k", Cap(limit_nano, "month"), month, spent_nano[month], 0, held, sum(amount for _, amount in mine),
            {other: nano for other, nano in spent_nano.items() if other != month},
        )  # fmt: skip
        if step.due_nano is None:
            begin_caps([cap], CapUse({"k": cap.mine_nano}, {}), [])
            answer = take(cap, make_hold(started_at=started_at))
            if isinstance(answer, HeldCredit):
                mine.append((started_at, answer.amount_nano))
        elif mine:
            began, own_nano = mine.pop(0)
            name = f"r{number}"
            use = CapUse({"k": cap.mine_nano - own_nano}, {name: own_nano})
            [ended] = end(cap, make_end(step.due_nano, name, held_nano=own_nano, started_at=began), use=use)
            assert ended.charged_nano >= min(step.due_nano, own_nano)
            spent_nano[month_of("month", began)] += ended.charged_nano
        month = cap.month
        assert cap.spent_nano == spent_nano[month]
        assert cap.held_nano == sum(amount for one in running for _, amount in one)
        assert max(spent_nano.values()) <= limit_nano
        assert cap.excused_nano == 0


def test_what_the_store_may_have_otherwise_is_written_once() -> None:
    """A key of which the store may have another amount is in the next batch of its account, and then in none."""
    holds = CapHolds()
    assert holds.doubtful([("a", "k")]) == ["a"]
    assert holds.use("a", []) == CapUse({"k": 0}, {})
    holds.written("a")
    assert (holds.use("a", []), holds.doubtful([])) == (NO_CAP_USE, [])
