"""What the ledger answers to each request for credit, beside what account and cap could pay at that time.

`WatchedLedger` is the real ledger and says what it was asked and what it answered. The rules:

- a request gets as many tokens as its account and its cap can pay for, less what other requests hold or wait for;
- what a process holds in memory is covered by its reserve in the store;
- a process that was swept holds nothing in memory.
"""

import asyncio
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from cadenza.core.records import Outcome
from cadenza.core.spans import month_of
from cadenza.core.tokens import OUTPUT_TOKENS_MIN
from cadenza.ledger.backlog import Answer
from cadenza.ledger.rules import HeldCredit, Hold, Insufficient, Repeated
from cadenza.ledger.writer import LedgerWriter

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

CAP = itemgetter("period", "limit_nano", "month", "spent_nano")
ABANDONED_S = 1.0  # how long the hold of a client that left before it was taken may last


class WatchedLedger(LedgerWriter):
    """The ledger of a process. `watch` is told of every hold and of every end."""

    watch: "HoldWatch | None" = None
    process: "Process"

    def hold_now(self, hold: Hold) -> HeldCredit | None:
        held = super().hold_now(hold)
        if held and self.watch and not self.watch.is_waiting(hold):
            self.watch.answered(self.watch.asked(self.process, hold), held)
        return held

    async def hold(self, hold: Hold) -> HeldCredit | Insufficient | Repeated:
        if self.watch is None:
            return await super().hold(hold)
        claim = self.watch.asked(self.process, hold)
        try:
            answer = await super().hold(hold)
        except BaseException:
            self.watch.abandoned(claim)
            raise
        self.watch.answered(claim, answer)
        return answer

    def end(self, outcome: Outcome) -> "asyncio.Future[Answer]":
        if self.watch is not None:
            self.watch.ended(outcome.completion_id)
        return super().end(outcome)


class Claim(msgspec.Struct):
    """The credit that a request waits for or holds, at most."""

    process: Any
    name: str  # of the process, in the store
    hold: Hold
    amount_nano: int
    asked_s: float
    payable_nano: int  # the least that account and cap could pay while it waited
    is_running: bool = False
    is_abandoned: bool = False  # nobody waits for its answer


