"""The rules of the ledger, without a store: what a move may take, keep and charge."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cadenza.core.money import Price
from cadenza.core.records import Outcome, Usage
from cadenza.ledger.charging import end_requests
from cadenza.ledger.rules import (
    AMPLE_TIMES,
    RESERVE_SHARE,
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
    Recorded,
    Repeated,
    granted_part,
    grow,
    has_spare,
    require_sums,
    take_hold,
)

PRICE = Price(input_nano=10, output_nano=30)
WHOLE_NANO = 100 * 10 + 50 * 30  # an ordinary hold
SHORT_NANO = 100 * 10 + 16 * 30  # its prompt and the shortest answer
KEY = b"k" * 32
OTHER_KEY = b"o" * 32
NOTHING = Demand(kept_nano=0, in_use_nano=0, wanted_nano=0, usual_nano=0)
PROCESSES = ("one", "two", "three")


def make_hold(completion_id: str = "r1", *, allowance_tokens: int = 50, price: Price = PRICE) -> Hold:
    return Hold(completion_id, "a", "k", "forte", 100, allowance_tokens, price, stream=True, started_at=1)


def make_account(free_nano: int, reserve_nano: int = 0, elsewhere_nano: int = 0) -> LockedAccount:
    """An account of which this process and others have reserved so much."""
    held_nano = reserve_nano + elsewhere_nano
    return LockedAccount("a", free_nano + held_nano, held_nano, reserve_nano, has_reserve=reserve_nano > 0)


def make_end(due_nano: int, amount_nano: int = WHOLE_NANO, completion_id: str = "r1", **flags: bool) -> End:
    outcome = Outcome(
        request_id="req",
        completion_id=completion_id,
        endpoint="chat",
        status=200,
        duration_ms=1,
        ended_at=1,
        usage=Usage(0, 0),
    )
    return End(outcome, make_hold(completion_id), amount_nano, due_nano, **flags)  # type: ignore[arg-type]


def take(account: LockedAccount, hold: Hold, *, is_final: bool = True) -> HoldResult:
    return take_hold(account, msgspec.structs.replace(hold, is_final=is_final), BatchFacts(), Changes())


def end(account: LockedAccount, kept_nano: int, *ends: End, known: BatchFacts | None = None) -> list[Ended]:
    demand = msgspec.structs.replace(NOTHING, kept_nano=kept_nano)
    return end_requests(account, demand, [*ends], known or BatchFacts(), Changes())


def money(account: LockedAccount) -> tuple[int, int, int]:
    return account.balance_nano, account.held_nano, account.reserve_nano


@pytest.mark.parametrize(
    ("free_nano", "tokens"),
    [
        (WHOLE_NANO + 1, 50),
        (WHOLE_NANO, 50),
        (WHOLE_NANO - 1, 49),
        (WHOLE_NANO - 30, 49),
        (WHOLE_NANO - 31, 48),
        (SHORT_NANO, 16),
        (SHORT_NANO - 1, None),
        (0, None),
    ],
)
def test_a_hold_is_whole_or_fitted_or_refused(free_nano: int, tokens: int | None) -> None:
    """As many output tokens as the free credit pays for, and nothing if it does not pay for 16."""
    account = make_account(free_nano, reserve_nano=7, elsewhere_nano=9)
    answer = take(account, make_hold())
    if tokens is None:
        assert answer == Insufficient(free_nano, SHORT_NANO)
        assert money(account) == (free_nano + 16, 16, 7)
    else:
        held_nano = 1000 + tokens * 30
        assert answer == HeldCredit(held_nano, tokens)
        assert money(account) == (free_nano + 16, 16 + held_nano, 7 + held_nano)


def test_a_longer_answer_is_held() -> None:
    """Without `max_tokens`, one part in eight of the credit left is held for a longer answer; none is served unheld."""
    account, given, prompt_nano = make_account(3 * WHOLE_NANO), list[int](), WHOLE_NANO - 50 * PRICE.output_nano
    while isinstance(
        answer := take(account, msgspec.structs.replace(make_hold(), extra_tokens=1_000), is_final=True), HeldCredit
    ):
        assert answer.amount_nano == prompt_nano + answer.allowance_tokens * PRICE.output_nano
        given.append(answer.allowance_tokens)
    assert account.free_nano >= 0
    assert account.held_nano == sum(prompt_nano + tokens * PRICE.output_nano for tokens in given)
    assert given[0] == 50 + 2 * WHOLE_NANO // 8 // PRICE.output_nano


@pytest.mark.parametrize(("free_nano", "answer"), [(1090, HeldCredit(1090, 3)), (1089, Insufficient(1089, 1090))])
def test_fewer_than_16_tokens_need_only_their_price(free_nano: int, answer: HoldResult) -> None:
    """A request for 3 tokens needs credit for 3."""
    assert take(make_account(free_nano), make_hold(allowance_tokens=3)) == answer


@pytest.mark.parametrize("free_nano", [WHOLE_NANO - 1, SHORT_NANO - 1, 0])
def test_a_hold_is_fitted_or_refused_only_when_it_is_final(free_nano: int) -> None:
    """Before that the answer is that the credit falls short, and nothing changes: other processes may have some."""
    account = make_account(free_nano, elsewhere_nano=WHOLE_NANO)
    assert take(account, make_hold(), is_final=False) == RESERVED_ELSEWHERE
    assert money(account) == (free_nano + WHOLE_NANO, WHOLE_NANO, 0)


@pytest.mark.parametrize("is_final", [True, False])
def test_a_hold_that_can_be_paid_asks_nobody(is_final: bool) -> None:
    """Credit for the whole hold is enough, to the nano-dollar."""
    assert take(make_account(WHOLE_NANO), make_hold(), is_final=is_final) == HeldCredit(WHOLE_NANO, 50)


@pytest.mark.parametrize("is_final", [True, False])
def test_an_uncounted_hold_needs_256_times_its_amount(is_final: bool) -> None:
    """With less it is neither taken nor fitted, and no other process is asked: the prompt is counted first."""
    hold = msgspec.structs.replace(make_hold(), is_counted=False)
    ample_nano = AMPLE_TIMES * WHOLE_NANO
    assert take(make_account(ample_nano), hold, is_final=is_final) == HeldCredit(WHOLE_NANO, 50)
    assert take(make_account(ample_nano - 1), hold, is_final=is_final) == Insufficient(ample_nano - 1, SHORT_NANO)
    assert AMPLE_TIMES == 256


def test_a_used_key_is_refused_with_the_ids_of_its_request() -> None:
    """In the same batch and from the store; a key that is open again may be used, once."""
    known, changes, account = BatchFacts(), Changes(), make_account(9 * WHOLE_NANO)
    known.keys["a", b"o" * 32] = Repeated("old", "req-old", is_open=True)
    known.keys["a", b"u" * 32] = Repeated("used", "req-used", is_open=False)
    keys = [b"o" * 32, b"o" * 32, b"u" * 32, KEY, KEY]
    holds = [
        msgspec.structs.replace(make_hold(f"r{number}"), idempotency_digest=key, request_id=f"req-r{number}")
        for number, key in enumerate(keys)
    ]
    answers = [take_hold(account, hold, known, changes) for hold in holds]
    assert [type(answer) for answer in answers] == [HeldCredit, Repeated, Repeated, HeldCredit, Repeated]
    assert (answers[1], answers[2]) == (Repeated("r0", "req-r0"), Repeated("used", "req-used"))
    assert answers[4] == Repeated("r3", "req-r3")
    assert [hold.completion_id for hold in changes.new_keys] == ["r0", "r3"]
    assert account.reserve_nano == 2 * WHOLE_NANO


def test_a_key_is_kept_by_a_charge_and_freed_by_a_release() -> None:
    """A charge of zero is a charge."""
    account, known, changes = make_account(0, 2 * WHOLE_NANO), BatchFacts(), Changes()
    charged, released = make_end(0, completion_id="r1"), make_end(0, completion_id="r2")
    released = msgspec.structs.replace(released, outcome=msgspec.structs.replace(released.outcome, usage=None))
    keyed = [
        msgspec.structs.replace(one, hold=msgspec.structs.replace(one.hold, idempotency_digest=key))
        for one, key in ((charged, KEY), (released, OTHER_KEY))
    ]
    known.keys = {("a", key): Repeated(name, "", is_open=False) for key, name in ((KEY, "r1"), (OTHER_KEY, "r2"))}
    end_requests(account, NOTHING, keyed, known, changes)
    assert [hold.completion_id for hold in changes.kept_keys] == ["r1"]
    assert [hold.completion_id for hold in changes.freed_keys] == ["r2"]


@given(
    due_nano=st.integers(0, 9000),
    reserve_nano=st.integers(0, 5000),
    free_nano=st.integers(0, 3000),
    kept_nano=st.integers(0, 6000),
    elsewhere_nano=st.integers(0, 3000),
)
def test_a_charge_takes_what_is_not_kept_and_what_is_free(
    due_nano: int, reserve_nano: int, free_nano: int, kept_nano: int, elsewhere_nano: int
) -> None:
    """Never more, and never what this process keeps for other requests or another process has reserved."""
    account = make_account(free_nano, reserve_nano, elsewhere_nano)
    balance_nano = account.balance_nano
    [ended] = end(account, kept_nano, make_end(due_nano))
    charged_nano = min(due_nano, max(0, reserve_nano - kept_nano) + free_nano)
    assert (ended.charged_nano, ended.short_nano) == (charged_nano, due_nano - charged_nano)
    assert account.balance_nano == balance_nano - charged_nano
    assert account.reserve_nano == min(kept_nano, account.balance_nano - elsewhere_nano)
    assert account.held_nano == account.reserve_nano + elsewhere_nano <= account.balance_nano


@pytest.mark.parametrize(
    ("due_nano", "free_nano", "is_lost"),
    [
        (WHOLE_NANO, WHOLE_NANO, False),
        (WHOLE_NANO, WHOLE_NANO - 1, True),
        (9 * WHOLE_NANO, WHOLE_NANO, False),
        (9 * WHOLE_NANO, WHOLE_NANO - 1, True),
        (0, 0, False),
    ],
)
def test_a_request_is_lost_if_its_hold_does_not_pay_for_it(due_nano: int, free_nano: int, is_lost: bool) -> None:
    """Its reserve was taken away and the credit is gone. What is due beyond the hold may be short."""
    [ended] = end(make_account(free_nano), 0, make_end(due_nano))
    assert ended.is_lost is is_lost
    assert ended.charged_nano == min(due_nano, free_nano)


@pytest.mark.parametrize(
    ("cost_nano", "ended"),
    [
        (WHOLE_NANO, Ended(WHOLE_NANO, is_repeated=True)),
        (WHOLE_NANO - 1, Ended(WHOLE_NANO - 1, 1, is_repeated=True, is_lost=True)),
        (0, Ended(0, WHOLE_NANO, is_repeated=True, is_lost=True)),
    ],
)
def test_an_uncertain_end_that_the_store_has_is_not_charged_again(cost_nano: int, ended: Ended) -> None:
    """Its own process wrote it: it is repeated, and lost again if it was. The mark is deleted either way."""
    known = BatchFacts(ended={"r1": Recorded(cost_nano, "request")})
    account, changes = make_account(0, WHOLE_NANO), Changes()
    again = make_end(WHOLE_NANO, is_uncertain=True, is_marked=True)
    assert end_requests(account, NOTHING, [again], known, changes) == [ended]
    assert (changes.charges, changes.unmarked) == ([], ["r1"])
    assert money(account) == (WHOLE_NANO, 0, 0)


@pytest.mark.parametrize(
    ("due_nano", "charged_nano"),
    [
        ((WHOLE_NANO + 900, WHOLE_NANO), (WHOLE_NANO, WHOLE_NANO)),
        ((WHOLE_NANO, WHOLE_NANO + 900), (WHOLE_NANO, WHOLE_NANO)),
        ((WHOLE_NANO + 900, WHOLE_NANO - 600), (WHOLE_NANO + 600, WHOLE_NANO - 600)),
        ((WHOLE_NANO - 600, WHOLE_NANO + 900), (WHOLE_NANO - 600, WHOLE_NANO + 600)),
    ],
)
def test_a_request_above_its_hold_takes_nothing_from_another_that_ends_with_it(
    due_nano: tuple[int, int], charged_nano: tuple[int, int]
) -> None:
    """In a batch, it gets what the other does not need of its own hold, in either order; no hold is lost."""
    account = make_account(0, reserve_nano=2 * WHOLE_NANO)
    first, second = (make_end(due, completion_id=name) for due, name in zip(due_nano, ("r1", "r2"), strict=True))
    ended = end(account, 0, first, second)
    assert [(one.charged_nano, one.is_lost) for one in ended] == [(charged, False) for charged in charged_nano]


def test_two_ends_of_one_request_in_a_batch_are_charged_once() -> None:
    """The second finds the first."""
    account, twice = make_account(0, 2 * WHOLE_NANO), make_end(WHOLE_NANO, is_uncertain=True)
    assert end(account, 0, twice, twice) == [Ended(WHOLE_NANO), Ended(WHOLE_NANO, is_repeated=True)]
    assert account.balance_nano == WHOLE_NANO


@given(
    free_nano=st.integers(0, 2000 * AMPLE_TIMES),
    reserve_nano=st.integers(0, 5000),
    usual_nano=st.integers(0, 3000),
    wanted_nano=st.integers(0, 2000 * AMPLE_TIMES),
)
@example(free_nano=800, reserve_nano=0, usual_nano=1, wanted_nano=800)
def test_a_reserve_grows_only_with_ample_credit(
    free_nano: int, reserve_nano: int, usual_nano: int, wanted_nano: int
) -> None:
    """Up to what is wanted, by an eighth of the free credit at most, and not near the end of a credit."""
    account = make_account(free_nano, reserve_nano)
    grow(account, Demand(reserve_nano, reserve_nano, wanted_nano, usual_nano))
    more_nano = account.reserve_nano - reserve_nano
    if free_nano < usual_nano * AMPLE_TIMES:
        assert more_nano == 0
    else:
        assert more_nano == min(max(0, wanted_nano - reserve_nano), free_nano // RESERVE_SHARE)
    assert account.held_nano == account.reserve_nano
    assert account.balance_nano == free_nano + reserve_nano
    assert RESERVE_SHARE == 8


@pytest.mark.parametrize(("reserve_nano", "is_spare"), [(100, False), (101, True), (99, False)])
def test_a_reserve_has_a_spare_part_beyond_the_requests_in_flight(reserve_nano: int, is_spare: bool) -> None:
    """With the holds that were just taken."""
    assert has_spare(make_account(0, reserve_nano), Demand(0, 60, 0, 0), held_nano=40) == is_spare


class Move(msgspec.Struct, frozen=True):
    """A process charges its oldest request, keeps some of what it has to spare, and takes holds, in one batch."""

    process: str
    used_tokens: int | None
    kept_share: int  # of 4
    allowances: Sequence[int]
    wanted_times: int


moves = st.builds(
    Move,
    process=st.sampled_from(PROCESSES),
    used_tokens=st.none() | st.integers(0, 120),
    kept_share=st.integers(0, 4),
    allowances=st.lists(st.integers(1, 60), max_size=3),
    wanted_times=st.integers(0, 40),
)


class Ledger:
    """One account with several processes, as the store has it."""

    def __init__(self, balance_nano: int) -> None:
        self.balance_nano = balance_nano
        self.reserves = dict.fromkeys(PROCESSES, 0)
        self.holds: dict[str, list[int]] = {name: [] for name in PROCESSES}
        self.charged_nano = 0

    def apply(self, move: Move) -> None:
        reserve_nano, holds = self.reserves[move.process], self.holds[move.process]
        account = LockedAccount("a", self.balance_nano, sum(self.reserves.values()), reserve_nano)
        ends = [self._end(holds.pop(0), move.used_tokens)] if holds else []
        in_use_nano = sum(holds)
        spare_nano = max(0, reserve_nano - in_use_nano - sum(end.held_nano for end in ends))
        usual_nano = max([WHOLE_NANO, *holds])
        demand = Demand(
            in_use_nano + spare_nano * move.kept_share // 4, in_use_nano, move.wanted_times * usual_nano, usual_nano
        )
        known, changes = BatchFacts(), Changes()
        for ended in end_requests(account, demand, ends, known, changes):
            assert not ended.is_lost
            self.charged_nano += ended.charged_nano
        for tokens in move.allowances:
            answer = take(account, make_hold(allowance_tokens=tokens))
            if isinstance(answer, HeldCredit):
                holds.append(answer.amount_nano)
        grow(account, demand)
        self.balance_nano = account.balance_nano
        self.reserves[move.process] = account.reserve_nano
        assert account.held_nano == sum(self.reserves.values())

    @staticmethod
    def _end(amount_nano: int, used_tokens: int | None) -> End:
        return make_end(0 if used_tokens is None else 1000 + used_tokens * 30, amount_nano)


@settings(max_examples=200, deadline=None)
@given(credit_nano=st.integers(0, 700 * WHOLE_NANO), batches=st.lists(moves, max_size=30))
def test_any_moves_of_several_processes_keep_the_account_sound(credit_nano: int, batches: list[Move]) -> None:
    """The held sum is the sum of the reserves and within the balance; each reserve covers the holds of its process."""
    ledger = Ledger(credit_nano)
    for move in batches:
        ledger.apply(move)
        assert 0 <= sum(ledger.reserves.values()) <= ledger.balance_nano
        assert ledger.balance_nano == credit_nano - ledger.charged_nano
        for name in PROCESSES:
            assert 0 <= sum(ledger.holds[name]) <= ledger.reserves[name]


@pytest.mark.parametrize(
    ("change", "charged_nano"),
    [
        ({}, 1),  # a charge that the balance does not have
        ({"balance_nano": 99}, 0),  # and the other way round
        ({"held_nano": 41}, 0),  # held, but in no reserve
        ({"reserve_nano": -1, "held_nano": 9}, 0),
        ({"balance_nano": 39}, 61),  # held beyond the balance
        ({"debt_nano": 6}, -1),  # a debt that grew
        ({"debt_nano": 4, "balance_nano": 99}, 0),  # a debt that is open beside free credit
        ({"granted_nano": 19}, 0),  # granted credit that nobody took
        ({"granted_nano": 21}, 0),
    ],
)
def test_a_batch_that_breaks_the_sums_of_an_account_is_refused(change: dict[str, int], charged_nano: int) -> None:
    """Nothing of it may be written."""
    before = LockedAccount("a", balance_nano=100, held_nano=40, reserve_nano=30, debt_nano=5, granted_nano=20)
    with pytest.raises(AssertionError):
        require_sums(before, msgspec.structs.replace(before, **change), charged_nano)


@given(
    st.lists(st.tuples(st.sampled_from(["pay", "grant", "spend", "return"]), st.integers(0, 900)), max_size=30),
    st.integers(0, 3000),
)
def test_granted_credit_is_spent_first_and_returned_last(moves: list[tuple[str, int]], unseen_nano: int) -> None:
    """As two purses would do it, and however a process spent before that does not count granted credit."""
    paid_nano = granted_nano = counted_nano = 0
    for kind, wanted_nano in moves:
        balance_nano = paid_nano + granted_nano
        amount_nano = min(wanted_nano, balance_nano) if kind in {"spend", "return"} else wanted_nano
        if kind == "pay":
            paid_nano += amount_nano
        elif kind == "grant":
            granted_nano += amount_nano
            counted_nano += amount_nano
        elif kind == "spend":
            counted_nano -= granted_part(balance_nano, counted_nano, amount_nano)
            from_granted_nano = min(granted_nano, amount_nano)
            granted_nano, paid_nano = granted_nano - from_granted_nano, paid_nano - amount_nano + from_granted_nano
        else:
            counted_nano -= granted_part(balance_nano, counted_nano, amount_nano, is_paid_first=True)
            from_paid_nano = min(paid_nano, amount_nano)
            paid_nano, granted_nano = paid_nano - from_paid_nano, granted_nano - amount_nano + from_paid_nano
        assert counted_nano == granted_nano
    balance_nano = max(0, paid_nano + granted_nano - unseen_nano)
    taken_nano = granted_part(balance_nano, counted_nano, balance_nano // 2)
    assert 0 <= counted_nano - taken_nano <= balance_nano - balance_nano // 2


def test_an_account_with_a_debt_gets_no_hold() -> None:
    """Even a request that costs nothing is refused, at once and with the debt; without the debt it is served."""
    account = make_account(0, reserve_nano=WHOLE_NANO)
    account.debt_nano = 5
    for hold in (make_hold(), make_hold(price=Price(0, 0))):
        answer = take(account, hold, is_final=False)
        assert isinstance(answer, Insufficient)
        assert answer.debt_nano == 5
    account.debt_nano = 0
    assert isinstance(take(account, make_hold(price=Price(0, 0))), HeldCredit)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 7000), st.booleans()), max_size=6),
    st.integers(0, 5000),
    st.integers(0, 30_000),
)
def test_ended_holds_pay_the_debt_first(requests: list[tuple[int, int, bool]], spare_nano: int, debt_nano: int) -> None:
    """However requests end, alone or together, charges, paid debt and balance add up; a debt leaves nothing free."""
    held_nano = sum(amount_nano for amount_nano, _, _ in requests)
    account = make_account(0, reserve_nano=held_nano + spare_nano)
    account.debt_nano = debt_nano
    before_nano, kept_nano, charged_nano, batch = account.balance_nano, held_nano, 0, list[End]()
    for number, (amount_nano, due_nano, is_last_of_batch) in enumerate([*requests, (0, 0, True)]):
        batch.append(make_end(due_nano, amount_nano, f"r{number}"))
        kept_nano -= amount_nano
        if is_last_of_batch:
            charged_nano += sum(ended.charged_nano for ended in end(account, kept_nano, *batch))
            batch = []
            assert account.free_nano == 0 or account.debt_nano == 0
            assert account.free_nano >= 0
    paid_nano = debt_nano - account.debt_nano
    assert account.balance_nano == before_nano - charged_nano - paid_nano
    assert (account.held_nano, account.reserve_nano) == (0, 0)
    assert paid_nano == min(debt_nano, before_nano - charged_nano)
