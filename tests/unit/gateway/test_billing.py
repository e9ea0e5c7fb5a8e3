"""One request's money on a real ledger: held first, ended once, and charged for what was delivered."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cadenza.core.errors import CadenzaError, InsufficientCredit, RateLimited, RequestRepeated, UpstreamFailed
from cadenza.core.money import Price
from cadenza.core.records import Outcome, Route, Usage
from cadenza.gateway.billing import Money, allowance, hold_credit, idempotency_digest
from cadenza.gateway.tally import Tally
from cadenza.store.ledger import Held, Hold
from tests.unit.gateway.asgi import Client
from tests.unit.gateway.books import FORTE, KEY, Books, hold, open_books

CREDIT_NANO = 10_000_000
PROMPT_NANO = 100 * 1_070
ROUTE = Route("acme", "acme-large", 1000, 100)
GOOD = Outcome(Usage(90, 40, 10), "stop")
GOOD_NANO = 90 * 1_070 + 40 * 3_450


@pytest.fixture
async def books(tmp_path: Path) -> AsyncIterator[Books]:
    async with open_books(tmp_path, CREDIT_NANO) as opened:
        yield opened


class OnRoute(NamedTuple):
    """A reply, as far as money needs to know it."""

    route: Route


def new_tally() -> Tally:
    return Tally(100, 400)


async def settled(books: Books, wanted: Hold, outcome: Outcome) -> None:
    """A request that finishes with this outcome."""
    async with hold_credit(books.writer, Client().call(), wanted, new_tally()) as money:
        money.reply = OnRoute(ROUTE)
        await money.settle(outcome)


async def broken_off(books: Books, error: BaseException, delivered: str = "") -> None:
    """A request that delivers this much and then meets the error."""
    tally = new_tally()
    tally.deliver(delivered)
    with pytest.raises(type(error)):
        async with hold_credit(books.writer, Client().call(), hold(), tally):
            raise error
    await books.until_written()


async def funds(books: Books) -> tuple[int, int]:
    account = await books.account()
    return account.balance_nano, account.held_nano


async def test_the_quote_is_held_while_the_request_runs(books: Books) -> None:
    """Inside the block the whole allowance is held and nothing is charged; after it nothing is held."""
    async with hold_credit(books.writer, Client().call(), hold(), new_tally()) as money:
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
    await settled(books, hold(), Outcome(Usage(100, 3, estimated=True), "stop"))
    [row] = await books.rows("usage")
    assert row["estimated"] == 1


async def test_a_charge_of_zero_is_a_charge(books: Books) -> None:
    """An upstream that counted nothing is paid nothing, and the request is settled, not released."""
    await settled(books, hold(), Outcome(Usage(0, 0), "stop"))
    assert await funds(books) == (CREDIT_NANO, 0)
    assert [entry["kind"] for entry in await books.rows("entries")] == ["grant", "charge"]
    assert [one["state"] for one in await books.rows("holds")] == ["settled"]


async def test_a_fault_after_a_delivery_is_charged_and_says_502(books: Books) -> None:
    """A stream that broke off costs what was delivered of it."""
    await settled(books, hold(), Outcome(Usage(100, 2, estimated=True), None, "cut"))
    assert await funds(books) == (CREDIT_NANO - FORTE.quote(100, 2), 0)
    assert [row["status"] for row in await books.rows("usage")] == [502]


async def test_a_free_outcome_is_released(books: Books) -> None:
    """A fault before anything was delivered costs nothing, though the prompt was counted."""
    await settled(books, hold(), Outcome(Usage(100, 0, estimated=True), None, "cut", is_free=True))
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
    tally, is_held = new_tally(), asyncio.Event()

    async def serve() -> None:
        async with hold_credit(books.writer, Client().call(), hold(), tally):
            tally.deliver(delivered)
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
    one = Outcome(Usage(1, 1), "stop")
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
    async with hold_credit(books.writer, Client().call(), hold(allowance_tokens=2_800), new_tally()) as money:
        with pytest.raises(InsufficientCredit, match=r"has 0\.000233 dollars"):
            await settled(books, hold("chatcmpl-two", prompt_tokens=500), GOOD)
        await money.settle(GOOD)


async def test_an_allowance_is_fitted_to_the_credit(books: Books) -> None:
    """What cannot be paid in full is held for as much output as the credit pays."""
    wanted = hold(prompt_tokens=9_000, allowance_tokens=1_000)
    async with hold_credit(books.writer, Client().call(), wanted, new_tally()) as money:
        assert money.held.allowance_tokens == (CREDIT_NANO - 9_000 * 1_070) // 3_450 == 107
        assert money.output_limit(1_000, 131_072) == 107
        await money.settle(GOOD)


async def test_a_repeated_request_is_refused_with_the_ids_of_the_first(books: Books) -> None:
    """409 names both ids of the first request, while it runs and after it, and holds nothing."""
    digest = hashlib.sha256(b"once").digest()
    async with hold_credit(books.writer, Client().call(), hold(idempotency_digest=digest), new_tally()) as money:
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
        async with hold_credit(books.writer, Client().call(), first, new_tally()):
            raise failure
    await books.until_written()
    await settled(books, hold("chatcmpl-two", idempotency_digest=digest), GOOD)
    with pytest.raises(RequestRepeated, match="chatcmpl-two"):
        await settled(books, hold("chatcmpl-three", idempotency_digest=digest), GOOD)


def money_of(held: Held, books: Books, price: Price = FORTE) -> Money:
    wanted = Hold("chatcmpl-one", "acct_a", KEY, "forte", 100, 1_024, price, stream=False, started_at=1)
    return Money(books.writer, Client().call(), wanted, held)


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
    assert money_of(held, books).output_limit(max_tokens, 4_096) == limit


async def test_output_that_costs_nothing_is_limited_by_the_route(books: Books) -> None:
    """Without a price for output no division by it is made."""
    assert money_of(Held(1_024, 0), books, Price(1, 0)).output_limit(None, 4_096) == 4_096


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
