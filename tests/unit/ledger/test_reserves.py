"""The reserves in memory, with a clock of the test: what is held without asking the store, and what is given back."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.money import Price
from cadenza.core.records import Outcome, Usage
from cadenza.ledger.charging import end_requests
from cadenza.ledger.reserves import DECAY_S, KEPT_MAX, LEAST_REQUESTS, PEAK_TIMES, RETURNED_MAX, Reserves
from cadenza.ledger.rules import (
    AMPLE_TIMES,
    RESERVE_SHARE,
    BatchFacts,
    Changes,
    Demand,
    End,
    HeldCredit,
    Hold,
    LockedAccount,
    grow,
    take_hold,
)

Steps = list[tuple[str, int]]
ONE_NANO = 100  # an ordinary hold
IDLE_S = 60.0
AMPLE_NANO = AMPLE_TIMES * ONE_NANO


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Desk:
    """The reserves of a process, and its clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.reserves = Reserves(self.clock, IDLE_S)

    def store_has(self, reserve_nano: int, free_nano: int = AMPLE_NANO, taken_nano: tuple[int, ...] = ()) -> None:
        """A batch was written."""
        held_nano = reserve_nano
        taken = [(make_hold(amount_nano), HeldCredit(amount_nano, 1)) for amount_nano in taken_nano]
        self.reserves.written(LockedAccount("a", free_nano + held_nano, held_nano, reserve_nano), taken)

    def demand(self, *new: int, charged_nano: int = 0, beyond_nano: int = 0) -> Demand:
        """In a batch that charges this much of what was held, and so much beyond it."""
        holds = [make_hold(amount_nano) for amount_nano in new]
        return self.reserves.demand("a", charged_nano + beyond_nano, charged_nano, holds)

    def hold(self, amount_nano: int = ONE_NANO) -> HeldCredit | None:
        return self.reserves.hold(make_hold(amount_nano))

    def hold_all(self, amount_nano: int = ONE_NANO) -> int:
        """Hold as often as possible, and return how often."""
        return next(number for number in itertools.count() if not self.hold(amount_nano))


@pytest.fixture
def desk() -> Desk:
    """A reserve for 10 requests of an account with ample credit, of which one is in flight."""
    desk = Desk()
    desk.demand(ONE_NANO)
    desk.store_has(10 * ONE_NANO, taken_nano=(ONE_NANO,))
    return desk


def make_hold(amount_nano: int = ONE_NANO, completion_id: str = "r", extra_tokens: int = 0) -> Hold:
    """A hold for a prompt of this amount. Only holds with extra tokens pay for output: 3 nano-dollars a token."""
    price = Price(1, 3 if extra_tokens else 0)
    hold = Hold(completion_id, "a", "k", "forte", amount_nano, 1, price, stream=True, started_at=1)
    return msgspec.structs.replace(hold, extra_tokens=extra_tokens)


def test_nothing_is_held_without_a_reserve() -> None:
    """The store must be asked."""
    assert Desk().hold() is None


def test_holds_in_memory_stop_where_the_reserve_ends(desk: Desk) -> None:
    """Exactly what the store has is held, and each answer has what is left of the credit."""
    answer = desk.hold()
    assert answer == HeldCredit(ONE_NANO, 1)
    assert desk.hold_all() == 8
    assert desk.hold(1) is None
    assert desk.hold(0) == HeldCredit(0, 1)


def test_the_longest_answer_is_held_whole_or_by_the_store(desk: Desk) -> None:
    """A reserve that does not cover the longest answer holds nothing: the store decides how long it may be."""
    extra_tokens = (8 * ONE_NANO - 3) // 3
    assert desk.reserves.hold(make_hold(extra_tokens=extra_tokens + 1)) is None
    assert desk.reserves.hold(make_hold(extra_tokens=extra_tokens)) == HeldCredit(
        ONE_NANO + 3 + 3 * extra_tokens, 1 + extra_tokens
    )


