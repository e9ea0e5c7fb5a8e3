"""One request's money on a real ledger: held first, ended once, and charged for what was delivered."""

import asyncio
import hashlib
import itertools
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from cadenza.core import tokens
from cadenza.core.chat import new_completion_id
from cadenza.core.errors import CadenzaError, InsufficientCredit, RateLimited, RequestRepeated, UpstreamFailed
from cadenza.core.money import Price
from cadenza.core.records import ReplyResult, Route, Usage
from cadenza.gateway.billing import Money, allowance, hold_credit, idempotency_digest
from cadenza.gateway.compose import Prompt
from cadenza.gateway.meter import UsageMeter
from cadenza.store.database import StoreUnavailable
from cadenza.store.ledger import UNCOUNTED_TIMES, Held, Hold
from tests.unit.gateway.books import FORTE, KEY, WAIT_S, Books, hold, open_books
from tests.unit.gateway.clients import Client
from tests.unit.gateway.prompts import prompt_of

CREDIT_NANO = 10_000_000
PROMPT_NANO = 100 * 1_070
ROUTE = Route("acme", "acme-large", 1000, 100)
GOOD = ReplyResult(Usage(90, 40, 10), "stop")
GOOD_NANO = 90 * 1_070 + 40 * 3_450


@pytest.fixture
async def books(tmp_path: Path) -> AsyncIterator[Books]:
    async with open_books(tmp_path, CREDIT_NANO) as opened:
        yield opened


class OnRoute(NamedTuple):
    """A reply, as far as money needs to know it."""

    route: Route


def held_for(books: Books, wanted: Hold, meter: UsageMeter | None = None, prompt: Prompt | None = None) -> hold_credit:
    """As a request of 100 tokens has its money held, unless its prompt is another."""
    prompt = prompt or prompt_of(100, 400)
    return hold_credit(books.writer, Client().exchange(), wanted, prompt, meter or UsageMeter(prompt))


async def settled(books: Books, wanted: Hold, outcome: ReplyResult) -> None:
    """A request that finishes with this outcome."""
    async with held_for(books, wanted) as money:
        money.reply = OnRoute(ROUTE)
        await money.settle(outcome)


async def broken_off(books: Books, error: BaseException, delivered: str = "") -> None:
    """A request that delivers this much and then meets the error."""
    meter = UsageMeter(prompt_of(100, 400))
    if delivered:
        meter.deliver(delivered)
    with pytest.raises(type(error)):
        async with held_for(books, hold(), meter):
            raise error
    await books.until_written()


async def funds(books: Books) -> tuple[int, int]:
    account = await books.account()
    return account.balance_nano, account.held_nano


async def test_the_quote_is_held_while_the_request_runs(books: Books) -> None:
    """Inside the block the whole allowance is held and nothing is charged; after it nothing is held."""
    async with held_for(books, hold()) as money:
        assert money.held.allowance_tokens == 1000
        assert await funds(books) == (CREDIT_NANO, FORTE.quote(100, 1000))
        await money.settle(GOOD)
        assert await funds(books) == (CREDIT_NANO - GOOD_NANO, 0)


async def test_a_settled_request_has_its_charge_and_its_metering_row(books: Books) -> None:
    """One entry of the exact cost, and one row of ids, counts, cost and status."""
    await settled(books, hold(), GOOD)
    [_, charge] = await books.rows("entries")
    assert (charge["kind"], charge["amount_nano"], charge["request_id"]) == ("charge", -GOOD_NANO, "chatcmpl-one")
    [row] = await books.rows("usage")
    assert (row["request_id"], row["key_id"], row["class_id"]) == ("chatcmpl-one", KEY, "forte")
    assert (row["provider"], row["model"], row["status"]) == ("acme", "acme-large", 200)
    assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (90, 10, 40)
    assert (row["cost_nano"], row["estimated"]) == (GOOD_NANO, 0)
    assert row["duration_ms"] >= 0


async def test_an_estimate_is_marked_in_the_metering_row(books: Books) -> None:
    """Our own count does not pass for the upstream's."""
    await settled(books, hold(), ReplyResult(Usage(100, 3, estimated=True), "stop"))
    [row] = await books.rows("usage")
    assert row["estimated"] == 1


async def test_a_charge_of_zero_is_a_charge(books: Books) -> None:
    """An upstream that counted nothing is paid nothing, and the request is settled, not released."""
    await settled(books, hold(), ReplyResult(Usage(0, 0), "stop"))
    assert await funds(books) == (CREDIT_NANO, 0)
    assert [entry["kind"] for entry in await books.rows("entries")] == ["grant", "charge"]
    assert [one["state"] for one in await books.rows("holds")] == ["settled"]