class HoldWatch:
    """Judges the answers of all ledgers of a run."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._claims: dict[str, Claim] = {}
        self._waiting: dict[str, dict[str, Claim]] = defaultdict(dict)  # by account
        self._running: dict[str, dict[str, int]] = defaultdict(dict)  # by account and name: what runs holds
        self._of_account: dict[str, int] = defaultdict(int)
        self._of_key: dict[str, int] = defaultdict(int)
        self._rows = world.database.rows

    def asked(self, process: "Process", hold: Hold) -> Claim:
        if before := self._claims.pop(hold.completion_id, None):  # it asks again, with its prompt counted
            self._change(before, -before.amount_nano)
        now_s = self._world.scheduler.now_s
        price = self._world.chat_of[hold.completion_id].price
        most_nano = price.cost(hold.prompt_tokens, hold.allowance_tokens + hold.extra_tokens)
        claim = Claim(process, process.presence.name, hold, most_nano, now_s, 2**62)
        self._claims[hold.completion_id] = self._waiting[hold.account_id][hold.completion_id] = claim
        self._change(claim, claim.amount_nano)
        self._look(claim)
        return claim

    def is_waiting(self, hold: Hold) -> bool:
        return hold.completion_id in self._waiting[hold.account_id]

    def answered(self, claim: Claim, answer: HeldCredit | Insufficient | Repeated) -> None:
        del self._waiting[claim.hold.account_id][claim.hold.completion_id]
        self._look(claim)
        chat = self._world.chat_of[claim.hold.completion_id]
        chat.answer, chat.registered_as = answer, claim.name
        if isinstance(answer, HeldCredit):
            self._change(claim, answer.amount_nano - claim.amount_nano)
            claim.amount_nano = answer.amount_nano
            self._set_running(claim, is_running=True)
            if claim.asked_s == self._world.scheduler.now_s:
                self._check_registered(claim)
                self._check_covered(claim.hold.account_id)
        else:
            self._drop(claim)
        if not isinstance(answer, Repeated) and (isinstance(answer, HeldCredit) or claim.hold.is_counted):
            self._judge(claim, answer)

    def abandoned(self, claim: Claim) -> None:
        """The client left, or the store did not answer: the hold may be taken, and is given back."""
        del self._waiting[claim.hold.account_id][claim.hold.completion_id]
        claim.is_abandoned = True
        self._world.scheduler.after(ABANDONED_S, self._drop, claim)

    def ended(self, completion_id: str) -> None:
        """What is due stays reserved until it is charged."""
        self._set_running(self._claims[completion_id], is_running=False)

    def charged(self, completion_id: str) -> None:
        """The request is over, and its charge is durable."""
        claim = self._claims.get(completion_id)
        if claim and not claim.is_abandoned:
            self._drop(claim)

    def _drop(self, claim: Claim) -> None:
        if self._claims.get(claim.hold.completion_id) is claim:
            del self._claims[claim.hold.completion_id]
            self._set_running(claim, is_running=False)
            self._change(claim, -claim.amount_nano)

    def _set_running(self, claim: Claim, *, is_running: bool) -> None:
        if is_running != claim.is_running:
            claim.is_running, held = is_running, self._running[claim.hold.account_id]
            held[claim.name] = held.get(claim.name, 0) + (claim.amount_nano if is_running else -claim.amount_nano)

    def _change(self, claim: Claim, amount_nano: int) -> None:
        self._of_account[claim.hold.account_id] += amount_nano
        self._of_key[claim.hold.key_id] += amount_nano

    def account_changed(self, account_id: str) -> None:
        """An account, or a reserve of it, was changed."""
        for claim in self._waiting[account_id].values():
            self._look(claim)
        self._check_covered(account_id)

    def _check_covered(self, account_id: str) -> None:
        held = self._running[account_id]
        if not held or self._world.checks.has_lost_commits:
            return
        reserved = {row["process"]: row["amount_nano"] for row in self._rows("reserves", account_id=account_id)}
        for name, amount_nano in held.items():
            if amount_nano > reserved.get(name, 0) and self._is_registered(name):
                detail = f"{account_id}: {name} holds {amount_nano} of {reserved.get(name, 0)}"
                self._world.checks.fail("what a process holds is covered by its reserve", detail)

    def _look(self, claim: Claim) -> None:
        """Note the least that could pay for a request that waits."""
        hold = claim.hold
        [account] = self._rows("accounts", id=hold.account_id)
        balance_nano, debt_nano = account["balance_nano"], account["debt_nano"]
        others_nano = self._of_account[hold.account_id] - claim.amount_nano
        claim.payable_nano = min(claim.payable_nano, -1 if debt_nano else balance_nano - others_nano)
        for period, limit_nano, month, spent_nano in map(CAP, self._rows("caps", key_id=hold.key_id)):
            started_in = month_of(period, hold.started_at)
            others_nano = self._of_key[hold.key_id] - claim.amount_nano
            left_nano = limit_nano - others_nano - (spent_nano if started_in == month else 0)
            claim.payable_nano = min(claim.payable_nano, left_nano if started_in >= month else -1)

    def _judge(self, claim: Claim, answer: HeldCredit | Insufficient) -> None:
        hold, checks = claim.hold, self._world.checks
        got_tokens = answer.allowance_tokens if isinstance(answer, HeldCredit) else 0
        least_tokens = min(OUTPUT_TOKENS_MIN, hold.allowance_tokens)
        price = self._world.chat_of[hold.completion_id].price
        prompt_tokens = min(hold.prompt_tokens, self._world.chat_of[hold.completion_id].prompt_tokens)
        payable_tokens = min(hold.allowance_tokens, price.affordable(claim.payable_nano, prompt_tokens))
        if got_tokens >= payable_tokens or payable_tokens < least_tokens:
            return
        if not checks.is_disturbed(self._world.chat_of[hold.completion_id]):
            detail = f"{hold.completion_id}: {got_tokens} tokens of {payable_tokens}, with {claim.payable_nano} free"
            checks.fail("a request gets what its account can pay for", detail)

    def _check_registered(self, claim: Claim) -> None:
        if claim.process.is_thawing or self._world.checks.has_lost_commits or self._is_registered(claim.name):
            return
        detail = f"{claim.hold.completion_id} on {claim.process.name} as {claim.name}"
        self._world.checks.fail("a process that was swept holds nothing in memory", detail)

    def _is_registered(self, name: str) -> bool:
        """Whether a process may write to the store under this name."""
        return any(row["beats"] >= 0 for row in self._rows("processes", name=name))
