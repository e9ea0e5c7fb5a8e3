"""One request's money: held before anything is asked of an upstream, and ended once, whatever happens.

A request that finishes is settled by its outcome before its last byte. One that breaks off is charged what was
delivered, or nothing where nothing was. The end is queued in the same instant: cancellation cannot lose it.
"""

import asyncio
import hashlib
import time
from typing import Protocol

from cadenza.core.errors import CadenzaError, InsufficientCredit, RequestRepeated
from cadenza.core.money import format_dollars
from cadenza.core.records import Outcome, Route, Usage
from cadenza.gateway.call import GONE_STATUS, Call
from cadenza.gateway.tally import Tally
from cadenza.store import ledger
from cadenza.store.ledger import End, Held, Hold
from cadenza.store.writer import Answer, LedgerWriter

DEFAULT_ALLOWANCE_TOKENS = 1024
BREAK_OFF_S = 5.0
CUT_STATUS = 503  # what the books say of a request that ended because the service did


class Routed(Protocol):
    """Whatever knows on which route it runs."""

    @property
    def route(self) -> Route: ...


class Money:
    """A hold that was taken, until it is ended."""

    def __init__(self, writer: LedgerWriter, call: Call, hold: Hold, held: Held) -> None:
        self.held = held
        self.reply: Routed | None = None
        self.is_ended = False
        self._writer = writer
        self._call = call
        self._hold = hold

    def output_limit(self, max_tokens: int | None, route_tokens: int) -> int:
        """How many tokens may be generated: what was asked for, as far as the account can pay it.

        A request that sets no limit is held for a usual answer and may go on for as long as its account has credit.
        """
        if max_tokens is not None:
            return min(self.held.allowance_tokens, route_tokens)
        output_nano = self._hold.price.output_nano
        more_tokens = self.held.left_nano // output_nano if output_nano else route_tokens
        return min(self.held.allowance_tokens + more_tokens, route_tokens)

    async def settle(self, outcome: Outcome) -> None:
        """Returns when the charge is durable."""
        await self._end(None if outcome.is_free else outcome.usage, 502 if outcome.fault else 200)

    async def break_off(self, tally: Tally, error: BaseException) -> None:
        """Charge what was delivered. Waits a moment for the store, and leaves the rest to the writer."""
        delivered = tally.so_far() if tally.delivered_tokens else None
        status = CUT_STATUS if self._call.is_cut else _status_of(error)
        await asyncio.wait({self._end(delivered, status)}, timeout=BREAK_OFF_S)

    def _end(self, usage: Usage | None, status: int) -> "asyncio.Future[Answer]":
        assert not self.is_ended
        self.is_ended = True
        call, route = self._call, self.reply.route if self.reply else None
        return self._writer.end(
            End(
                request_id=self._hold.request_id,
                account_id=self._hold.account_id,
                usage=usage,
                provider=route.provider if route else "",
                model=route.model if route else "",
                status=status,
                first_byte_ms=call.first_byte_ms,
                duration_ms=round((time.perf_counter() - call.started_s) * 1000),
                ended_at=time.time_ns() // 1_000_000,
            )
        )


class hold_credit:  # noqa: N801 it is used like a function
    """402 where the account cannot pay, 409 where the request was made before."""

    def __init__(self, writer: LedgerWriter, call: Call, hold: Hold, tally: Tally) -> None:
        self._writer = writer
        self._call = call
        self._hold = hold
        self._tally = tally

    async def __aenter__(self) -> Money:
        answer = await self._writer.hold(self._hold, self._tally)
        if isinstance(answer, ledger.Insufficient):
            raise InsufficientCredit(_say_insufficient(answer, self._hold))
        if isinstance(answer, ledger.Repeated):
            raise RequestRepeated(_say_repeated(answer))
        self._money = Money(self._writer, self._call, self._hold, answer)
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
