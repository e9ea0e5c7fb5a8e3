"""Moves made together leave what they would leave one by one: the same answers, money and rows, and a proven ledger."""

import asyncio
import itertools
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cadenza.core.records import Usage
from cadenza.store import batches, ledger
from cadenza.store.batches import Answer, Move
from cadenza.store.database import Database, migrate
from cadenza.store.ledger import End, Ended, Held, Hold, Insufficient, OpenHold, Repeated
from cadenza.store.schema import entries, holds, usage
from cadenza.store.statements import Executor
from tests.store.moves import PRICE, findings, finish, fund, make_end, make_hold, money, state_of, take
from tests.store.rows import DOLLAR_NANO, rows_of

WHOLE_NANO = 2500  # what an ordinary hold holds
OWNER = "proc_a"
EXAMPLES = 40


def known(hold: Hold, allowance_tokens: int = 50) -> OpenHold:
    return OpenHold.of(hold, allowance_tokens)


async def apply(db: Database, *moves: Move) -> list[Answer]:
    return await db.transact(lambda connection: batches.apply(connection, moves, OWNER))


async def test_every_answer_stands_where_its_move_stood(db: Database) -> None:
    """Holds and ends of two accounts, in any mixture, are answered in their order; each account has its own sums."""
    await fund(db, DOLLAR_NANO)
    await fund(db, 2 * WHOLE_NANO, "b")
    first, other = make_hold("r1"), make_hold("r2", account="b")
    await take(db, first)
    await take(db, other)
    answers = await apply(
        db,
        Move(make_hold("r3", account="b")),
        Move(make_end("r1", Usage(100, 10)), known(first)),
        Move(make_hold("r4")),
        Move(make_end("r2", account="b"), known(other)),
    )
    assert answers == [
        Held(50, WHOLE_NANO),
        Ended(True, 1300),
        Held(50, DOLLAR_NANO - 1300 - WHOLE_NANO),
        Ended(is_first=True),
    ]
    assert await money(db) == (DOLLAR_NANO - 1300, WHOLE_NANO)
    assert await money(db, "b") == (2 * WHOLE_NANO, WHOLE_NANO)
    assert [await state_of(db, f"r{number}") for number in (1, 2, 3, 4)] == ["settled", "released", "open", "open"]
    assert await findings(db) == []


async def test_what_has_ended_elsewhere_is_not_ended_again(db: Database) -> None:
    """Of a hold that another process ended, the end moves nothing and says so; the others of its batch are made."""
    await fund(db, DOLLAR_NANO)
    holds_taken = [make_hold("r1"), make_hold("r2")]
    for hold in holds_taken:
        await take(db, hold)
    await finish(db, make_end("r1", Usage(100, 1)))
    ends = [Move(make_end(hold.request_id, Usage(100, 5)), known(hold)) for hold in holds_taken]
    assert await apply(db, *ends) == [Ended(is_first=False), Ended(True, 1150)]
    assert await money(db) == (DOLLAR_NANO - 1030 - 1150, 0)
    assert await findings(db) == []


async def test_an_account_that_cannot_pay_all_pays_for_what_it_can(db: Database) -> None:
    """Of holds that are too many together each is taken, fitted or refused as if it had come alone."""
    await fund(db, 2 * WHOLE_NANO + 1480)
    await fund(db, DOLLAR_NANO, "b")
    held = await apply(db, *(Move(make_hold(f"r{number}")) for number in range(4)), Move(make_hold("b1", account="b")))
    assert held[:4] == [Held(50, WHOLE_NANO + 1480), Held(50, 1480), Held(16, 0), Insufficient(0, 1480)]
    assert held[4] == Held(50, DOLLAR_NANO - WHOLE_NANO)
    assert await findings(db) == []


async def test_a_charge_beyond_the_hold_takes_what_is_free(db: Database) -> None:
    """A charge of more than was held and more than is free takes all that there is, and says what is short."""
    await fund(db, WHOLE_NANO + 10)
    hold = make_hold("r1")
    await take(db, hold)
    assert await apply(db, Move(make_end("r1", Usage(100, 500)), known(hold))) == [Ended(True, WHOLE_NANO + 10, 13_490)]
    assert (await money(db), await findings(db)) == ((0, 0), [])


async def test_a_prompt_that_is_not_counted_is_for_accounts_with_much_credit(db: Database) -> None:
    """Such a hold is taken where there is credit for many like it, and never fitted: else whoever asks counts."""
    times = ledger.UNCOUNTED_TIMES
    await fund(db, times * WHOLE_NANO)
    held = await apply(db, Move(make_hold("r1", is_counted=False)))
    refused = await apply(db, Move(make_hold("r2", is_counted=False)), Move(make_hold("r3")))
    assert held == [Held(50, (times - 1) * WHOLE_NANO)]
    assert refused == [Insufficient((times - 1) * WHOLE_NANO, 1480), Held(50, (times - 2) * WHOLE_NANO)]
    assert await money(db) == (times * WHOLE_NANO, 2 * WHOLE_NANO)


