"""The end of held credit: settled or broken off, once, and charged for what was delivered."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cadenza.core.errors import NotCharged, RateLimited, UpstreamFailed
from cadenza.core.records import ReplyResult, Usage
from cadenza.core.tokens import Tokenizer
from cadenza.gateway.billing import BREAK_OFF_S
from cadenza.ledger.timing import LedgerTiming
from cadenza.routing.prompt import PromptSize
from cadenza.store.schema import entries, marks, processes, usage
from tests.store.moves import sweep_process
from tests.unit.gateway.billing import (
    AMPLE_NANO,
    GOOD,
    GOOD_NANO,
    PROMPT_BYTES,
    PROMPT_TOKENS,
    SMALL_NANO,
    UNCOUNTED,
    Billing,
    SlowTokenizer,
)
from tests.unit.gateway.client import WAIT_S
from tests.unit.gateway.funded_store import FORTE, FUNDED_NANO, KEY_ID, FundedStore, make_hold, open_funded_store
from tests.unit.gateway.prompts import prompt_of


async def test_a_settled_request_has_a_charge_and_a_usage_row(billing: Billing) -> None:
    """One entry with the exact cost, and one row with both ids, the counts, the cost and the status."""
    await billing.settle(make_hold(), GOOD)
    [_, charge] = await billing.funded.rows(entries)
    assert (charge["kind"], charge["amount_nano"], charge["completion_id"]) == ("charge", -GOOD_NANO, "chatcmpl-one")
    [row] = await billing.funded.rows(usage)
    assert (row["completion_id"], row["request_id"]) == ("chatcmpl-one", "req-of-chatcmpl-one")
    assert (row["key_id"], row["class_id"]) == (KEY_ID, "forte")
    assert (row["provider"], row["model"], row["status"]) == ("acme", "acme-large", 200)
    assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (90, 10, 40)
    assert (row["cost_nano"], row["estimated"]) == (GOOD_NANO, 0)
    assert row["duration_ms"] >= 0


async def test_a_request_whose_key_was_freed_ends_with_an_error(billing: Billing) -> None:
    """Its process was swept, and a retry may use the key: the reply must not seem complete, and costs nothing."""
    async with billing.hold(make_hold(idempotency_digest=b"k" * 32)) as credit:
        [process] = await billing.funded.rows(processes)
        await sweep_process(billing.funded.store, process["name"])
        with pytest.raises(NotCharged):
            await credit.settle(GOOD)
    assert (await billing.funded.funds())[0] == SMALL_NANO
    assert await billing.statuses_and_costs() == [(NotCharged.status, 0)]


@pytest.mark.parametrize(
    ("error", "status"),
    [(UpstreamFailed("m"), 502), (RateLimited("m", 1), 429), (ZeroDivisionError(), 500), (KeyboardInterrupt(), 500)],
)
async def test_an_error_before_a_delivery_is_free(billing: Billing, error: BaseException, status: int) -> None:
    """Whatever is raised, the hold is released, nothing is charged, and the usage row has the error's status."""
    await billing.break_off(error)
    assert await billing.funded.funds() == (SMALL_NANO, 0)
    assert await billing.statuses_and_costs() == [(status, 0)]


@pytest.mark.parametrize("error", [UpstreamFailed("m"), ZeroDivisionError()])
async def test_an_error_after_a_delivery_is_charged_by_our_own_count(billing: Billing, error: Exception) -> None:
    """The prompt and the delivered tokens, marked as estimated."""
    await billing.break_off(error, delivered="hello world")
    assert await billing.funded.funds() == (SMALL_NANO - FORTE.quote(100, 2), 0)
    [row] = await billing.funded.rows(usage)
    assert (row["prompt_tokens"], row["completion_tokens"], row["estimated"]) == (100, 2, 1)


@pytest.mark.parametrize(("delivered", "cost_nano"), [("", 0), ("hello world", FORTE.quote(100, 2))])
@pytest.mark.parametrize("cancellations", [1, 2, 3])
async def test_cancellation_does_not_lose_the_end(
    billing: Billing, delivered: str, cost_nano: int, cancellations: int
) -> None:
    """A request that is cancelled, even again while it ends, is charged once for what was delivered, as a 499."""
    is_held = asyncio.Event()

    async def serve() -> None:
        async with billing.hold(make_hold()) as credit:
            if delivered:
                credit.meter.deliver(delivered)
            is_held.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await is_held.wait()
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    await billing.ledger.drained()
    assert await billing.funded.funds() == (SMALL_NANO - cost_nano, 0)
    assert await billing.statuses_and_costs() == [(499, cost_nano)]


