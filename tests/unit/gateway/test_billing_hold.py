"""Holding credit: what is held, how long an answer may be, and which requests are refused."""

import asyncio
import hashlib
import itertools
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from cadenza.core.chat import new_completion_id
from cadenza.core.errors import InsufficientCredit, RequestRepeated
from cadenza.core.money import Price
from cadenza.core.records import Cap, ReplyResult, Usage
from cadenza.gateway.billing import allowance
from cadenza.gateway.credit_errors import check_least_credit, check_not_repeated
from cadenza.ledger import cap_rows
from cadenza.store.schema import reserves
from tests.unit.gateway.billing import (
    AMPLE_NANO,
    GOOD,
    GOOD_NANO,
    PROMPT_BYTES,
    PROMPT_TOKENS,
    ROUTE_TOKENS,
    SMALL_NANO,
    UNCOUNTED,
    Billing,
    SlowTokenizer,
)
from tests.unit.gateway.funded_store import ACCOUNT_ID, FORTE, KEY_ID, make_hold, now_ms, open_funded_store
from tests.unit.gateway.prompts import prompt_of

FREE = ReplyResult(Usage(0, 0), "stop", is_free=True)


async def test_a_repeated_request_can_be_refused_before_its_hold(billing: Billing) -> None:
    """The 409 is the same; a request without an idempotency key costs no look-up."""
    digest, store, headers = hashlib.sha256(b"once").digest(), billing.funded.store, {b"idempotency-key": b"once"}
    await billing.settle(make_hold(idempotency_digest=digest), GOOD)
    with pytest.raises(RequestRepeated) as late:
        await billing.settle(make_hold("chatcmpl-two", idempotency_digest=digest), GOOD)
    with pytest.raises(RequestRepeated) as early:
        await check_not_repeated(store, ACCOUNT_ID, headers, now_ms())
    assert early.value.message == late.value.message
    reads = store.reads
    await check_not_repeated(store, ACCOUNT_ID, {}, now_ms())
    assert store.reads == reads
    await check_not_repeated(store, ACCOUNT_ID, {b"idempotency-key": b"twice"}, now_ms())


class Served(NamedTuple):
    """The output limit of a request, or the message of its refusal."""

    output_limit: int | None
    message: str = ""


async def served(billing: Billing, credit_nano: int, max_tokens: int | None, *, is_counted: bool) -> Served:
    """Ask for credit while the account has this much that is not held."""
    tokens, allowed = PROMPT_TOKENS if is_counted else PROMPT_BYTES, allowance(max_tokens, ROUTE_TOKENS)
    wanted = make_hold(new_completion_id(1), prompt_tokens=tokens, allowance_tokens=allowed, is_counted=is_counted)
    wanted = msgspec.structs.replace(wanted, extra_tokens=0 if max_tokens else ROUTE_TOKENS - allowed)
    others = make_hold(new_completion_id(2), prompt_tokens=SMALL_NANO - credit_nano, price=Price(1, 0))
    async with billing.hold(others) as rest:
        try:
            async with billing.hold(wanted) as credit:
                await credit.settle(FREE)
        except InsufficientCredit as refusal:
            return Served(None, refusal.message)
        finally:
            await rest.settle(FREE)
    return Served(credit.output_limit)


def around(prompt_tokens: int, output_tokens: int) -> list[int]:
    """A credit just too small for this usage, one that just pays for it, and one a little larger."""
    paid_nano = FORTE.quote(prompt_tokens, output_tokens)
    return [paid_nano - 1, paid_nano, paid_nano + 1]


@pytest.mark.parametrize("max_tokens", [None, 5, 500])
async def test_an_uncounted_prompt_is_served_as_a_counted_one(billing: Billing, max_tokens: int | None) -> None:
    """Whatever its credit, an account gets the output limit or the refusal that the exact count gives."""
    least_nano = FORTE.quote(100, min(max_tokens or 16, 16))
    for prompt_tokens, output_tokens in itertools.product((100, PROMPT_BYTES), (0, 5, 16, 500, 1_024, 2_000)):
        for credit_nano in around(prompt_tokens, output_tokens):
            by_bytes = await served(billing, credit_nano, max_tokens, is_counted=False)
            assert by_bytes == await served(billing, credit_nano, max_tokens, is_counted=True)
            assert (by_bytes.output_limit is None) == (credit_nano < least_nano)
            assert by_bytes.output_limit or " 100 prompt tokens" in by_bytes.message


