"""Several writers against a model of the money in plain Python: after any sequence of moves the two agree.

A failing run prints its moves, and the blob that replays them.
"""

import asyncio
import contextlib
import itertools

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from cadenza.core.money import Price
from cadenza.core.records import Cap, Period, Usage
from cadenza.ledger import cap_rows, credit
from cadenza.ledger.rules import Ended, Held, Hold, Insufficient
from cadenza.store.store import Store
from tests.store.moves import (
    ALONE,
    PATIENCE_S,
    QUIET,
    ProcessWriter,
    cap_of,
    findings,
    fund,
    make_hold,
    make_outcome,
    money,
    opened,
    sweep_process,
    writing,
)
from tests.store.rows import NOW_MS, add_key

PRICES = (Price(10, 30, 2), Price(7, 11), Price(3, 0), Price(0, 5, 0), Price(0, 0))
WRITERS = 3
TIMING = msgspec.structs.replace(ALONE, ask_s=10.0)
RUNS = {"sqlite": (25, 25), "postgresql": (15, 20)}  # examples, and moves of each
DAY_MS = 24 * 60 * 60 * 1000
MONTHS = (NOW_MS, NOW_MS + 31 * DAY_MS)  # two times in two calendar months


class Open(msgspec.Struct, frozen=True):
    """A running request of the model: its hold, its writer, and how much is held for it."""

    hold: Hold
    writer: int
    amount_nano: int
    is_capped: bool = False
    process: str = ""  # that took the hold


class Model:
    """What the ledger must do with one account. One of its keys may have a spend cap."""

    def __init__(self) -> None:
        self.balance_nano = 0
        self.open: dict[str, Open] = {}
        self.capped_key = ""
        self.cap: Cap | None = None
        self.spent_nano = dict.fromkeys(MONTHS, 0)  # by the capped key

    @property
    def held_nano(self) -> int:
        return sum(one.amount_nano for one in self.open.values())

    @property
    def free_nano(self) -> int:
        return self.balance_nano - self.held_nano

    @property
    def cap_held_nano(self) -> int:
        return sum(one.amount_nano for one in self.open.values() if one.is_capped)

    def cap_left_nano(self, hold: Hold) -> int | None:
        """What the cap of the hold's key leaves; None if it has no cap."""
        if self.cap is None or hold.key_id != self.capped_key:
            return None
        is_total = self.cap.period == "total"
        spent_nano = sum(self.spent_nano.values()) if is_total else self.spent_nano[hold.started_at]
        return max(0, self.cap.limit_nano - spent_nano - self.cap_held_nano)

    def payable_nano(self, hold: Hold) -> int:
        left_nano = self.cap_left_nano(hold)
        return self.free_nano if left_nano is None else min(self.free_nano, left_nano)

    def payable_tokens(self, hold: Hold) -> int | None:
        """Find the most output tokens that can be paid by trying each number."""
        for tokens in range(hold.allowance_tokens, min(16, hold.allowance_tokens) - 1, -1):
            if amount_of(hold, tokens) <= self.payable_nano(hold):
                return tokens
        return None


def amount_of(hold: Hold, tokens: int) -> int:
    return hold.prompt_tokens * hold.price.input_nano + tokens * hold.price.output_nano


def due_of(price: Price, counted: Usage | None) -> int:
    if counted is None:
        return 0
    cached_nano = price.input_nano if price.cached_input_nano is None else price.cached_input_nano
    fresh_tokens = counted.prompt_tokens - counted.cached_tokens
    cached = counted.cached_tokens * cached_nano
    return fresh_tokens * price.input_nano + cached + counted.completion_tokens * price.output_nano


@st.composite
def usages(draw: st.DrawFn) -> Usage | None:
    if draw(st.booleans()):
        return None
    prompt_tokens = draw(st.integers(0, 300))
    return Usage(prompt_tokens, draw(st.integers(0, 120)), draw(st.integers(0, prompt_tokens)), draw(st.booleans()))