async def test_a_fault_after_a_delivery_is_charged_and_says_502(books: Books) -> None:
    """A stream that broke off costs what was delivered of it."""
    await settled(books, hold(), ReplyResult(Usage(100, 2, estimated=True), None, "truncated"))
    assert await funds(books) == (CREDIT_NANO - FORTE.quote(100, 2), 0)
    assert [row["status"] for row in await books.rows("usage")] == [502]


async def test_a_free_outcome_is_released(books: Books) -> None:
    """A fault before anything was delivered costs nothing, though the prompt was counted."""
    await settled(books, hold(), ReplyResult(Usage(100, 0, estimated=True), None, "truncated", is_free=True))
    assert await funds(books) == (CREDIT_NANO, 0)
    assert [one["state"] for one in await books.rows("holds")] == ["released"]
    assert [(row["status"], row["cost_nano"]) for row in await books.rows("usage")] == [(502, 0)]


@pytest.mark.parametrize(
    ("error", "status"),
    [(UpstreamFailed("m"), 502), (RateLimited("m", 1), 429), (ZeroDivisionError(), 500), (KeyboardInterrupt(), 500)],
)
async def test_what_breaks_off_before_a_delivery_is_free(books: Books, error: BaseException, status: int) -> None:
    """Whatever is raised, the hold is released, nothing is charged, and the row has the status of the error."""
    await broken_off(books, error)
    assert await funds(books) == (CREDIT_NANO, 0)
    assert [(row["status"], row["cost_nano"]) for row in await books.rows("usage")] == [(status, 0)]


@pytest.mark.parametrize("error", [UpstreamFailed("m"), ZeroDivisionError()])
async def test_what_breaks_off_after_a_delivery_is_charged_by_our_own_count(books: Books, error: Exception) -> None:
    """The prompt and the delivered tokens, marked as estimated."""
    await broken_off(books, error, delivered="hello world")
    assert await funds(books) == (CREDIT_NANO - FORTE.quote(100, 2), 0)
    [row] = await books.rows("usage")
    assert (row["prompt_tokens"], row["completion_tokens"], row["estimated"]) == (100, 2, 1)


@pytest.mark.parametrize(("delivered", "cost_nano"), [("", 0), ("hello world", PROMPT_NANO + 2 * 3_450)])
@pytest.mark.parametrize("cancellations", [1, 2, 3])
async def test_cancellation_does_not_lose_the_end(
    books: Books, delivered: str, cost_nano: int, cancellations: int
) -> None:
    """Cancelled once, or again while it ends, the request is charged what was delivered, once, and says 499."""
    meter, is_held = UsageMeter(prompt_of(100, 400)), asyncio.Event()

    async def serve() -> None:
        async with held_for(books, hold(), meter):
            if delivered:
                meter.deliver(delivered)
            is_held.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await is_held.wait()
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    await books.until_written()
    assert await funds(books) == (CREDIT_NANO - cost_nano, 0)
    assert [(row["status"], row["cost_nano"]) for row in await books.rows("usage")] == [(499, cost_nano)]


async def test_cancellation_at_any_step_leaves_nothing_held(books: Books) -> None:
    """Wherever a cancellation strikes, from the hold to the settlement, each hold ends and is charged at most once."""
    one = ReplyResult(Usage(1, 1), "stop")
    for steps in range(0, 2000, 40):
        task = asyncio.create_task(settled(books, hold(f"chatcmpl-{steps}", allowance_tokens=16), one))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    await settled(books, hold("chatcmpl-last"), one)  # what was queued before it is written before it
    charges = [entry for entry in await books.rows("entries") if entry["kind"] == "charge"]
    assert await funds(books) == (CREDIT_NANO - len(charges) * (1_070 + 3_450), 0)


async def test_an_account_that_cannot_pay_is_told_what_it_has_and_what_it_needs(books: Books) -> None:
    """402 with the balance and the least that the request needs, and nothing of it is left in the ledger."""
    with pytest.raises(InsufficientCredit) as refusal:
        await settled(books, hold(prompt_tokens=9_400), GOOD)
    least = "0.0101132"  # 9,400 tokens of prompt and 16 of output
    assert "0.01 dollars" in refusal.value.message
    assert least in refusal.value.message
    assert "9,400 prompt tokens" in refusal.value.message
    assert await funds(books) == (CREDIT_NANO, 0)
    assert (await books.rows("holds"), await books.rows("usage")) == ([], [])


