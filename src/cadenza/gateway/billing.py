"""The credit of one request: sized and held before an upstream is asked, and settled or released exactly once.

A request that completes is settled before its last byte is sent. If the store does not confirm the charge in time, the
reply ends with an error that says so, and the ledger keeps trying to write it. A request that breaks off is charged for
its prompt and for what was delivered. If nothing was delivered, its hold is released, unless its client left (or its
key was revoked) while an upstream worked on it. Cancelling the request does not lose the charge: the outcome is queued
at once, or by a task of the ledger after the delivered text is counted.
"""

import asyncio
from typing import Any, Self

import msgspec

from cadenza import clock
from cadenza.core.chat import ChatRequest, new_completion_id
from cadenza.core.errors import ChargeUnconfirmed, NotCharged, RequestRepeated
from cadenza.core.records import Plan, ReplyResult, Route
from cadenza.gateway.credit_errors import check_least_credit, idempotency_digest, insufficient_credit, say_repeated
from cadenza.gateway.meter import UsageMeter
from cadenza.gateway.request import ApiRequest, RequestRecord
from cadenza.ledger.rules import Ended, HeldCredit, Hold, Insufficient, Repeated
from cadenza.ledger.writer import LedgerWriter
from cadenza.routing.catalogue import ServedClass
from cadenza.routing.prompt import PromptSize
from cadenza.store.store import StoreUnavailable

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

    async def _hold_in_store(self, hold: Hold, prompt: PromptSize) -> HeldCredit:
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
            raise insufficient_credit(answer, hold.prompt_tokens)
        if isinstance(answer, Repeated):
            raise RequestRepeated(say_repeated(answer))
        return answer

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and not self._is_ended:
            await self._break_off(error)
        assert self._is_ended

    def record_attempt(self, route: Route | None) -> None:
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