class Bed:
    """Writers with stores of their own on one database, which all runs use."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        self.run = runner.run
        self.numbers = itertools.count()
        self.writers: list[ProcessWriter] = []
        self._url = url
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        self.store: Store = await self._stack.enter_async_context(opened(self._url, PATIENCE_S))
        for _ in range(WRITERS):
            store = await self._stack.enter_async_context(opened(self._url, PATIENCE_S))
            writer, _ = await self._stack.enter_async_context(
                writing(store, timing=TIMING, bounds=QUIET, timeout_s=None)
            )
            self.writers.append(writer)

    async def stop(self) -> None:
        await self._stack.aclose()


class LedgerMachine(RuleBasedStateMachine):
    """Uses an account of its own."""

    requests: "Bundle[str]" = Bundle("requests")

    def __init__(self, bed: Bed) -> None:
        super().__init__()
        self.bed = bed
        self.run = bed.run
        self.model = Model()
        self.account = f"m{next(bed.numbers)}"
        self.model.capped_key = f"key_{self.account}_capped"

    @initialize()
    def make_account(self) -> None:
        self.run(fund(self.bed.store, 0, self.account))
        self.run(add_key(self.bed.store, self.model.capped_key, account_id=f"acct_{self.account}"))

    @rule(limit_nano=st.integers(0, 12000), period=st.sampled_from(("total", "month")), at_ms=st.sampled_from(MONTHS))
    def set_cap(self, limit_nano: int, period: Period, at_ms: int) -> None:
        self.model.cap = Cap(limit_nano, period)
        self._write_cap(at_ms)

    @rule(at_ms=st.sampled_from(MONTHS))
    def remove_cap(self, at_ms: int) -> None:
        if not any(one.is_capped for one in self.model.open.values()):
            self.model.cap = None
            self._write_cap(at_ms)

    def _write_cap(self, at_ms: int) -> None:
        account_id, key_id, cap = f"acct_{self.account}", self.model.capped_key, self.model.cap
        self.run(self.bed.store.transact(lambda tx: cap_rows.set_cap(tx, account_id, key_id, cap, at_ms)))

    @rule(amount_nano=st.integers(1, 6000) | st.integers(10**6, 3 * 10**6))
    def grant(self, amount_nano: int) -> None:
        self.model.balance_nano += amount_nano
        work = self.bed.store.transact(lambda tx: credit.grant(tx, f"acct_{self.account}", amount_nano, "", NOW_MS))
        assert self.run(work) == self.model.balance_nano

    @rule(
        target=requests,
        prompt_tokens=st.integers(0, 200),
        allowance_tokens=st.integers(1, 60),
        price=st.sampled_from(PRICES),
        writer=st.integers(0, WRITERS - 1),
        with_capped_key=st.booleans(),
        started_at=st.sampled_from(MONTHS),
    )
    def hold(
        self,
        prompt_tokens: int,
        allowance_tokens: int,
        price: Price,
        writer: int,
        with_capped_key: bool,
        started_at: int,
    ) -> str:
        is_capped = with_capped_key and self.model.cap is not None
        hold = make_hold(
            f"r{next(self.bed.numbers)}",
            prompt_tokens=prompt_tokens,
            allowance_tokens=allowance_tokens,
            price=price,
            account=self.account,
            key_id=self.model.capped_key if with_capped_key else "",
            is_capped=is_capped,
            started_at=started_at,
        )
        tokens = self.model.payable_tokens(hold)
        answer = self.run(self.bed.writers[writer].hold(hold))
        if tokens is None:
            assert isinstance(answer, Insufficient)
            assert answer.free_nano == self.model.payable_nano(hold) < answer.needed_nano
            left_nano = self.model.cap_left_nano(hold)
            assert (answer.cap is not None) == (left_nano is not None and left_nano <= self.model.free_nano)
        else:
            amount_nano = amount_of(hold, tokens)
            assert isinstance(answer, Held)
            assert (answer.amount_nano, answer.allowance_tokens) == (amount_nano, tokens)
            assert answer.is_capped == is_capped
            process = self.bed.writers[writer].presence.name
            self.model.open[hold.completion_id] = Open(hold, writer, amount_nano, is_capped, process)
        return hold.completion_id

    @rule(completion_id=requests, counted=usages())
    def end(self, completion_id: str, counted: Usage | None) -> None:
        """A charge within the hold is exact; one beyond it takes free credit, and what the cap leaves."""
        if completion_id not in self.model.open:
            return
        one = self.model.open.pop(completion_id)
        most_nano = self.model.free_nano
        if one.is_capped:
            most_nano = min(most_nano, max(one.amount_nano, self.model.cap_left_nano(one.hold) or 0))
        ended = self._end(one, counted)
        due_nano = due_of(one.hold.price, counted)
        if one.process != self.bed.writers[one.writer].presence.name:
            # On SQLite, where no living process is ever swept, a swept writer may notice it only now: the end is late.
            assert ended.is_lost == (ended.charged_nano < min(due_nano, one.amount_nano))
            return
        assert min(due_nano, one.amount_nano) <= ended.charged_nano <= min(due_nano, most_nano)
        assert not ended.is_lost

    @rule(writer=st.integers(0, WRITERS - 1), counted=usages())
    def sweep(self, writer: int, counted: Usage | None) -> None:
        """Another process takes the writer for dead: all its requests are charged in full, or lost."""
        self.run(sweep_process(self.bed.store, self.bed.writers[writer].presence.name))
        for completion_id in [name for name, one in self.model.open.items() if one.writer == writer]:
            one = self.model.open.pop(completion_id)
            ended = self._end(one, counted)
            assert ended.is_lost == (ended.charged_nano < min(due_of(one.hold.price, counted), one.amount_nano))
        notice = make_hold("x", price=Price(0, 0), account=self.account, key=f"{next(self.bed.numbers):032}".encode())
        notice = msgspec.structs.replace(notice, completion_id=f"r{next(self.bed.numbers)}", allowance_tokens=1)
        assert isinstance(self.run(self.bed.writers[writer].hold(notice)), Held)
        self._end(Open(notice, writer, 0), None)

    def _end(self, one: Open, counted: Usage | None) -> Ended:
        outcome = make_outcome(one.hold.completion_id, counted, account=self.account)

        async def end() -> Ended:
            ended = await self.bed.writers[one.writer].end(outcome)
            assert isinstance(ended, Ended)
            return ended

        ended = self.run(end())
        assert ended.charged_nano + ended.short_nano == due_of(one.hold.price, counted)
        self.model.balance_nano -= ended.charged_nano
        if one.hold.key_id == self.model.capped_key:
            self.model.spent_nano[one.hold.started_at] += ended.charged_nano
        return ended

    @invariant()
    def agrees(self) -> None:
        balance_nano, held_nano = self.run(money(self.bed.store, self.account))
        assert balance_nano == self.model.balance_nano
        assert 0 <= self.model.held_nano <= held_nano <= balance_nano
        assert self.run(findings(self.bed.store)) == []
        self._agrees_on_cap()

    def _agrees_on_cap(self) -> None:
        found = self.run(cap_of(self.bed.store, self.model.capped_key))
        if self.model.cap is None:
            assert found is None
            return
        assert found is not None
        is_total = self.model.cap.period == "total"
        months = {202701: MONTHS[0], 202702: MONTHS[1]}
        assert found.spent_nano == (
            sum(self.model.spent_nano.values()) if is_total else self.model.spent_nano[months[found.month]]
        )
        assert found.held_nano == self.model.cap_held_nano

    def teardown(self) -> None:
        for one in self.model.open.values():
            self._end(one, None)


def test_any_order_of_moves_agrees_with_the_model(url: str) -> None:
    """Grants, caps, holds, ends and sweeps of living processes, over several writers, do what the model does."""
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
        bed = Bed(runner, url)
        runner.run(bed.start())
        try:
            run_state_machine_as_test(lambda: LedgerMachine(bed), settings=chosen)  # type: ignore[arg-type]
        finally:
            runner.run(bed.stop())