@pytest.mark.parametrize(
    ("credit_nano", "held_nano"),
    [
        (AMPLE_NANO, FORTE.quote(PROMPT_BYTES, 1_000)),
        (AMPLE_NANO - 1, FORTE.quote(100, 1_000)),
        (FORTE.quote(PROMPT_BYTES, 1_000), FORTE.quote(100, 1_000)),
        (FORTE.quote(100, 1_000), FORTE.quote(100, 1_000)),
        (FORTE.quote(100, 999), FORTE.quote(100, 999)),
    ],
)
async def test_a_prompt_is_held_by_its_bytes_where_the_account_has_much_credit(
    tmp_path: Path, credit_nano: int, held_nano: int
) -> None:
    """Otherwise it is counted, and held by its count."""
    prompt = prompt_of(PROMPT_TOKENS, PROMPT_BYTES)
    async with (
        open_funded_store(tmp_path, credit_nano) as funded,
        funded.writer() as ledger,
        Billing(funded, ledger).hold(UNCOUNTED, prompt=prompt) as credit,
    ):
        assert (await funded.funds())[1] >= held_nano  # with ample credit, more is reserved
        assert bool(prompt.exact) == (held_nano < FORTE.quote(PROMPT_BYTES, 1_000))
        await credit.settle(GOOD)


@pytest.mark.parametrize("extra_tokens", [0, 3_096])
async def test_nothing_is_counted_for_an_account_with_much_credit(tmp_path: Path, extra_tokens: int) -> None:
    """Neither the hold nor the output limit needs the count where the credit pays for everything."""
    wanted = msgspec.structs.replace(UNCOUNTED, extra_tokens=extra_tokens)
    prompt = prompt_of(PROMPT_TOKENS, PROMPT_BYTES)
    async with (
        open_funded_store(tmp_path, AMPLE_NANO) as funded,
        funded.writer() as ledger,
        Billing(funded, ledger).hold(wanted, prompt=prompt) as credit,
    ):
        assert credit.output_limit == 1_000 + extra_tokens
        await credit.settle(GOOD)
    assert not prompt.exact


async def test_an_idempotency_key_survives_the_count(billing: Billing) -> None:
    """A hold that is tried again with the exact count is the same request, and repeating it is still refused."""
    digest = hashlib.sha256(b"once").digest()
    uncounted = make_hold(prompt_tokens=9_400, allowance_tokens=500, is_counted=False, idempotency_digest=digest)
    await billing.settle(uncounted, GOOD)
    with pytest.raises(RequestRepeated, match="chatcmpl-one"):
        await billing.settle(msgspec.structs.replace(uncounted, completion_id="chatcmpl-two"), GOOD)
    assert await billing.funded.funds() == (SMALL_NANO - GOOD_NANO, 0)


async def test_a_client_that_leaves_while_its_prompt_is_counted_has_nothing_held(billing: Billing) -> None:
    """Between the refused hold by bytes and the hold by the exact count there is none."""
    tokenizer = SlowTokenizer()
    wanted = make_hold(prompt_tokens=9_400, is_counted=False)

    async def serve() -> None:
        async with billing.hold(wanted, tokenizer=tokenizer):
            pytest.fail("the prompt is never counted")

    task = asyncio.create_task(serve())
    await tokenizer.is_loading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    tokenizer.may_load.set()
    await billing.ledger.drained()
    assert await billing.funded.funds() == (SMALL_NANO, 0)
    assert await billing.funded.rows(reserves) == []


@pytest.mark.parametrize(
    ("max_tokens", "route_tokens", "held_tokens"),
    [(None, 131_072, 1_024), (None, 512, 512), (5, 131_072, 5), (200_000, 131_072, 131_072), (1, 1, 1)],
)
def test_the_allowance_is_what_was_asked_for_within_the_route(
    max_tokens: int | None, route_tokens: int, held_tokens: int
) -> None:
    """It is 1,024 tokens without `max_tokens`, and never more than the route can generate."""
    assert allowance(max_tokens, route_tokens) == held_tokens


@pytest.mark.parametrize(("max_tokens", "paid_tokens"), [(5, 5), (16, 16), (500, 16)])
async def test_the_least_credit_pays_for_a_short_answer(max_tokens: int, paid_tokens: int) -> None:
    """It pays for what was asked for, and for 16 tokens at most; with a nanodollar less, the request is refused."""
    prompt = prompt_of(PROMPT_TOKENS, PROMPT_BYTES)
    least_nano = FORTE.quote(prompt.at_least, paid_tokens)
    await check_least_credit(least_nano, FORTE, prompt, max_tokens)
    with pytest.raises(InsufficientCredit):
        await check_least_credit(least_nano - 1, FORTE, prompt, max_tokens)


async def cap(billing: Billing, limit: Cap) -> None:
    await billing.funded.store.transact(lambda tx: cap_rows.set_cap(tx, ACCOUNT_ID, KEY_ID, limit, now_ms()))


async def test_a_prompt_is_counted_before_a_cap_refuses_it(billing: Billing) -> None:
    """A cap that pays for the tokens of a prompt, but not for its bytes, is enough."""
    await cap(billing, Cap(FORTE.quote(PROMPT_TOKENS, 16)))
    async with billing.hold(msgspec.structs.replace(UNCOUNTED, is_capped=True)) as credit:
        assert credit.output_limit == 16
        await credit.settle(FREE)
