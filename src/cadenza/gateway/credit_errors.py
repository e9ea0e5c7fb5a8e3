"""Refuses requests that cannot be paid for (402), or that repeat an earlier one (409), and says why."""

import hashlib

from cadenza.core.errors import InsufficientCredit, RequestRepeated
from cadenza.core.money import Price, format_dollars
from cadenza.core.records import CONTEXT_TOKENS_MAX
from cadenza.core.tokens import OUTPUT_TOKENS_MIN
from cadenza.ledger.caps import CapStatus
from cadenza.ledger.idempotency_keys import find_repeated
from cadenza.ledger.rules import Insufficient, Repeated
from cadenza.routing.prompt import PromptSize
from cadenza.store.store import Store


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
    raise insufficient_credit(short, tokens, is_counted=bool(prompt.exact))


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


def insufficient_credit(answer: Insufficient, prompt_tokens: int, *, is_counted: bool = True) -> InsufficientCredit:
    if answer.debt_nano:
        return InsufficientCredit(
            f"The account has an open debt of {format_dollars(answer.debt_nano)} dollars: credit was taken back that "
            "it had spent or that its requests held. New credit pays the debt first. Add credit."
        )
    needed, tokens = format_dollars(answer.needed_nano), f"{prompt_tokens:,} prompt tokens"
    if is_counted:
        needs = f"this request needs at least {needed} for {tokens} and a short answer."
    else:
        needs = f"this request needs about {needed} for about {tokens} (estimated by its size) and a short answer."
    if answer.cap:
        return InsufficientCredit(_say_capped(answer.cap, needs))
    free = format_dollars(answer.free_nano)
    message = f"The account has {free} dollars of credit that is not held; {needs} Add credit."
    return InsufficientCredit(message, answer.free_nano, answer.needed_nano)


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