async def test_what_another_request_holds_cannot_be_spent(books: Books) -> None:
    """The credit that is free is the balance less the holds; the refusal says that sum."""
    async with held_for(books, hold(allowance_tokens=2_800)) as money:
        with pytest.raises(InsufficientCredit, match=r"has 0\.000233 dollars"):
            await settled(books, hold("chatcmpl-two", prompt_tokens=500), GOOD)
        await money.settle(GOOD)


async def test_an_allowance_is_fitted_to_the_credit(books: Books) -> None:
    """What cannot be paid in full is held for as much output as the credit pays."""
    wanted = hold(prompt_tokens=9_000, allowance_tokens=1_000)
    async with held_for(books, wanted) as money:
        assert money.held.allowance_tokens == (CREDIT_NANO - 9_000 * 1_070) // 3_450 == 107
        assert await money.output_limit(1_000, 131_072) == 107
        await money.settle(GOOD)


async def test_a_repeated_request_is_refused_with_the_ids_of_the_first(books: Books) -> None:
    """409 names both ids of the first request, while it runs and after it, and holds nothing."""
    digest = hashlib.sha256(b"once").digest()
    async with held_for(books, hold(idempotency_digest=digest)) as money:
        with pytest.raises(RequestRepeated, match=r"req-of-chatcmpl-one \(chatcmpl-one\)"):
            await settled(books, hold("chatcmpl-two", idempotency_digest=digest), GOOD)
        await money.settle(GOOD)
    with pytest.raises(RequestRepeated, match=r"req-of-chatcmpl-one \(chatcmpl-one\)"):
        await settled(books, hold("chatcmpl-three", idempotency_digest=digest), GOOD)
    assert await funds(books) == (CREDIT_NANO - GOOD_NANO, 0)
    assert [one["request_id"] for one in await books.rows("holds")] == ["chatcmpl-one"]


@pytest.mark.parametrize("failure", [UpstreamFailed("m"), InsufficientCredit("m")])
async def test_a_key_whose_request_cost_nothing_may_be_used_again(books: Books, failure: CadenzaError) -> None:
    """After a release, or where the credit did not even pay, the same key is served, once."""
    digest = hashlib.sha256(b"again").digest()
    prompt_tokens = 100_000 if isinstance(failure, InsufficientCredit) else 100
    first = hold(prompt_tokens=prompt_tokens, idempotency_digest=digest)
    with pytest.raises(type(failure)):
        async with held_for(books, first):
            raise failure
    await books.until_written()
    await settled(books, hold("chatcmpl-two", idempotency_digest=digest), GOOD)
    with pytest.raises(RequestRepeated, match="chatcmpl-two"):
        await settled(books, hold("chatcmpl-three", idempotency_digest=digest), GOOD)


def money_of(held: Held, books: Books, price: Price = FORTE) -> Money:
    wanted = Hold("chatcmpl-one", "acct_a", KEY, "forte", 100, 1_024, price, stream=False, started_at=1)
    return Money(books.writer, Client().exchange(), wanted, held, prompt_of(100))


@pytest.mark.parametrize(
    ("held", "max_tokens", "limit"),
    [
        (Held(500, 10**12), 500, 500),
        (Held(500, 10**12), 800, 500),
        (Held(5, 0), 5, 5),
        (Held(1_024, 0), None, 1_024),
        (Held(1_024, 3_449), None, 1_024),
        (Held(1_024, 3_450), None, 1_025),
        (Held(1_024, 10**12), None, 4_096),
        (Held(40, 10), None, 40),
        (Held(4_096, 10**12), 131_072, 4_096),
    ],
)
async def test_how_much_may_be_generated(books: Books, held: Held, max_tokens: int | None, limit: int) -> None:
    """What was asked for as far as it is held; without a limit, on into the credit that is left, up to the route's."""
    assert await money_of(held, books).output_limit(max_tokens, 4_096) == limit


async def test_output_that_costs_nothing_is_limited_by_the_route(books: Books) -> None:
    """Without a price for output no division by it is made."""
    assert await money_of(Held(1_024, 0), books, Price(1, 0)).output_limit(None, 4_096) == 4_096


PROMPT_BYTES = 400
AMPLE_NANO = UNCOUNTED_TIMES * FORTE.quote(PROMPT_BYTES, 1_000)
ROUTE_TOKENS = 4_096


class Served(NamedTuple):
    """What came of a request: the limit of its answer, or the refusal."""

    output_limit: int | None
    message: str = ""


