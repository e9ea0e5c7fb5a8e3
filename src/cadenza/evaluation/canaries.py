"""The canaries of a process: it counts how requests ended, and adds its counts to the store once a second.

A process that finds that the canary must step up or roll back does it, in one transaction with the audit event and the
epoch. What was counted is stored before, so a process may be killed at any point: the next look decides the same. If
the store does not answer, counts wait in memory, and no client notices.

Accounts stay on one side, so requests of one account are not independent, and accounts differ. Therefore an account
counts once in `account_every_ms` and `account_requests` times an hour, on both sides, and a request that an upstream
calls invalid counts once an hour. Only requests that began in this step count: the first answers of a candidate that
end are its short ones, and must not be compared with all of the incumbent's.
"""

import asyncio
import contextlib
from collections.abc import Callable
from zlib import crc32

import msgspec

from cadenza import clock
from cadenza.core.classes import WHOLE, ClassState, main_of
from cadenza.core.records import Outcome
from cadenza.evaluation.canary import (
    ACCOUNT_BITS,
    GROUPS,
    HOUR_MS,
    MEASURES,
    Block,
    CanaryState,
    NextStep,
    SideCounts,
    StepRules,
    bin_of,
    decide,
    decode,
    encode,
)
from cadenza.fleet.changes import make_change
from cadenza.observe import Observer
from cadenza.routing.catalogue import Catalogue, ServedClass
from cadenza.store.store import Store, StoreUnavailable, Transaction
from cadenza.store.tables import audit_events, class_versions, epochs
from cadenza.store.tables.audit_events import AuditEvent

ACTOR = "canary"  # in the audit log
ACCOUNT_REQUESTS = 5
ACCOUNTS_MAX = 20_000  # that a process remembers; then it begins anew
STOP_S = 2.0
INVALID = "invalid"  # the fault of an upstream that calls a request invalid
CUT = frozenset({"length", "content_filter"})


class CanaryRules(msgspec.Struct, frozen=True, kw_only=True):
    """How often a process adds its counts, how much one account counts, and when a canary steps up."""

    every_s: float = 1.0
    account_every_ms: int = 10_000
    account_requests: int = ACCOUNT_REQUESTS  # in an hour
    steps: StepRules = StepRules()


USUAL_RULES = CanaryRules()


class StepCounter:
    """Counts the requests of one class during one step of its canary."""

    def __init__(self, served: ServedClass, rules: CanaryRules, now_ms: int) -> None:
        assert served.candidate
        self.class_id = served.plan.class_id
        self.step = (served.candidate.version, served.share)
        self.blocks = new_blocks()  # by group of accounts
        self._rules = rules
        self._began_at = self._hour_at = now_ms
        self._versions = (served.version, served.candidate.version)
        self._main = {
            one.version: {(route.provider, route.model) for route in main_of(one.plan.routes)}
            for one in (served, served.candidate)
        }
        self._accounts: dict[str, tuple[int, int]] = {}  # how often each counted, and from when on it does again
        self._refused: set[str] = set()

    def take(self, outcome: Outcome) -> None:
        if outcome.version not in self._versions or outcome.ended_at - outcome.duration_ms < self._began_at:
            return
        seen = observe(outcome, self._main[outcome.version])
        if seen is None or not self._counts(outcome):
            return
        place = crc32(outcome.account_id.encode()) % ACCOUNT_BITS
        block = self.blocks[place % GROUPS]
        if outcome.version == self.step[0]:
            block.candidate.add(seen)
            block.accounts |= 1 << place
        else:
            block.incumbent.add(seen)

    def take_blocks(self) -> list[Block]:
        blocks, self.blocks = self.blocks, new_blocks()
        return blocks

    def _counts(self, outcome: Outcome) -> bool:
        now_ms, account_id, rules = outcome.ended_at, outcome.account_id, self._rules
        if now_ms - self._hour_at >= HOUR_MS or len(self._accounts) > ACCOUNTS_MAX:
            self._hour_at = now_ms
            self._accounts.clear()
            self._refused.clear()
        count, from_ms = self._accounts.get(account_id, (0, 0))
        if count >= rules.account_requests or now_ms < from_ms:
            return False
        if outcome.fault == INVALID:
            if account_id in self._refused:
                return False
            self._refused.add(account_id)
        self._accounts[account_id] = (count + 1, now_ms + rules.account_every_ms)
        return True


def new_blocks() -> list[Block]:
    return [Block() for _ in range(GROUPS)]


def observe(outcome: Outcome, main: set[tuple[str, str]]) -> SideCounts | None:
    """What a request says about its version. None: nothing, as its client or this service ended it.

    An error is a request that the main routes did not answer, even if a fallback did.
    """
    side = SideCounts(requests=1)
    if outcome.status == 200 and (outcome.provider, outcome.model) in main:
        side.answers = 1
        side.cut = outcome.finish_reason in CUT
        # A reply that is not streamed is charged before its first byte is sent.
        first_ms = outcome.duration_ms if outcome.first_byte_ms is None else outcome.first_byte_ms
        side.first_token = {bin_of(first_ms): 1}
        if outcome.usage:
            side.length = {bin_of(outcome.usage.completion_tokens): 1}
        return side
    by_upstream = outcome.fault and outcome.status in (400, 429, 502)
    if outcome.status in (200, 502) or by_upstream or (outcome.status == 500 and outcome.provider):
        side.errors = 1
        return side
    return None