async def test_cancellation_at_any_step_leaves_nothing_held(billing: Billing) -> None:
    """Wherever a cancellation comes, from the hold to the settlement, each hold ends and is charged at most once."""
    result = ReplyResult(Usage(1, 1), "stop")
    for steps in range(0, 2000, 40):
        wanted = make_hold(f"chatcmpl-{steps}", allowance_tokens=16)
        task = asyncio.create_task(billing.settle(wanted, result))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    await billing.settle(make_hold("chatcmpl-last"), result)
    await billing.ledger.drained()
    charges = [entry for entry in await billing.funded.rows(entries) if entry["kind"] == "charge"]
    assert await billing.funded.funds() == (SMALL_NANO - len(charges) * FORTE.quote(1, 1), 0)
    recorded = [outcome.completion_id for outcome in billing.funded.observer.outcomes]
    assert len(recorded) == len({*recorded})


async def hold_and_die(funded: FundedStore, timing: LedgerTiming, tokenizer: Tokenizer, prompt: PromptSize) -> None:
    """A process marks a stream that has delivered two tokens, and stops without ending it."""
    async with funded.writer(timing) as ledger:
        wanted = Billing(funded, ledger).hold(UNCOUNTED, prompt=prompt, tokenizer=tokenizer)
        credit = await AsyncExitStack().enter_async_context(wanted)
        credit.meter.deliver("hello world")
        await ledger.mark()


@pytest.mark.parametrize(("mark_after_s", "is_marked"), [(0.0, True), (3600.0, False)])
async def test_a_stream_of_a_dead_process_is_charged_by_its_mark(
    tmp_path: Path, mark_after_s: float, is_marked: bool
) -> None:
    """A long stream is marked by its length, and charged and recorded once by that; a short one is free."""
    tokenizer = Tokenizer()
    prompt = prompt_of(PROMPT_TOKENS, PROMPT_BYTES, tokenizer)
    async with open_funded_store(tmp_path, AMPLE_NANO) as funded:
        await hold_and_die(funded, LedgerTiming(mark_after_s=mark_after_s, mark_every_s=3600.0), tokenizer, prompt)
        marked = [(row["prompt_tokens"], row["delivered_tokens"]) for row in await funded.rows(marks)]
        assert marked == ([(36, 2)] if is_marked else [])
        assert not tokenizer.is_loaded
        async with funded.writer():
            assert await funded.funds() == (AMPLE_NANO - (FORTE.quote(36, 2) if is_marked else 0), 0)
        outcomes = [(one.completion_id, one.request_id, one.usage) for one in funded.observer.outcomes]
        charged = ("chatcmpl-one", "req-of-chatcmpl-one", Usage(36, 2, estimated=True))
        assert outcomes == ([charged] if is_marked else [])


async def leave_uncounted(billing: Billing, wait_s: float = BREAK_OFF_S) -> SlowTokenizer:
    """Cancel a stream whose delivered text cannot be counted before the tokenizer is loaded."""
    tokenizer = SlowTokenizer()

    async def serve() -> None:
        async with billing.hold(make_hold(), tokenizer=tokenizer, wait_s=wait_s) as credit:
            credit.meter.deliver("hello world")
            raise asyncio.CancelledError

    task = asyncio.create_task(serve())
    await tokenizer.is_loading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return tokenizer


async def test_a_stop_waits_for_a_count(funded: FundedStore) -> None:
    """A service that stops while a broken stream is counted writes the charge first."""
    async with funded.writer() as ledger:
        tokenizer = await leave_uncounted(Billing(funded, ledger))
        tokenizer.may_load.set()
    assert await funded.funds() == (FUNDED_NANO - FORTE.quote(100, 2), 0)


async def test_a_stop_does_not_wait_for_a_store_that_is_down(funded: FundedStore) -> None:
    """An outcome that cannot be written is left to the sweep of the next process."""
    async with asyncio.timeout(WAIT_S), funded.writer() as ledger:
        tokenizer = await leave_uncounted(Billing(funded, ledger), wait_s=0.1)
        funded.store.is_down = True
        tokenizer.may_load.set()
    funded.store.is_down = False
    assert (await funded.funds())[0] == FUNDED_NANO
    async with funded.writer():
        assert await funded.funds() == (FUNDED_NANO, 0)