async def served(books: Books, credit_nano: int, max_tokens: int | None, *, is_counted: bool) -> Served:
    """A prompt of 100 tokens in 400 bytes, asked by an account that has just so much left."""
    tokens, allowed = 100 if is_counted else PROMPT_BYTES, allowance(max_tokens, ROUTE_TOKENS)
    wanted = hold(new_completion_id(1), prompt_tokens=tokens, allowance_tokens=allowed)
    wanted = msgspec.structs.replace(wanted, is_counted=is_counted)
    others = hold(new_completion_id(2), prompt_tokens=CREDIT_NANO - credit_nano)
    async with held_for(books, msgspec.structs.replace(others, price=Price(1, 0))) as rest:
        try:
            async with held_for(books, wanted, prompt=prompt_of(100, PROMPT_BYTES)) as money:
                limit = await money.output_limit(max_tokens, ROUTE_TOKENS)
                await money.settle(ReplyResult(Usage(0, 0), "stop", is_free=True))
        except InsufficientCredit as refusal:
            return Served(None, refusal.message)
        finally:
            await rest.settle(ReplyResult(Usage(0, 0), "stop", is_free=True))
    return Served(limit)


def around(prompt_tokens: int, output_tokens: int) -> list[int]:
    """Just too little to pay that, just enough, and a little more."""
    paid_nano = FORTE.quote(prompt_tokens, output_tokens)
    return [paid_nano - 1, paid_nano, paid_nano + 1]


@pytest.mark.parametrize("max_tokens", [None, 5, 500])
async def test_what_was_not_counted_is_served_as_if_it_had_been(books: Books, max_tokens: int | None) -> None:
    """Whatever an account has, it gets the answer, the limit or the refusal that the exact count gives it."""
    least_nano = FORTE.quote(100, min(max_tokens or 16, 16))
    for prompt_tokens, output_tokens in itertools.product((100, PROMPT_BYTES), (0, 5, 16, 500, 1_024, 2_000)):
        for credit_nano in around(prompt_tokens, output_tokens):
            by_bytes = await served(books, credit_nano, max_tokens, is_counted=False)
            assert by_bytes == await served(books, credit_nano, max_tokens, is_counted=True)
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
    """Else it is counted, and held by its count."""
    prompt = prompt_of(100, PROMPT_BYTES)
    wanted = msgspec.structs.replace(hold(prompt_tokens=PROMPT_BYTES), is_counted=False)
    async with open_books(tmp_path, credit_nano) as books, held_for(books, wanted, prompt=prompt) as money:
        assert (await funds(books))[1] == held_nano
        assert prompt.is_counted == (held_nano < FORTE.quote(PROMPT_BYTES, 1_000))
        await money.settle(GOOD)


@pytest.mark.parametrize("max_tokens", [None, 1_000])
async def test_a_rich_account_has_nothing_counted(tmp_path: Path, max_tokens: int | None) -> None:
    """Neither the hold nor the limit of an answer needs the count where there is credit for all of it."""
    prompt = prompt_of(100, PROMPT_BYTES)
    wanted = msgspec.structs.replace(hold(prompt_tokens=PROMPT_BYTES), is_counted=False)
    async with open_books(tmp_path, AMPLE_NANO) as books, held_for(books, wanted, prompt=prompt) as money:
        assert await money.output_limit(max_tokens, 1_200) == (max_tokens or 1_200)
        await money.settle(GOOD)
    assert not prompt.is_counted


async def test_an_idempotency_key_outlives_the_count(books: Books) -> None:
    """A hold that is asked for again by its count is the same request, and a repetition of it is still refused."""
    digest = hashlib.sha256(b"once").digest()
    uncounted = hold(prompt_tokens=9_400, allowance_tokens=500, idempotency_digest=digest)
    uncounted = msgspec.structs.replace(uncounted, is_counted=False)
    await settled(books, uncounted, GOOD)
    with pytest.raises(RequestRepeated, match="chatcmpl-one"):
        await settled(books, msgspec.structs.replace(uncounted, request_id="chatcmpl-two"), GOOD)
    assert await funds(books) == (CREDIT_NANO - GOOD_NANO, 0)


async def test_who_leaves_while_the_prompt_is_counted_has_nothing_held(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a hold that could not be paid and the one by the exact count, there is none."""
    is_counting, prompt = asyncio.Event(), prompt_of(100, PROMPT_BYTES)

    async def count_for_ever() -> int:
        is_counting.set()
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(prompt, "count", count_for_ever)
    wanted = msgspec.structs.replace(hold(prompt_tokens=9_400), is_counted=False)
    task = asyncio.create_task(held_for(books, wanted, prompt=prompt).__aenter__())
    await is_counting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await books.until_written()
    assert await funds(books) == (CREDIT_NANO, 0)
    assert await books.rows("holds") == []


async def test_what_breaks_off_is_counted_though_the_tokenizer_is_not_there_yet(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first count of a process is as exact as any other."""
    monkeypatch.setattr(tokens, "_o200k", None)
    await broken_off(books, UpstreamFailed("m"), delivered="hello world")
    assert await funds(books) == (CREDIT_NANO - FORTE.quote(100, 2), 0)


@pytest.mark.parametrize(("age_s", "is_marked"), [(0.0, False), (0.6, False), (1.0, True)])
async def test_what_has_run_for_a_second_is_marked_by_its_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: float, is_marked: bool
) -> None:
    """A process that dies has charged prompt and delivered exactly from then on, and nothing before."""
    async with open_books(tmp_path, AMPLE_NANO) as books:
        await check_mark(books, monkeypatch, age_s, is_marked=is_marked)


