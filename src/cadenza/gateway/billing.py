"""One request's money: held before anything is asked of an upstream, and ended once, whatever happens.

A request that finishes is settled by its outcome before its last byte. One that breaks off is charged what was
delivered, or nothing where nothing was. The end is queued in the same instant, or by a task of the writer's once what
was delivered is counted: cancellation cannot lose it.
"""

import asyncio
import hashlib
import time
from typing import Any, Protocol

import msgspec

from cadenza.core.errors import CadenzaError, InsufficientCredit, RequestRepeated
from cadenza.core.money import format_dollars
from cadenza.core.records import ReplyResult, Route, Usage
from cadenza.gateway.compose import Prompt
from cadenza.gateway.meter import UsageMeter
from cadenza.http.exchange import GONE_STATUS, Exchange
from cadenza.store import ledger
from cadenza.store.batches import Answer
from cadenza.store.ledger import End, Held, Hold
from cadenza.store.writer import LedgerWriter

DEFAULT_ALLOWANCE_TOKENS = 1024
BREAK_OFF_S = 5.0
CUT_STATUS = 503  # what the books say of a request that ended because the service did


class Routed(Protocol):
    """Whatever knows on which route it runs."""

    @property
    def route(self) -> Route: ...


class Money:
    """A hold that was taken, until it is ended."""

    def __init__(self, writer: LedgerWriter, exchange: Exchange, hold: Hold, held: Held, prompt: Prompt) -> None:
        self.held = held
        self.reply: Routed | None = None
        self.is_ended = False
        self._writer = writer
        self._exchange = exchange
        self._hold = hold
        self._prompt = prompt

    async def output_limit(self, max_tokens: int | None, route_tokens: int) -> int:
        """How many tokens may be generated: what was asked for, as far as the account can pay it.

        A request that sets no limit is held for a usual answer and may go on for as long as its account has credit.
        """
        if max_tokens is not None:
            return min(self.held.allowance_tokens, route_tokens)
        price, left_nano = self._hold.price, self.held.left_nano
        if left_nano < price.quote(0, route_tokens) and not self._hold.is_counted:
            left_nano += price.quote(self._hold.prompt_tokens - await self._prompt.count(), 0)
        more_tokens = left_nano // price.output_nano if price.output_nano else route_tokens
        return min(self.held.allowance_tokens + more_tokens, route_tokens)

    async def settle(self, outcome: ReplyResult) -> None:
        """Returns when the charge is durable."""
        self.is_ended = True
        await self._end(None if outcome.is_free else outcome.usage, 502 if outcome.fault else 200)

    async def break_off(self, meter: UsageMeter, error: BaseException) -> None:
        """Charge what was delivered. Waits a moment for the store, and leaves the rest to the writer."""
        self.is_ended = True
        status = CUT_STATUS if self._exchange.is_cut else _status_of(error)
        if meter.has_delivered:
            ended: asyncio.Future[Any] = self._writer.run_to_completion(self._end_counted(meter, status))
        else:
            ended = self._end(None, status)
        await asyncio.wait({ended}, timeout=BREAK_OFF_S)

    async def _end_counted(self, meter: UsageMeter, status: int) -> None:
        """Whoever stops the writer waits for this, and so it waits for the store only a moment."""
        await asyncio.wait({self._end(await meter.count(), status)}, timeout=BREAK_OFF_S)

    def _end(self, usage: Usage | None, status: int) -> "asyncio.Future[Answer]":
        exchange, route = self._exchange, self.reply.route if self.reply else None
        return self._writer.end(
            End(
                request_id=self._hold.request_id,
                account_id=self._hold.account_id,
                usage=usage,
                provider=route.provider if route else "",
                model=route.model if route else "",
                status=status,
                first_byte_ms=exchange.first_byte_ms,
                duration_ms=round((time.perf_counter() - exchange.started_s) * 1000),
                ended_at=time.time_ns() // 1_000_000,
            )
        )


class hold_credit:  # noqa: N801 it is used like a function
    """402 where the account cannot pay, 409 where the request was made before."""

    def __init__(self, writer: LedgerWriter, exchange: Exchange, hold: Hold, prompt: Prompt, meter: UsageMeter) -> None:
        self._writer = writer
        self._exchange = exchange
        self._hold = hold
        self._prompt = prompt
        self._tally = meter

    async def __aenter__(self) -> Money:
        answer = await self._writer.hold(self._hold, self._tally)
        if isinstance(answer, ledger.Insufficient) and not self._hold.is_counted:
            prompt_tokens = await self._prompt.count()
            self._hold = msgspec.structs.replace(self._hold, prompt_tokens=prompt_tokens, is_counted=True)
            answer = await self._writer.hold(self._hold, self._tally)
        if isinstance(answer, ledger.Insufficient):
            raise InsufficientCredit(_say_insufficient(answer, self._hold))
        if isinstance(answer, ledger.Repeated):
            raise RequestRepeated(_say_repeated(answer))
        self._money = Money(self._writer, self._exchange, self._hold, answer, self._prompt)
        return self._money

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and not self._money.is_ended:
            await self._money.break_off(self._tally, error)
        assert self._money.is_ended


def allowance(max_tokens: int | None, route_tokens: int) -> int:
    return min(max_tokens or DEFAULT_ALLOWANCE_TOKENS, route_tokens)


def idempotency_digest(headers: dict[bytes, bytes]) -> bytes | None:
    """The key is the client's own text: only its digest is kept."""
    key = headers.get(b"idempotency-key")
    return hashlib.sha256(key).digest() if key else None


def _say_repeated(answer: ledger.Repeated) -> str:
    return (
        f"This idempotency key was used within the last 24 hours, by request {answer.shown_id} "
        f"({answer.request_id}). There is no second reply and no second charge; use a new key for a new request."
    )


def _say_insufficient(answer: ledger.Insufficient, hold: Hold) -> str:
    return (
        f"The account has {format_dollars(answer.free_nano)} dollars of credit that is not held; this request needs "
        f"at least {format_dollars(answer.needed_nano)} for {hold.prompt_tokens:,} prompt tokens and a short answer. "
        "Add credit."
    )


def _status_of(error: BaseException) -> int:
    if isinstance(error, CadenzaError):
        return error.status
    return GONE_STATUS if isinstance(error, asyncio.CancelledError) else 500
