"""A batch has the same effect as its moves one by one: the same answers, money and rows, and a sound ledger."""

import asyncio
import itertools
from collections.abc import Sequence

from cadenza.store.batches import Answer, Move
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cadenza.core.records import Outcome, Usage
from cadenza.store import batches, ledger
from cadenza.store.address import open_store
from cadenza.store.ledger import Ended, Held, Hold, Insufficient, OpenHold, Repeated
from cadenza.store.migrate import migrate
from cadenza.store.schema import entries, holds, usage
from cadenza.store.store import Store, Transaction
from tests.store.moves import PRICE, findings, finish, fund, make_hold, make_outcome, money, state_of, take
from tests.store.rows import DOLLAR_NANO, rows_of

WHOLE_NANO = 2500  # the amount of an ordinary hold
OWNER = "proc_a"
EXAMPLES = 40


def known(hold: Hold, allowance_tokens: int = 50) -> OpenHold:
    return OpenHold.of(hold, allowance_tokens)


async def apply(store: Store, *moves: Move) -> list[Answer]:
    return await store.transact(lambda tx: batches.apply(tx, moves, OWNER))


async def test_answers_are_in_the_order_of_the_moves(store: Store) -> None:
    """Holds and outcomes of two accounts are answered in their order, and each account has its own sums."""
    await fund(store, DOLLAR_NANO)
    await fund(store, 2 * WHOLE_NANO, "b")
    first, other = make_hold("r1"), make_hold("r2", account="b")
    await take(store, first)
    await take(store, other)
    answers = await apply(
        store,
        Move(make_hold("r3", account="b")),
        Move(make_outcome("r1", Usage(100, 10)), known(first)),
        Move(make_hold("r4")),
        Move(make_outcome("r2", account="b"), known(other)),
    )
    assert answers == [
        Held(50, WHOLE_NANO),
        Ended(True, 1300),
        Held(50, DOLLAR_NANO - 1300 - WHOLE_NANO),
        Ended(is_first=True),
    ]
    assert await money(store) == (DOLLAR_NANO - 1300, WHOLE_NANO)
    assert await money(store, "b") == (2 * WHOLE_NANO, WHOLE_NANO)
    assert [await state_of(store, f"r{number}") for number in (1, 2, 3, 4)] == ["settled", "released", "open", "open"]
    assert await findings(store) == []


async def test_a_hold_that_ended_elsewhere_is_not_ended_again(store: Store) -> None:
    """The outcome of a hold that another process ended changes nothing; the others of its batch are applied."""
    await fund(store, DOLLAR_NANO)
    holds_taken = [make_hold("r1"), make_hold("r2")]
    for hold in holds_taken:
        await take(store, hold)
    await finish(store, make_outcome("r1", Usage(100, 1)))
    ends = [Move(make_outcome(hold.completion_id, Usage(100, 5)), known(hold)) for hold in holds_taken]
    assert await apply(store, *ends) == [Ended(is_first=False), Ended(True, 1150)]
    assert await money(store) == (DOLLAR_NANO - 1030 - 1150, 0)
    assert await findings(store) == []


async def test_an_account_that_cannot_pay_for_all_holds_gets_some(store: Store) -> None:
    """When the credit is too small for all holds of a batch, each is taken, fitted or refused as if it were alone."""
    await fund(store, 2 * WHOLE_NANO + 1480)
    await fund(store, DOLLAR_NANO, "b")
    held = await apply(
        store, *(Move(make_hold(f"r{number}")) for number in range(4)), Move(make_hold("b1", account="b"))
    )
    assert held[:4] == [Held(50, WHOLE_NANO + 1480), Held(50, 1480), Held(16, 0), Insufficient(0, 1480)]
    assert held[4] == Held(50, DOLLAR_NANO - WHOLE_NANO)
    assert await findings(store) == []


async def test_a_charge_beyond_the_hold_takes_what_is_free(store: Store) -> None:
    """A charge above the hold and the free credit takes everything, and the answer has what is missing."""
    await fund(store, WHOLE_NANO + 10)
    hold = make_hold("r1")
    await take(store, hold)
    assert await apply(store, Move(make_outcome("r1", Usage(100, 500)), known(hold))) == [
        Ended(True, WHOLE_NANO + 10, 13_490)
    ]
    assert (await money(store), await findings(store)) == ((0, 0), [])


async def test_an_uncounted_prompt_needs_much_credit(store: Store) -> None:
    """Such a hold is taken only if the account can pay for many like it, and is never fitted."""
    times = ledger.UNCOUNTED_TIMES
    await fund(store, times * WHOLE_NANO)
    held = await apply(store, Move(make_hold("r1", is_counted=False)))
    refused = await apply(store, Move(make_hold("r2", is_counted=False)), Move(make_hold("r3")))
    assert held == [Held(50, (times - 1) * WHOLE_NANO)]
    assert refused == [Insufficient((times - 1) * WHOLE_NANO, 1480), Held(50, (times - 2) * WHOLE_NANO)]
    assert await money(store) == (times * WHOLE_NANO, 2 * WHOLE_NANO)


