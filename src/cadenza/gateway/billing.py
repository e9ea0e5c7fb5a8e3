"""The credit of one request: sized and held before an upstream is asked, and settled or released exactly once.

A request that completes is settled before its last byte is sent. If the store does not confirm the charge in time, the
reply ends with an error that says so, and the ledger keeps trying to write it. A request that breaks off is charged for
its prompt and for what was delivered. If nothing was delivered, its hold is released, unless its client left (or its
key was revoked) while an upstream worked on it. Cancelling the request does not lose the charge: the outcome is queued
at once, or by a task of the ledger after the delivered text is counted.
"""

import asyncio
import hashlib
from typing import Any, Self

import msgspec

from cadenza import clock
from cadenza.core.chat import ChatRequest, new_completion_id
from cadenza.core.errors import ChargeUnconfirmed, InsufficientCredit, NotCharged, RequestRepeated
from cadenza.core.money import Price, format_dollars
from cadenza.core.records import CONTEXT_TOKENS_MAX, Plan, ReplyResult, Route
from cadenza.core.tokens import OUTPUT_TOKENS_MIN
from cadenza.gateway.meter import UsageMeter
from cadenza.gateway.request import ApiRequest, RequestRecord
from cadenza.ledger.caps import CapStatus
from cadenza.ledger.rules import Ended, Held, Hold, Insufficient, Repeated
from cadenza.ledger.transaction import find_repeated
from cadenza.ledger.writer import LedgerWriter
from cadenza.routing.catalogue import ServedClass
from cadenza.routing.prompt import PromptSize
from cadenza.store.store import Store, StoreUnavailable

DEFAULT_ALLOWANCE_TOKENS = 1024
BREAK_OFF_S = 5.0  # how long a request that breaks off waits for its charge


def size_hold(request: ApiRequest, served: ServedClass, plan: Plan, chat: ChatRequest, prompt: PromptSize) -> Hold:
    """Size the hold of a chat: the prompt, as far as it is counted, and the output allowance.

    `PromptSize.to_hold` says how many tokens a prompt is held for, and `allowance` how many of output. The ledger fits
    the allowance to what account and cap can pay (`ledger.rules.take_hold`). The price is the class's at this moment,
    and stays the request's to its end.
    """
    now_ms, principal = clock.now_ms(), request.principal
    allowance_tokens = allowance(chat.max_tokens, plan.max_output_tokens)
    return Hold(
        completion_id=new_completion_id(now_ms),
        request_id=request.record.request_id,
        account_id=principal.account_id,
        key_id=principal.key_id,
        class_id=plan.class_id,
        prompt_tokens=prompt.to_hold(plan.context_tokens),
        is_counted=prompt.exact is not None,
        allowance_tokens=allowance_tokens,
        price=served.prices.at(now_ms),
        stream=chat.stream,
        started_at=now_ms,
        idempotency_digest=idempotency_digest(request.exchange.request.headers),
        is_capped=principal.is_capped,
        version=served.version,
        extra_tokens=0 if chat.max_tokens else plan.max_output_tokens - allowance_tokens,
    )


def allowance(max_tokens: int | None, route_tokens: int) -> int:
    """How many output tokens are held for: those asked for, or a usual answer, and no more than a route can give."""
    wanted_tokens = max_tokens or DEFAULT_ALLOWANCE_TOKENS
    return wanted_tokens if wanted_tokens < route_tokens else route_tokens