async def test_idempotency_keys_of_one_batch_see_each_other(db: Database) -> None:
    """Of two holds of a batch with one key the second is told of the first, and the rest of the batch is made."""
    await fund(db, DOLLAR_NANO)
    moves = [Move(make_hold("r1", key=b"k" * 32)), Move(make_hold("r2", key=b"k" * 32)), Move(make_hold("r3"))]
    answers = await apply(db, *moves)
    assert answers[1] == Repeated("r1", "shown-r1")
    assert isinstance(answers[0], Held)
    assert isinstance(answers[2], Held)
    assert await money(db) == (DOLLAR_NANO, 2 * WHOLE_NANO)


async def test_an_end_of_which_only_the_store_knows_is_made(db: Database) -> None:
    """An end without its hold in memory finds it in the store, in an earlier batch and in its own."""
    await fund(db, DOLLAR_NANO)
    await take(db, make_hold("r1"))
    ends = [Move(make_end(name, Usage(100, 1))) for name in ("r1", "r2", "r9")]
    answers = await apply(db, Move(make_hold("r2")), *ends)
    assert answers[1:] == [Ended(True, 1030), Ended(True, 1030), Ended(is_first=False)]
    assert (await money(db), await findings(db)) == ((DOLLAR_NANO - 2060, 0), [])


async def test_nothing_to_do_is_nothing_done(db: Database) -> None:
    """No moves, no answers."""
    assert await apply(db) == []


@st.composite
def story(draw: st.DrawFn) -> tuple[int, list[tuple[str, bool, Usage | None]]]:
    """A credit, and requests: an account's name, whether it is ended in the second batch, and with what usage."""
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
    """Two stores: one moves together, the other one by one."""

    def __init__(self, together: Database, alone: Database) -> None:
        self.stores = (together, alone)
        self.numbers = itertools.count()

    async def move(self, moves: Sequence[Move]) -> list[list[Answer]]:
        together, alone = self.stores
        return [await apply(together, *moves), await alone.transact(lambda connection: one_by_one(connection, moves))]

    async def seen(self, accounts: dict[str, str]) -> list[object]:
        """What each of the two has, in the words of the other."""
        return [
            (
                [await money(db, account) for account in accounts.values()],
                [sorted(map(str, await rows_of(db, table))) for table in (holds, usage)],
                sorted((row.account_id, row.amount_nano, str(row.request_id)) for row in await rows_of(db, entries)),
                await findings(db),
            )
            for db in self.stores
        ]


def one_by_one(connection: Executor, moves: Sequence[Move]) -> list[Answer]:
    """In the order of a batch: by account, the ends first."""
    order = sorted(
        range(len(moves)), key=lambda place: (moves[place].what.account_id, isinstance(moves[place].what, Hold))
    )
    answers: dict[int, Answer] = {}
    for place in order:
        what = moves[place].what
        answers[place] = (
            ledger.end_hold(connection, what) if isinstance(what, End) else ledger.take_hold(connection, what, OWNER)
        )
    return [answers[place] for place in range(len(moves))]


def test_together_is_as_one_by_one(make_pair: tuple[str, str]) -> None:
    """Whatever is held and ended in two batches, on accounts that can pay or not, leaves the same in every table."""
    with asyncio.Runner() as runner:
        bed = Bed(*(Database(url) for url in make_pair))
        for db in bed.stores:
            runner.run(migrate(db))

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(story())
        def agree(told: tuple[int, list[tuple[str, bool, Usage | None]]]) -> None:
            runner.run(tell(bed, *told))

        agree()
        for db in bed.stores:
            runner.run(db.close())


async def tell(bed: Bed, credit_nano: int, requests: list[tuple[str, bool, Usage | None]]) -> None:
    names = {name: f"{name}{next(bed.numbers)}" for name in "ab"}
    for db, account in itertools.product(bed.stores, names.values()):
        await fund(db, credit_nano, account)
    begun = [make_hold(f"r{next(bed.numbers):06d}", account=names[name]) for name, _, _ in requests]
    first = await bed.move([Move(hold) for hold in begun])
    assert first[0] == first[1]
    second = []
    for hold, answer, (_, is_ended, counted) in zip(begun, first[0], requests, strict=True):
        if isinstance(answer, Held) and is_ended:
            within = counted and Usage(counted.prompt_tokens, min(counted.completion_tokens, answer.allowance_tokens))
            end = make_end(hold.request_id, within, account=hold.account_id.removeprefix("acct_"))
            second.append(Move(end, known(hold, answer.allowance_tokens)))
        else:
            again = make_hold(f"r{next(bed.numbers):06d}", account=hold.account_id.removeprefix("acct_"))
            second.append(Move(again))
    answers = await bed.move(second)
    assert answers[0] == answers[1]
    together, alone = await bed.seen(names)
    assert together == alone
    assert PRICE.quote(100, 50) == WHOLE_NANO