async def test_idempotency_keys_of_one_batch_see_each_other(store: Store) -> None:
    """The second of two holds with one key gets the ids of the first, and the rest of the batch is applied."""
    await fund(store, DOLLAR_NANO)
    moves = [Move(make_hold("r1", key=b"k" * 32)), Move(make_hold("r2", key=b"k" * 32)), Move(make_hold("r3"))]
    answers = await apply(store, *moves)
    assert answers[1] == Repeated("r1", "req-r1")
    assert isinstance(answers[0], Held)
    assert isinstance(answers[2], Held)
    assert await money(store) == (DOLLAR_NANO, 2 * WHOLE_NANO)


async def test_an_outcome_finds_a_hold_that_is_only_in_the_store(store: Store) -> None:
    """An outcome whose hold is not in memory finds it in the store, from an earlier batch and from its own."""
    await fund(store, DOLLAR_NANO)
    await take(store, make_hold("r1"))
    ends = [Move(make_outcome(name, Usage(100, 1))) for name in ("r1", "r2", "r9")]
    answers = await apply(store, Move(make_hold("r2")), *ends)
    assert answers[1:] == [Ended(True, 1030), Ended(True, 1030), Ended(is_first=False)]
    assert (await money(store), await findings(store)) == ((DOLLAR_NANO - 2060, 0), [])


async def test_an_empty_batch_has_no_answers(store: Store) -> None:
    """No moves, no answers."""
    assert await apply(store) == []


@st.composite
def story(draw: st.DrawFn) -> tuple[int, list[tuple[str, bool, Usage | None]]]:
    """A credit, and requests: the account, whether the second batch ends it, and with what usage."""
    requests = draw(
        st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.booleans(),
                st.none() | st.builds(Usage, st.integers(0, 100), st.integers(0, 50)),
            ),
            max_size=12,
        )
    )
    return draw(st.integers(0, 8 * WHOLE_NANO)), requests


class Bed:
    """Two stores: one applies batches, the other the same moves one by one."""

    def __init__(self, together: Store, alone: Store) -> None:
        self.stores = (together, alone)
        self.numbers = itertools.count()

    async def move(self, moves: Sequence[Move]) -> list[list[Answer]]:
        together, alone = self.stores
        return [await apply(together, *moves), await alone.transact(lambda tx: one_by_one(tx, moves))]

    async def seen(self, accounts: dict[str, str]) -> list[object]:
        """What each of the two stores has, in a form that can be compared."""
        return [
            (
                [await money(store, account) for account in accounts.values()],
                [sorted(map(str, await rows_of(store, table))) for table in (holds, usage)],
                sorted(
                    (row.account_id, row.amount_nano, str(row.completion_id)) for row in await rows_of(store, entries)
                ),
                await findings(store),
            )
            for store in self.stores
        ]


def one_by_one(tx: Transaction, moves: Sequence[Move]) -> list[Answer]:
    """In the order of a batch: by account, outcomes first."""
    order = sorted(
        range(len(moves)), key=lambda place: (moves[place].what.account_id, isinstance(moves[place].what, Hold))
    )
    answers: dict[int, Answer] = {}
    for place in order:
        what = moves[place].what
        answers[place] = ledger.end_hold(tx, what) if isinstance(what, Outcome) else ledger.take_hold(tx, what, OWNER)
    return [answers[place] for place in range(len(moves))]


def test_a_batch_has_the_effect_of_its_moves_one_by_one(make_pair: tuple[str, str]) -> None:
    """Any two batches of holds and outcomes leave the same rows in every table, whether the accounts can pay or not."""
    with asyncio.Runner() as runner:
        bed = Bed(*(open_store(url, 60.0) for url in make_pair))
        for store in bed.stores:
            runner.run(migrate(store))

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(story())
        def agree(told: tuple[int, list[tuple[str, bool, Usage | None]]]) -> None:
            runner.run(tell(bed, *told))

        agree()
        for store in bed.stores:
            runner.run(store.close())


async def tell(bed: Bed, credit_nano: int, requests: list[tuple[str, bool, Usage | None]]) -> None:
    names = {name: f"{name}{next(bed.numbers)}" for name in "ab"}
    for store, account in itertools.product(bed.stores, names.values()):
        await fund(store, credit_nano, account)
    begun = [make_hold(f"r{next(bed.numbers):06d}", account=names[name]) for name, _, _ in requests]
    first = await bed.move([Move(hold) for hold in begun])
    assert first[0] == first[1]
    second = []
    for hold, answer, (_, is_ended, counted) in zip(begun, first[0], requests, strict=True):
        if isinstance(answer, Held) and is_ended:
            within = counted and Usage(counted.prompt_tokens, min(counted.completion_tokens, answer.allowance_tokens))
            end = make_outcome(hold.completion_id, within, account=hold.account_id.removeprefix("acct_"))
            second.append(Move(end, known(hold, answer.allowance_tokens)))
        else:
            again = make_hold(f"r{next(bed.numbers):06d}", account=hold.account_id.removeprefix("acct_"))
            second.append(Move(again))
    answers = await bed.move(second)
    assert answers[0] == answers[1]
    together, alone = await bed.seen(names)
    assert together == alone
    assert PRICE.quote(100, 50) == WHOLE_NANO