class Credit:
    """Credit that is held for the block, until it is settled or broken off.

    402 if account or cap cannot pay, 409 if the idempotency key was used before. `window_tokens` is the largest window
    of the plan.
    """

    meter: UsageMeter
    output_limit: int  # how many tokens the answer may have

    def __init__(
        self,
        ledger_writer: LedgerWriter,
        record: RequestRecord,
        hold: Hold,
        prompt: PromptSize,
        window_tokens: int,
        wait_s: float = BREAK_OFF_S,
    ) -> None:
        self._ledger = ledger_writer
        self._record = record
        self._hold = hold
        self._prompt = prompt
        self._window_tokens = window_tokens
        self._wait_s = wait_s
        self._is_ended = False
        self._asked: Route | None = None  # the route that works on the request

    async def __aenter__(self) -> Self:
        hold, prompt = self._hold, self._prompt
        held = self._ledger.hold_now(hold) or await self._hold_in_store(hold, prompt)
        self._record.held(hold)
        self.output_limit = held.allowance_tokens
        self.meter = UsageMeter(prompt, held.allowance_tokens)
        self._ledger.track(hold.completion_id, self.meter)
        return self

    async def _hold_in_store(self, hold: Hold, prompt: PromptSize) -> Held:
        """Hold credit in the store. If it may not pay for the bound of an uncounted prompt, the prompt is counted."""
        answer = await self._ledger.hold(hold)
        if isinstance(answer, Insufficient) and not hold.is_counted and not answer.debt_nano:
            if not prompt.is_quick:
                await check_least_credit(answer.free_nano, hold.price, prompt, hold.allowance_tokens, answer.cap)
            await prompt.count()
            prompt_tokens = prompt.to_hold(self._window_tokens)
            hold = msgspec.structs.replace(hold, prompt_tokens=prompt_tokens, is_counted=True)
            answer = await self._ledger.hold(hold)
        if isinstance(answer, Insufficient):
            raise InsufficientCredit(say_insufficient(answer, hold.prompt_tokens))
        if isinstance(answer, Repeated):
            raise RequestRepeated(say_repeated(answer))
        return answer

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and not self._is_ended:
            await self._break_off(error)
        assert self._is_ended

    def note_asked(self, route: Route | None) -> None:
        """The request was handed to this route, or (None) the route that had it failed."""
        self._asked = route

    def routed(self, route: Route) -> None:
        """A route began to answer."""
        self.meter.bound(route.context_tokens)
        self._record.routed(route)

    async def settle(self, result: ReplyResult) -> None:
        """Charge the reply, and return once the charge is durable.

        ChargeUnconfirmed if the store did not confirm it in time, NotCharged if this process was swept meanwhile and
        the request could not be charged in full.
        """
        assert not self._is_ended
        self._is_ended = True
        try:
            ended = await self._ledger.end(self._record.outcome(502 if result.fault else 200, result))
        except StoreUnavailable:
            raise ChargeUnconfirmed(self._record.request_id) from None
        assert isinstance(ended, Ended)
        if ended.is_lost:
            raise NotCharged

    async def _break_off(self, error: BaseException) -> None:
        """Charge what is due, or release the hold. Wait for the store briefly; the ledger continues without us.

        A client that left or lost its key pays for the work of a route. A service that stops has failed its client.
        """
        self._is_ended = True
        status = self._record.ended_by(error)
        has_left = isinstance(error, asyncio.CancelledError) and not self._record.was_shut_down
        asked = self._asked if has_left else None
        if asked:
            self._record.left_to(asked)
        if self.meter.has_delivered or asked:
            ended: asyncio.Future[Any] = self._ledger.run_to_completion(self._count_and_end(status))
        else:
            ended = self._ledger.end(self._record.outcome(status))
        await asyncio.wait({ended}, timeout=self._wait_s)

    async def _count_and_end(self, status: int) -> None:
        """The wait is bounded, because `LedgerWriter.stop` waits for this task."""
        result = ReplyResult(await self.meter.count_delivered(), None)
        await asyncio.wait({self._ledger.end(self._record.outcome(status, result))}, timeout=self._wait_s)


async def check_least_credit(
    free_nano: int, price: Price, prompt: PromptSize, allowance_tokens: int, cap: CapStatus | None = None
) -> None:
    """Refuse a request whose account or cap could not pay even for the fewest tokens that the prompt can have: 402.

    A long prompt is not counted for a refusal, so that a flood of them costs nothing. The error names an estimate.
    """
    output_tokens = min(OUTPUT_TOKENS_MIN, allowance_tokens)
    if free_nano >= price.quote(prompt.at_least, output_tokens):
        return
    if prompt.is_quick:
        await prompt.count()
    tokens = prompt.to_hold(CONTEXT_TOKENS_MAX) if prompt.exact else min(prompt.about, CONTEXT_TOKENS_MAX)
    short = Insufficient(free_nano, price.quote(tokens, output_tokens), cap)
    raise InsufficientCredit(say_insufficient(short, tokens, is_counted=bool(prompt.exact)))


def idempotency_digest(headers: dict[bytes, bytes]) -> bytes | None:
    """The digest of the idempotency key. The key itself is the client's text and is not stored."""
    key = headers.get(b"idempotency-key")
    return hashlib.sha256(key).digest() if key else None


async def check_not_repeated(store: Store, account_id: str, headers: dict[bytes, bytes], now_ms: int) -> None:
    """Refuse a request whose idempotency key was used before, and do no work for it: 409."""
    digest = idempotency_digest(headers)
    if digest and (repeated := await find_repeated(store, account_id, digest, now_ms)):
        raise RequestRepeated(say_repeated(repeated))


def say_repeated(answer: Repeated) -> str:
    return (
        f"This idempotency key was used within the last 24 hours, by request {answer.request_id} "
        f"({answer.completion_id}). There is no second reply and no second charge; use a new key for a new request."
    )


def say_insufficient(answer: Insufficient, prompt_tokens: int, *, is_counted: bool = True) -> str:
    if answer.debt_nano:
        return (
            f"The account has an open debt of {format_dollars(answer.debt_nano)} dollars: credit was taken back that "
            "it had spent or that its requests held. New credit pays the debt first. Add credit."
        )
    needed, tokens = format_dollars(answer.needed_nano), f"{prompt_tokens:,} prompt tokens"
    if is_counted:
        needs = f"this request needs at least {needed} for {tokens} and a short answer."
    else:
        needs = f"this request needs about {needed} for about {tokens} (estimated by its size) and a short answer."
    if answer.cap:
        return _say_capped(answer.cap, needs)
    return f"The account has {format_dollars(answer.free_nano)} dollars of credit that is not held; {needs} Add credit."


def _say_capped(status: CapStatus, needs: str) -> str:
    limit_nano, spent_nano = status.cap.limit_nano, status.spent_nano
    held_nano = max(0, limit_nano - spent_nano - status.left_nano)
    is_monthly = status.cap.period == "month"
    return (
        f"This key has a spend cap of {format_dollars(limit_nano)} dollars {'a month' if is_monthly else 'in total'}: "
        f"{format_dollars(spent_nano)} are spent{' this month' if is_monthly else ''} and {format_dollars(held_nano)} "
        f"are held for running requests; {needs} "
        f"Raise the cap{', wait for the next month (UTC)' if is_monthly else ''} or use another key."
    )