async def check_mark(books: Books, monkeypatch: pytest.MonkeyPatch, age_s: float, *, is_marked: bool) -> None:
    prompt = prompt_of(100, PROMPT_BYTES)
    meter, wanted = UsageMeter(prompt), msgspec.structs.replace(hold(prompt_tokens=PROMPT_BYTES), is_counted=False)
    monkeypatch.setattr(tokens, "_o200k", None)
    await held_for(books, wanted, meter, prompt).__aenter__()
    meter.deliver("hello world")
    running = books.writer._running[wanted.request_id]
    running.since_s = time.monotonic() - age_s
    await books.writer._mark()
    [row] = await books.rows("holds")
    assert (row["prompt_tokens"], row["delivered_tokens"]) == ((100, 2) if is_marked else (PROMPT_BYTES, 0))
    assert (prompt.is_counted, tokens.is_loaded()) == (is_marked, is_marked)
    await books.writer.stop()
    await books.start_anew()
    assert await funds(books) == (AMPLE_NANO - (FORTE.quote(100, 2) if is_marked else 0), 0)


async def leave_uncounted(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is cut while the tokenizer is not there: its request is gone, and its count has only begun."""
    meter, loop = UsageMeter(prompt_of(100, 400)), asyncio.get_running_loop()
    is_loading, may_load = asyncio.Event(), threading.Event()

    def load_slowly() -> None:
        loop.call_soon_threadsafe(is_loading.set)
        may_load.wait(WAIT_S)
        tokens.load()

    async def serve() -> None:
        async with held_for(books, hold(), meter):
            meter.deliver("hello world")
            raise asyncio.CancelledError

    monkeypatch.setattr(tokens, "_o200k", None)
    monkeypatch.setattr("cadenza.gateway.meter.load", load_slowly)
    task = asyncio.create_task(serve())
    await is_loading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_load.set()


async def test_a_stop_waits_for_what_is_being_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that is told to stop while a stream that was cut is counted has its charge written first."""
    async with open_books(tmp_path, CREDIT_NANO) as books:
        await leave_uncounted(books, monkeypatch)
        await books.writer.stop()
        assert await funds(books) == (CREDIT_NANO - FORTE.quote(100, 2), 0)
        await books.start_anew()


async def test_a_stop_does_not_wait_for_a_store_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was counted and cannot be written is left to be swept, as every end is."""
    monkeypatch.setattr("cadenza.gateway.billing.BREAK_OFF_S", 0.1)

    async def take_nothing(*_: object, **__: object) -> None:
        raise StoreUnavailable("no")

    async with open_books(tmp_path, CREDIT_NANO) as books:
        await leave_uncounted(books, monkeypatch)
        with monkeypatch.context() as broken:
            broken.setattr(books.db, "transact", take_nothing)
            async with asyncio.timeout(WAIT_S):
                await books.writer.stop()
        assert (await funds(books))[0] == CREDIT_NANO
        await books.start_anew()
        assert await funds(books) == (CREDIT_NANO, 0)


@pytest.mark.parametrize(
    ("max_tokens", "route_tokens", "held_tokens"),
    [(None, 131_072, 1_024), (None, 512, 512), (5, 131_072, 5), (200_000, 131_072, 131_072), (1, 1, 1)],
)
def test_the_allowance_is_what_was_asked_within_the_route(
    max_tokens: int | None, route_tokens: int, held_tokens: int
) -> None:
    """1,024 where nothing is said, and never more than the route can generate."""
    assert allowance(max_tokens, route_tokens) == held_tokens


def test_an_idempotency_key_is_kept_as_its_digest() -> None:
    """Any text of the client's becomes 32 bytes; none and an empty one are no key."""
    assert idempotency_digest({b"idempotency-key": b"once"}) == hashlib.sha256(b"once").digest()
    assert idempotency_digest({b"idempotency-key": b""}) is None
    assert idempotency_digest({}) is None