class Canaries:
    """The canaries of all classes, as one process sees them. `catalogue` returns the one of new requests."""

    def __init__(
        self,
        store: Store,
        observer: Observer,
        catalogue: Callable[[], Catalogue],
        rules: CanaryRules = USUAL_RULES,
    ) -> None:
        self._store = store
        self._observer = observer
        self._catalogue = catalogue
        self._rules = rules
        self._counters: dict[str, StepCounter] = {}
        self._failing: set[str] = set()  # classes whose canary cannot be followed, as the log says

    async def stop(self) -> None:
        """Add what was counted since the last look."""
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(STOP_S):
                for class_id, counter in self._counters.items():
                    if class_id not in self._failing:
                        await self._add(counter)

    async def poll(self) -> None:
        """Add what was counted to the store, and do what follows from it."""
        self._follow()
        for class_id, counter in self._counters.items():
            try:
                if await self._add(counter):
                    self._observer.at("canary-decided")
                    await self._change(counter)
                    self._observer.at("canary-changed")
            except StoreUnavailable:
                continue
            except Exception as error:  # noqa: BLE001 counts that cannot be read must not end the other canaries
                if class_id not in self._failing:
                    self._failing.add(class_id)
                    reason = f"{type(error).__name__}: end it with 'cadenza class rollback {class_id}'"
                    self._observer.log.error("a canary cannot be followed", class_id=class_id, reason=reason)
            else:
                self._failing.discard(class_id)

    def _follow(self) -> None:
        """Count the requests of those classes that have a canary now."""
        now_ms, share_of = clock.now_ms(), self._observer.metrics.canary_share
        for served in self._catalogue().served():
            class_id, candidate, before = (
                served.plan.class_id,
                served.candidate,
                self._counters.get(served.plan.class_id),
            )
            share_of.labels(class_id).set(served.share)
            if candidate is None:
                if before:
                    del self._counters[class_id], self._observer.watched[class_id]
            elif before is None or before.step != (candidate.version, served.share):
                counter = self._counters[class_id] = StepCounter(served, self._rules, now_ms)
                self._observer.watched[class_id] = counter.take
                for measure in MEASURES:  # from zero on: Prometheus sees no increase in a series that begins at 1
                    self._observer.metrics.canary_rollbacks.labels(class_id, measure)

    async def _add(self, counter: StepCounter) -> NextStep | None:
        """Add the counts to the stored state. Counts of a step that has ended are dropped."""
        blocks, now_ms = counter.take_blocks(), clock.now_ms()

        def add(tx: Transaction) -> NextStep | None:
            found = self._find(tx, counter)
            if found is None:
                return None
            state, canary = found
            if not all(block.is_empty for block in blocks):
                canary.add_groups(blocks)
                class_versions.set_canary(tx, counter.class_id, encode(canary))
                self._observer.at("canary-added")
            return decide(canary, state.share, now_ms - state.changed_at, self._rules.steps)

        try:
            decision = await self._store.transact(add)
        except StoreUnavailable:
            for mine, block in zip(counter.blocks, blocks, strict=True):
                mine.add(block)
            raise
        for block in blocks:
            for side, count in (("candidate", block.candidate.requests), ("incumbent", block.incumbent.requests)):
                self._observer.metrics.canary_requests.add(counter.class_id, side, amount=count)
        return decision

    async def _change(self, counter: StepCounter) -> None:
        """Step up or roll back, unless another process or an operator came first."""
        now_ms = clock.now_ms()

        def change(tx: Transaction) -> tuple[NextStep, int] | None:
            found = self._find(tx, counter)
            if found is None:
                return None
            state, canary = found
            decision = decide(canary, state.share, now_ms - state.changed_at, self._rules.steps)
            if decision is None or state.candidate is None:
                return None
            is_changed = class_versions.change_state(tx, next_state(state, canary, decision), now_ms)
            assert is_changed, "the state is locked"
            event, detail = say(state, decision)
            audit_events.add(tx, AuditEvent(now_ms, ACTOR, event, subject=counter.class_id, detail=detail))
            epochs.begin_next(tx, epochs.CLASSES)
            return decision, state.candidate.number

        if (done := await make_change(self._store, change)) is None:
            return
        decision, number = done
        log, about = self._observer.log, {"class_id": counter.class_id, "candidate": number, "reason": decision.reason}
        if decision.share:
            log.info("a canary steps up", share=decision.share, **about)
        else:
            self._observer.metrics.canary_rollbacks.labels(counter.class_id, decision.measure).inc()
            log.warning("a canary was rolled back", **about)

    def _find(self, tx: Transaction, counter: StepCounter) -> tuple[ClassState, CanaryState] | None:
        """The state of the class, locked, if its canary is still in the step that was counted."""
        state = class_versions.get_state(tx, counter.class_id)
        if state is None or state.candidate is None or (state.candidate.number, state.share) != counter.step:
            return None
        return state, decode(state.canary)


def next_state(state: ClassState, canary: CanaryState, decision: NextStep) -> ClassState:
    if 0 < decision.share < WHOLE:
        canary.begin_step()
        return msgspec.structs.replace(state, share=decision.share, canary=encode(canary))
    return state.serving(state.candidate if decision.share and state.candidate else state.version)


def say(state: ClassState, decision: NextStep) -> tuple[str, str]:
    """The audit event and its detail."""
    number, before = state.candidate.number if state.candidate else 0, state.version.number
    if not decision.share:
        return "class.rollback", f"the canary of version {number} ended, version {before} stays: {decision.reason}"
    if decision.share == WHOLE:
        return "class.promote", f"version {number} instead of {before}: {decision.reason}"
    return "class.share", f"version {number} for {decision.share}% of accounts: {decision.reason}"
