"""The ledger against a model of it in plain Python: after any sequence of moves the two agree and the audit is clean.

A failing run prints its moves, and the blob that replays them.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from cadenza.core.money import Price
from cadenza.core.records import Usage
from cadenza.store import ledger
from cadenza.store.address import open_store
from cadenza.store.ledger import Ended, Held, Hold
from cadenza.store.migrate import migrate
from cadenza.store.store import Store, Transaction
from tests.store.moves import findings, finish, fund, make_hold, make_outcome, money, take
from tests.store.rows import NOW_MS

T = TypeVar("T")
PRICES = (Price(10, 30, 2), Price(7, 11), Price(3, 0), Price(0, 5, 0), Price(0, 0))
OWNERS = ("proc_a", "proc_b")
RUNS = {"sqlite": (35, 30), "postgresql": (10, 20)}  # examples, and moves of each


class Open(msgspec.Struct, frozen=True):
    """An open hold of the model: its request, its owner, and how much was held."""

    hold: Hold
    owner: str
    tokens: int
    amount_nano: int


class Model:
    """What the ledger must do."""

    def __init__(self) -> None:
        self.balance_nano = 0
        self.open: dict[str, Open] = {}
        self.marks: dict[str, int] = {}

    @property
    def held_nano(self) -> int:
        return sum(one.amount_nano for one in self.open.values())

    def hold(self, hold: Hold, owner: str) -> int | None:
        """Find the most output tokens that can be paid by trying each number."""
        for tokens in range(hold.allowance_tokens, min(16, hold.allowance_tokens) - 1, -1):
            amount_nano = hold.prompt_tokens * hold.price.input_nano + tokens * hold.price.output_nano
            if amount_nano <= self.balance_nano - self.held_nano:
                self.open[hold.completion_id] = Open(hold, owner, tokens, amount_nano)
                return tokens
        return None

    def end(self, completion_id: str, due_nano: int) -> int:
        """Return how much of it could be charged."""
        del self.open[completion_id]
        charged_nano = min(due_nano, self.balance_nano - self.held_nano)
        self.balance_nano -= charged_nano
        return charged_nano

    def due(self, completion_id: str, usage: Usage) -> int:
        price = self.open[completion_id].hold.price
        cached_nano = price.input_nano if price.cached_input_nano is None else price.cached_input_nano
        fresh_tokens = usage.prompt_tokens - usage.cached_tokens
        return (
            fresh_tokens * price.input_nano
            + usage.cached_tokens * cached_nano
            + usage.completion_tokens * price.output_nano
        )


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    prompt_tokens = draw(st.integers(0, 300))
    return Usage(prompt_tokens, draw(st.integers(0, 120)), draw(st.integers(0, prompt_tokens)), draw(st.booleans()))


class LedgerMachine(RuleBasedStateMachine):
    """Uses an account of its own on a store that earlier runs have used."""

    requests: "Bundle[str]" = Bundle("requests")

    def __init__(self, runner: asyncio.Runner, store: Store, numbers: Iterator[int]) -> None:
        super().__init__()
        self.run = runner.run
        self.db = store
        self.numbers = numbers
        self.model = Model()
        self.account = f"m{next(numbers)}"
        self.owners = {owner: f"{owner}_{self.account}" for owner in OWNERS}

    def transact(self, work: Callable[[Transaction], T]) -> T:
        return self.run(self.db.transact(work))

    @initialize()
    def make_account(self) -> None:
        self.run(fund(self.db, 0, self.account))

    @rule(amount_nano=st.integers(1, 6000))
    def grant(self, amount_nano: int) -> None:
        self.model.balance_nano += amount_nano
        account_id = f"acct_{self.account}"
        balance_nano = self.transact(lambda tx: ledger.grant(tx, account_id, amount_nano, "", NOW_MS))
        assert balance_nano == self.model.balance_nano

    @rule(
        target=requests,
        prompt_tokens=st.integers(0, 200),
        allowance_tokens=st.integers(1, 60),
        price=st.sampled_from(PRICES),
        owner=st.sampled_from(OWNERS),
    )
    def hold(self, prompt_tokens: int, allowance_tokens: int, price: Price, owner: str) -> str:
        hold = make_hold(
            f"r{next(self.numbers)}",
            prompt_tokens=prompt_tokens,
            allowance_tokens=allowance_tokens,
            price=price,
            account=self.account,
        )
        tokens = self.model.hold(hold, owner)
        answer = self.run(take(self.db, hold, self.owners[owner]))
        if tokens is None:
            assert isinstance(answer, ledger.Insufficient)
            assert answer.free_nano == self.model.balance_nano - self.model.held_nano < answer.needed_nano
        else:
            assert answer == Held(tokens, self.model.balance_nano - self.model.held_nano)
        return hold.completion_id

    @rule(completion_id=requests, usage=usages())
    def settle(self, completion_id: str, usage: Usage) -> None:
        ended = self.run(finish(self.db, make_outcome(completion_id, usage, account=self.account)))
        if completion_id in self.model.open:
            due_nano = self.model.due(completion_id, usage)
            charged_nano = self.model.end(completion_id, due_nano)
            assert ended == Ended(True, charged_nano, due_nano - charged_nano)
        else:
            assert ended == Ended(is_first=False)

    @rule(completion_id=requests)
    def release(self, completion_id: str) -> None:
        ended = self.run(finish(self.db, make_outcome(completion_id, account=self.account)))
        assert ended == Ended(is_first=completion_id in self.model.open)
        if ended.is_first:
            self.model.end(completion_id, 0)

    @rule(completion_id=requests, tokens=st.integers(0, 60))
    def mark(self, completion_id: str, tokens: int) -> None:
        """Stay within the hold: above it, the order in which a sweep ends holds would decide which one is short."""
        if completion_id in self.model.open:
            tokens = min(tokens, self.model.open[completion_id].tokens)
            self.model.marks[completion_id] = max(tokens, self.model.marks.get(completion_id, 0))
        hold = self.model.open[completion_id].hold if completion_id in self.model.open else make_hold(completion_id)
        marks = {completion_id: Usage(hold.prompt_tokens, tokens)}
        self.transact(lambda tx: ledger.mark_delivered(tx, marks))

    @rule(owner=st.sampled_from(OWNERS))
    def crash(self, owner: str) -> None:
        left_open = [name for name, one in self.model.open.items() if one.owner == owner]
        for completion_id in left_open:
            tokens = self.model.marks.get(completion_id, 0)
            delivered = Usage(self.model.open[completion_id].hold.prompt_tokens, tokens)
            self.model.end(completion_id, self.model.due(completion_id, delivered) if tokens else 0)
        name = self.owners[owner]
        ended = self.transact(lambda tx: ledger.end_holds_of(tx, name, NOW_MS + 1))
        assert sorted(outcome.completion_id for outcome in ended) == sorted(left_open)

    @invariant()
    def agrees(self) -> None:
        assert self.run(money(self.db, self.account)) == (self.model.balance_nano, self.model.held_nano)
        assert 0 <= self.model.held_nano <= self.model.balance_nano
        assert self.run(findings(self.db)) == []


def test_any_order_of_moves_agrees_with_the_model(url: str) -> None:
    """Grants, holds, ends, double ends, marks and crashes in any order move what the model moves."""
    examples, steps = RUNS[url.partition(":")[0]]
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    with asyncio.Runner() as runner:
        store = open_store(url, 60.0)
        try:
            runner.run(migrate(store))
            numbers = itertools.count()
            run_state_machine_as_test(lambda: LedgerMachine(runner, store, numbers), settings=chosen)  # type: ignore[arg-type]
        finally:
            runner.run(store.close())