@pytest.mark.parametrize(
    ("extra_tokens", "more_nano"), [(100, 8 * 300), (10_000, (AMPLE_NANO + 10 * ONE_NANO) // RESERVE_SHARE)]
)
def test_a_part_of_the_credit_is_reserved_for_longer_answers(desk: Desk, extra_tokens: int, more_nano: int) -> None:
    """A reserve is wanted for longer answers too, as far as an eighth of the account's credit goes."""
    demand = desk.reserves.demand("a", 0, 0, [make_hold(extra_tokens=extra_tokens)])
    assert demand.usual_nano == ONE_NANO + 3
    assert demand.wanted_nano == LEAST_REQUESTS * demand.usual_nano + more_nano


def test_accounts_have_reserves_of_their_own(desk: Desk) -> None:
    """A hold of another account is not covered."""
    assert desk.reserves.hold(msgspec.structs.replace(make_hold(), account_id="b")) is None


def test_a_request_that_ended_keeps_what_is_due_until_it_is_charged(desk: Desk) -> None:
    """The rest of its hold can be held again at once; what is due only leaves the reserve with its charge."""
    desk.hold_all()
    desk.reserves.end("a", ONE_NANO, 30)
    assert (desk.hold(71), desk.hold_all(70)) == (None, 1)
    assert desk.demand(charged_nano=30).kept_nano == 9 * ONE_NANO + 70
    assert desk.hold(1) is None


def test_a_request_above_its_hold_keeps_nothing_that_others_use(desk: Desk) -> None:
    """Before it is charged it keeps what it held; its charge is taken from the spare part, not from others."""
    desk.hold()
    desk.reserves.end("a", ONE_NANO, ONE_NANO + 30)
    assert desk.hold_all() == 8
    desk.reserves.end("a", ONE_NANO, ONE_NANO)
    demand = desk.demand(charged_nano=ONE_NANO)
    assert (demand.kept_nano, demand.in_use_nano) == (9 * ONE_NANO, 9 * ONE_NANO)
    demand = desk.demand(charged_nano=ONE_NANO, beyond_nano=30)
    assert (demand.kept_nano, demand.in_use_nano) == (8 * ONE_NANO, 8 * ONE_NANO)
    desk.reserves.end("a", ONE_NANO, 0)
    assert desk.demand(beyond_nano=30).kept_nano == 8 * ONE_NANO - 30


def test_a_batch_in_flight_leaves_what_it_keeps(desk: Desk) -> None:
    """While a charge is written, the rest can still be held; what the batch adds counts only when it is written."""
    desk.reserves.end("a", ONE_NANO, ONE_NANO)
    demand = desk.demand(charged_nano=ONE_NANO)
    assert (demand.kept_nano, demand.in_use_nano) == (9 * ONE_NANO, 0)
    assert desk.hold_all() == 9
    desk.store_has(12 * ONE_NANO)
    assert desk.hold_all() == 3


def test_a_batch_in_flight_with_new_holds_gives_everything_else_back(desk: Desk) -> None:
    """So the holds are judged by all the credit there is, and nothing is held in memory meanwhile."""
    demand = desk.demand(50 * ONE_NANO)
    assert (demand.kept_nano, demand.in_use_nano) == (ONE_NANO, ONE_NANO)
    assert desk.hold(1) is None


def test_a_batch_that_failed_adds_nothing(desk: Desk) -> None:
    """Until the next batch is written, no more is held than the last one kept."""
    desk.reserves.end("a", ONE_NANO, ONE_NANO)
    desk.demand(charged_nano=ONE_NANO)
    assert desk.hold_all() == 9
    assert desk.demand().kept_nano == 9 * ONE_NANO


@pytest.mark.parametrize(("free_nano", "kept_nano"), [(AMPLE_NANO, 10 * ONE_NANO), (AMPLE_NANO - 1, ONE_NANO)])
def test_nothing_is_kept_near_the_end_of_a_credit(desk: Desk, free_nano: int, kept_nano: int) -> None:
    """With less free than for 256 requests, only the requests in flight have credit."""
    desk.store_has(10 * ONE_NANO, free_nano)
    assert desk.demand().kept_nano == kept_nano


def test_a_late_charge_is_judged_by_what_was_held(desk: Desk) -> None:
    """An account near the end of its credit keeps nothing, however long its last request took."""
    desk.store_has(10 * ONE_NANO, AMPLE_NANO - 1)
    desk.reserves.end("a", ONE_NANO, ONE_NANO)
    desk.clock.now_s += 20 * DECAY_S
    assert desk.demand(charged_nano=ONE_NANO).kept_nano == 0


def test_a_reserve_is_wanted_for_twice_the_most_requests_lately(desk: Desk) -> None:
    """For 8 requests at least; the most requests in flight are forgotten when they were some time ago."""
    assert desk.demand().wanted_nano == LEAST_REQUESTS * ONE_NANO
    desk.hold_all()
    assert desk.demand().wanted_nano == PEAK_TIMES * 10 * ONE_NANO
    for _ in range(9):
        desk.reserves.end("a", ONE_NANO, 0)
    assert desk.demand().wanted_nano == PEAK_TIMES * 10 * ONE_NANO
    desk.clock.now_s += 2 * DECAY_S
    desk.hold()
    assert desk.demand().wanted_nano == LEAST_REQUESTS * ONE_NANO


def test_a_reserve_that_is_much_too_large_shrinks(desk: Desk) -> None:
    """More than twice what is wanted is given back down to that."""
    desk.store_has(2 * LEAST_REQUESTS * ONE_NANO)
    assert desk.demand().kept_nano == 2 * LEAST_REQUESTS * ONE_NANO
    desk.store_has(2 * LEAST_REQUESTS * ONE_NANO + 1)
    assert desk.demand().kept_nano == LEAST_REQUESTS * ONE_NANO


def test_an_idle_reserve_is_given_back_after_a_minute(desk: Desk) -> None:
    """Not while a request is in flight or a charge is not written yet, and not before."""
    desk.clock.now_s += 10 * IDLE_S
    assert desk.reserves.pass_time() == []
    desk.reserves.end("a", ONE_NANO, 30)
    assert desk.reserves.pass_time() == []
    desk.demand(charged_nano=30)
    assert desk.reserves.pass_time() == ["a"]
    demand = desk.demand()
    assert (demand.kept_nano, demand.wanted_nano) == (0, 0)
    desk.store_has(0)
    assert len(desk.reserves) == 0


@pytest.mark.parametrize(("idle_s", "given_back"), [(IDLE_S - 0.01, []), (IDLE_S, ["a"])])
def test_a_reserve_is_idle_one_minute_after_its_last_hold(desk: Desk, idle_s: float, given_back: list[str]) -> None:
    """The minute begins with the last hold."""
    desk.clock.now_s += 5 * IDLE_S
    desk.hold()
    for _ in range(2):
        desk.reserves.end("a", ONE_NANO, 0)
    desk.clock.now_s += idle_s
    assert desk.reserves.pass_time() == given_back


def test_the_least_recently_used_reserves_are_given_back_first() -> None:
    """Beyond the most that are kept; one with a request in flight follows when that has ended."""
    desk = Desk()
    names = [str(number) for number in range(KEPT_MAX + 2)]
    for name in names:
        hold = msgspec.structs.replace(make_hold(), account_id=name)
        desk.reserves.demand(name, 0, 0, [hold])
        account = LockedAccount(name, AMPLE_NANO, 10 * ONE_NANO, 10 * ONE_NANO)
        desk.reserves.written(account, [(hold, HeldCredit(ONE_NANO, 1))])
    for name in names[1:]:
        desk.reserves.end(name, ONE_NANO, 0)
    desk.reserves.hold(msgspec.structs.replace(make_hold(), account_id="1"))
    assert desk.reserves.pass_time() == ["2", "3"]
    desk.reserves.end("0", ONE_NANO, 0)
    assert desk.reserves.pass_time() == ["0", "2", "3"]
    desk.clock.now_s += 2 * IDLE_S
    assert len(desk.reserves.pass_time()) == RETURNED_MAX


def test_a_reserve_that_is_asked_for_is_given_back_for_a_second(desk: Desk) -> None:
    """Only the requests in flight keep theirs, and nothing more is wanted; after a second it may grow again."""
    desk.reserves.reclaim("a")
    desk.reserves.reclaim("unknown")
    demand = desk.demand()
    assert (demand.kept_nano, demand.in_use_nano, demand.wanted_nano) == (ONE_NANO, ONE_NANO, 0)
    assert desk.hold(1) is None
    desk.clock.now_s += 0.9
    assert desk.demand(ONE_NANO).wanted_nano == 0
    desk.clock.now_s += 0.2
    desk.hold(0)
    assert desk.demand(ONE_NANO).wanted_nano == LEAST_REQUESTS * ONE_NANO


def test_a_hold_after_an_idle_time_wants_a_reserve_again(desk: Desk) -> None:
    """The first hold after a pause is like the first of all."""
    desk.reserves.end("a", ONE_NANO, 0)
    desk.clock.now_s += IDLE_S
    demand = desk.demand(ONE_NANO)
    assert (demand.kept_nano, demand.wanted_nano) == (0, LEAST_REQUESTS * ONE_NANO)


def test_a_closed_reserve_stays_exact(desk: Desk) -> None:
    """A process that stops keeps only what its requests in flight need, for ever."""
    desk.reserves.close()
    desk.clock.now_s += 3600
    demand = desk.demand()
    assert (demand.kept_nano, demand.wanted_nano) == (ONE_NANO, 0)


def test_a_lost_reserve_covers_nothing(desk: Desk) -> None:
    """After another process took all of it, nothing is held in memory, and the requests in flight ask for theirs."""
    desk.hold()
    desk.reserves.lose()
    assert desk.hold(1) is None
    demand = desk.demand()
    assert (demand.kept_nano, demand.in_use_nano) == (2 * ONE_NANO, 2 * ONE_NANO)
    desk.store_has(2 * ONE_NANO)
    assert desk.hold(1) is None


class Process:
    """A process with its reserves and one batch in flight, and an account that others use too."""

    def __init__(self, balance_nano: int) -> None:
        self.clock = Clock()
        self.reserves = Reserves(self.clock, IDLE_S)
        self.account = LockedAccount("a", balance_nano, 0, 0)
        self.elsewhere_nano = 0
        self.known = BatchFacts()
        self.open: list[tuple[Hold, HeldCredit]] = []
        self.ends: list[End] = []
        self.wanted: list[Hold] = []
        self.taken: list[tuple[Hold, HeldCredit]] = []  # by the last batch
        self.numbers = itertools.count()

    @property
    def promised_nano(self) -> int:
        """What the requests in flight hold, and what is due of the holds that are not charged yet."""
        open_ends = [end for end in self.ends if end.hold.completion_id not in self.known.ended]
        due_nano = sum(min(end.due_nano, end.held_nano) for end in open_ends)
        return sum(held.amount_nano for _, held in self.open) + due_nano

    def hold(self, amount_nano: int, extra_tokens: int = 0) -> None:
        hold = make_hold(amount_nano, f"r{next(self.numbers)}", extra_tokens)
        held = self.reserves.hold(hold)
        if held:
            self.open.append((hold, held))
        else:
            self.wanted.append(hold)

    def end(self, used_percent: int) -> None:
        if self.open:
            hold, held = self.open.pop(0)
            due_nano = held.amount_nano * used_percent // 100
            self.reserves.end("a", held.amount_nano, due_nano)
            self.ends.append(End(make_outcome(hold.completion_id), hold, held.amount_nano, due_nano))

    def build(self, ends: list[End], wanted: list[Hold]) -> Demand:
        new = [end for end in ends if not end.is_uncertain]
        charged_nano, covered_nano = sum(end.due_nano for end in new), sum(end.covered_nano for end in new)
        return self.reserves.demand("a", charged_nano, covered_nano, wanted)

    def commit(self, demand: Demand, ends: list[End], wanted: list[Hold]) -> None:
        """Carry out a batch in the store."""
        changes = Changes()
        for end, ended in zip(ends, end_requests(self.account, demand, ends, self.known, changes), strict=True):
            assert min(end.due_nano, end.held_nano) <= ended.charged_nano <= end.due_nano
            assert not ended.is_lost
        final = [msgspec.structs.replace(hold, is_final=True) for hold in wanted]
        answers = [(hold, take_hold(self.account, hold, self.known, changes)) for hold in final]
        grow(self.account, demand)
        self.taken = [(hold, answer) for hold, answer in answers if isinstance(answer, HeldCredit)]

    def write(self, queued: Steps, meanwhile: Steps, fate: str) -> None:
        """Write a batch, with other steps before it is built and while it is in flight.

        Its result may be unknown, or it may fail.
        """
        ends, wanted = self.ends, self.wanted
        self.ends, self.wanted, self.taken = [*ends], [], []
        for step in queued:
            self.step(*step)
        demand = self.build(ends, wanted)
        for step in meanwhile:
            self.step(*step)
        later = self.ends[len(ends) :]
        if fate != "failed":
            self.commit(demand, ends, wanted)
        if fate == "written":
            self.ends = later
            self.reserves.written(self.account, self.taken)
            self.open += self.taken
        else:
            self.ends = [msgspec.structs.replace(end, is_uncertain=True) for end in ends] + later

    def step(self, what: str, number: int) -> None:
        match what:
            case "hold":
                self.hold(number)
            case "hold without a limit":
                self.hold(number, extra_tokens=number)
            case "end":
                self.end(number)
            case "end above its hold":
                self.end(100 + number)
            case "other":
                more_nano = min(number, self.account.free_nano)
                self.account.held_nano += more_nano
                self.elsewhere_nano += more_nano
            case "wait":
                self.clock.now_s += number / 50
                self.reserves.pass_time()
            case "asked":
                self.reserves.reclaim("a")


def make_outcome(completion_id: str) -> Outcome:
    return Outcome(
        request_id="req",
        completion_id=completion_id,
        endpoint="chat",
        status=200,
        duration_ms=1,
        ended_at=1,
        usage=Usage(0, 0),
    )


steps = st.tuples(
    st.sampled_from(
        ["hold", "hold", "hold without a limit", "end", "end", "end above its hold", "other", "wait", "asked"]
    ),
    st.integers(1, 100),
)
writes = st.tuples(
    st.lists(steps, max_size=6),
    st.lists(steps, max_size=2),
    st.lists(steps, max_size=4),
    st.sampled_from(["written", "written", "written", "failed", "unknown"]),
)


@settings(max_examples=150, deadline=None)
@given(credit_nano=st.integers(0, 500) | st.integers(0, 2 * AMPLE_NANO), story=st.lists(writes, max_size=12))
def test_the_memory_never_promises_more_than_the_store_has(
    credit_nano: int, story: list[tuple[Steps, Steps, Steps, str]]
) -> None:
    """However batches end: each request is charged what is due of its hold, and in the end all is given back."""
    process = Process(credit_nano)
    for before, queued, meanwhile, fate in story:
        for step in before:
            process.step(*step)
            assert process.promised_nano <= process.account.reserve_nano
        process.write(queued, meanwhile, fate)
        assert process.promised_nano <= process.account.reserve_nano
        assert process.account.held_nano == process.account.reserve_nano + process.elsewhere_nano
    process.wanted.clear()
    while process.open:
        process.end(100)
    process.write([], [], "written")
    process.clock.now_s += 2 * IDLE_S
    for _ in process.reserves.pass_time():
        process.write([], [], "written")
    assert process.account.reserve_nano == 0
    assert len(process.reserves) == 0
    assert process.account.balance_nano == credit_nano - sum(one.cost_nano for one in process.known.ended.values())
