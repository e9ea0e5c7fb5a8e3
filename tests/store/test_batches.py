"""A batch in the store: one transaction for the moves of many accounts, and what it answers is what the store has."""

import asyncio
import itertools

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cadenza.core.records import Usage
from cadenza.ledger import transaction
from cadenza.ledger.rules import Demand, End, HeldCredit, Hold
from cadenza.ledger.transaction import AccountMoves, Applied
from cadenza.store.address import open_store
from cadenza.store.schema import entries, reserves, usage
from cadenza.store.store import Store
from tests.store.moves import (
    PATIENCE_S,
    PROCESS,
    findings,
    fund,
    make_hold,
    make_outcome,
    money,
    register,
    reserves_of,
    take,
)
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of

WHOLE_NANO = 2500  # the amount of an ordinary hold
EXAMPLES = 25


def ended(name: str, counted: Usage | None, account: str = "a") -> End:
    hold = make_hold(name, account=account)
    return End(make_outcome(name, counted, account=account), hold, WHOLE_NANO, hold.due_nano(counted))


def moves(account: str, ends: list[End], names: list[str], *, kept_nano: int = 0, times: int = 0) -> AccountMoves:
    wanted = [msgspec.structs.replace(make_hold(name, account=account), is_final=True) for name in names]
    return AccountMoves(f"acct_{account}", Demand(kept_nano, kept_nano, times * WHOLE_NANO, WHOLE_NANO), ends, wanted)


async def apply(store: Store, *batch: AccountMoves) -> dict[str, Applied]:
    await register(store)
    return await store.transact(lambda tx: transaction.apply_moves(tx, PROCESS, batch, NOW_MS))


async def test_a_reserve_of_the_same_size_may_get_a_spare_part_and_lose_it(rich: Store) -> None:
    """Other processes ask for credit by what the reserve says it can spare."""
    await take(rich, make_hold("r1"))
    found = []
    for in_use_nano in (WHOLE_NANO, WHOLE_NANO, 0, 0, WHOLE_NANO):
        await apply(rich, AccountMoves("acct_a", Demand(WHOLE_NANO, in_use_nano, 0, WHOLE_NANO), [], []))
        [row] = await rows_of(rich, reserves)
        found.append((row.amount_nano, bool(row.has_spare)))
    assert found == [(WHOLE_NANO, is_spare) for is_spare in (False, False, True, True, False)]


async def test_the_accounts_of_a_batch_do_not_touch_each_other(store: Store) -> None:
    """What a batch does to an account, it does to it alone too: a store could have each account elsewhere."""

    def batch(first: str, second: str) -> list[AccountMoves]:
        made = [ended(f"{first}1", Usage(90, 20), first), ended(f"{second}1", Usage(10, 3), second)]
        poor = moves(second, made[1:], [f"{second}{number}" for number in range(2, 9)])
        return [moves(first, made[:1], [f"{first}2", f"{first}3"], times=3), poor]

    for name in "abcd":
        await fund(store, DOLLAR_NANO if name in "ac" else 5 * WHOLE_NANO, name)
        await take(store, make_hold(f"{name}1", account=name))
    together = await apply(store, *batch("a", "b"))
    alone = [await apply(store, one) for one in batch("c", "d")]

    def numbers(applied: Applied) -> list[object]:
        answers = [(type(one), getattr(one, "amount_nano", None)) for one in applied.answers]
        return [*msgspec.structs.astuple(applied.account)[1:], *answers, *[one.charged_nano for one in applied.ended]]

    assert list(map(numbers, together.values())) == [numbers(applied) for one in alone for applied in one.values()]
    assert [await money(store, name) for name in "ab"] == [await money(store, name) for name in "cd"]


story = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.lists(st.none() | st.builds(Usage, st.integers(0, 100), st.integers(0, 90)), max_size=3),
        st.integers(0, 3),
        st.integers(0, 12),
    ),
    max_size=6,
)


def test_the_store_has_what_a_batch_answers(url: str) -> None:
    """After any batches the accounts, reserves, entries and metering rows are those of the answers."""
    with asyncio.Runner() as runner:
        store, numbers = open_store(url, PATIENCE_S), itertools.count()

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(st.integers(0, 400 * WHOLE_NANO), story)
        def agree(credit_nano: int, told: list[tuple[str, list[Usage | None], int, int]]) -> None:
            runner.run(tell(store, numbers, credit_nano, told))

        try:
            agree()
        finally:
            runner.run(store.close())


async def tell(
    store: Store,
    numbers: "itertools.count[int]",
    credit_nano: int,
    told: list[tuple[str, list[Usage | None], int, int]],
) -> None:
    names = {name: f"{name}{next(numbers)}" for name in "ab"}
    running: dict[str, list[tuple[Hold, int]]] = {name: [] for name in "ab"}
    charged_nano = dict.fromkeys("ab", 0)
    for account in names.values():
        await fund(store, credit_nano, account)
    for name, counts, new, times in told:
        ends = []
        for counted in counts[: len(running[name])]:
            hold, held_nano = running[name].pop(0)
            outcome = make_outcome(hold.completion_id, counted, account=names[name])
            ends.append(End(outcome, hold, held_nano, hold.due_nano(counted)))
        wanted = [make_hold(f"r{next(numbers):06d}", account=names[name]) for _ in range(new)]
        kept_nano = sum(held_nano for _, held_nano in running[name])
        batch = moves(names[name], ends, [hold.completion_id for hold in wanted], kept_nano=kept_nano, times=times)
        [applied] = (await apply(store, batch)).values()
        charged_nano[name] += sum(one.charged_nano for one in applied.ended)
        answers = zip(wanted, applied.answers, strict=True)
        running[name] += [(hold, one.amount_nano) for hold, one in answers if isinstance(one, HeldCredit)]
        now = applied.account
        assert await money(store, names[name]) == (now.balance_nano, now.held_nano)
        assert (await reserves_of(store, names[name])).get(PROCESS, 0) == now.reserve_nano == now.held_nano
        assert now.balance_nano == credit_nano - charged_nano[name]
    ids = {f"acct_{account}" for account in names.values()}
    charges = [row for row in await rows_of(store, entries) if row.kind == "charge" and row.account_id in ids]
    assert -sum(row.amount_nano for row in charges) == sum(charged_nano.values())
    metered = [row for row in await rows_of(store, usage) if row.account_id in ids]
    assert sum(row.cost_nano for row in metered) == sum(charged_nano.values())
    assert await findings(store) == []
