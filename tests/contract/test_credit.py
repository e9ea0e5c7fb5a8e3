"""Credit decides: what it pays for is served, what it pays in part is fitted to it, and the rest is 402."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from cadenza.core.money import format_dollars
from tests.contract.purse import PROMPT_TOKENS, Purse, forte_nano, open_purse, prompt_bytes, wait_until
from tests.contract.wire import read_until
from tests.loopback import Json, LoopbackUpstream, Pause, Sse, chunk, completion, said
from tests.service import Service

LEAST_TOKENS = 16
FITTED = "x-cadenza-max-tokens"
ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk(finish="stop")
ONE_EACH = {"prompt_tokens": 1, "completion_tokens": 1}

PurseOf = Callable[[int], Purse]


@pytest.fixture
def purse_of(service: Service) -> Iterator[PurseOf]:
    """Purses with just so many nano-dollars."""
    with ExitStack() as opened:
        yield lambda credit_nano: opened.enter_context(open_purse(service, credit_nano))


def paying_for(output_tokens: int) -> int:
    """The credit that pays for the prompt of `Wire.chat` and so much output."""
    return forte_nano(PROMPT_TOKENS, output_tokens)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("credit_nano", [0, 1, paying_for(0), paying_for(LEAST_TOKENS) - 1])
def test_an_account_that_cannot_pay_is_402(
    purse_of: PurseOf, upstream: LoopbackUpstream, credit_nano: int, stream: bool
) -> None:
    """The error object of exhausted credit: not to be retried, with the balance and the need in its message."""
    purse = purse_of(credit_nano)
    reply = purse.wire.chat(stream=stream)
    message = reply.error(402, "insufficient_quota")
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers
    assert f"{format_dollars(credit_nano)} dollars" in message
    assert f"{format_dollars(paying_for(LEAST_TOKENS))} " in message
    assert upstream.requests == []
    assert (purse.balance_nano, purse.charges) == (credit_nano, [])


def test_the_sum_that_was_named_is_enough(purse_of: PurseOf, upstream: LoopbackUpstream) -> None:
    """Who adds the credit that the refusal asked for is served on the very next request."""
    purse = purse_of(1_000)
    purse.wire.chat().error(402, "insufficient_quota")
    purse.give(paying_for(LEAST_TOKENS) - 1_000)
    assert purse.wire.chat().status == 200


def test_a_fault_of_the_request_comes_before_its_cost(purse_of: PurseOf) -> None:
    """A request that is wrong is told so, though the account is empty."""
    purse = purse_of(0)
    purse.wire.chat(model="gpt-4o").error(400)
    purse.wire.chat(temperature=9).error(400)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("affordable", [LEAST_TOKENS, LEAST_TOKENS + 1, 999])
def test_a_limit_is_fitted_to_the_credit(
    purse_of: PurseOf, upstream: LoopbackUpstream, affordable: int, stream: bool
) -> None:
    """A balance that pays for the prompt and some output is served with that much, and the client is told."""
    purse = purse_of(paying_for(affordable))
    reply = purse.wire.chat(max_tokens=1_000, stream=stream)
    assert reply.status == 200
    assert upstream.wait_for_request().json["max_tokens"] == affordable
    assert reply.headers[FITTED] == str(affordable)
    assert FITTED in reply.headers["access-control-expose-headers"]


@pytest.mark.parametrize("spare_nano", [0, 1, 3_449])
def test_a_fitted_limit_is_rounded_down(purse_of: PurseOf, upstream: LoopbackUpstream, spare_nano: int) -> None:
    """Nano-dollars that do not pay for another token pay for nothing."""
    purse = purse_of(paying_for(20) + spare_nano)
    assert purse.wire.chat(max_tokens=21).headers[FITTED] == "20"


def test_a_limit_that_the_credit_pays_is_left_alone(purse_of: PurseOf, upstream: LoopbackUpstream) -> None:
    """With just enough for all of it nothing is fitted and nothing is said."""
    reply = purse_of(paying_for(1_000)).wire.chat(max_tokens=1_000)
    assert FITTED not in reply.headers
    assert upstream.wait_for_request().json["max_tokens"] == 1_000


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 1_000}], ids=["no limit", "a limit"])
def test_the_bytes_of_a_prompt_need_not_be_paid(
    purse_of: PurseOf, upstream: LoopbackUpstream, fields: dict[str, int], stream: bool
) -> None:
    """Credit for the tokens of a prompt and of its answer is enough, though its bytes would cost more."""
    purse = purse_of(paying_for(1_000))
    assert forte_nano(prompt_bytes(**fields), LEAST_TOKENS) > paying_for(LEAST_TOKENS)
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 1_000}
    said_usage = chunk(choices=[], usage=usage)
    upstream.script(Sse([ROLE, said("hi"), STOP, said_usage]) if stream else Json(completion("hi", usage=usage)))
    reply = purse.wire.chat(stream=stream, **fields)
    assert (reply.status, reply.headers.get(FITTED)) == (200, None if fields else "1000")
    assert (purse.balance_nano, purse.charge()["amount_nano"]) == (0, -paying_for(1_000))


def test_a_short_answer_needs_no_more_than_itself(purse_of: PurseOf, upstream: LoopbackUpstream) -> None:
    """Who asks for fewer tokens than the least that is fitted must pay for those only."""
    assert purse_of(paying_for(5)).wire.chat(max_tokens=5).status == 200
    purse_of(paying_for(5) - 1).wire.chat(max_tokens=5).error(402, "insufficient_quota")
    assert len(upstream.requests) == 1


def test_a_rich_account_is_not_limited(purse_of: PurseOf, upstream: LoopbackUpstream) -> None:
    """Without a limit of the client's own, none is sent upstream."""
    reply = purse_of(5_000_000_000).wire.chat()
    assert FITTED not in reply.headers
    assert {"max_tokens", "max_completion_tokens"}.isdisjoint(upstream.wait_for_request().json)


@pytest.mark.parametrize("affordable", [LEAST_TOKENS, 1_023, 1_024, 5_000, 131_071])
def test_a_poor_account_is_limited_by_its_credit(
    purse_of: PurseOf, upstream: LoopbackUpstream, affordable: int
) -> None:
    """Without a limit of the client's own the answer may go on for as long as the credit lasts, and no longer."""
    reply = purse_of(paying_for(affordable)).wire.chat()
    assert upstream.wait_for_request().json["max_tokens"] == affordable
    assert reply.headers[FITTED] == str(affordable)


def test_the_character_layer_is_paid_for(purse_of: PurseOf, upstream: LoopbackUpstream) -> None:
    """The prompt that must be paid is all that goes upstream, not the client's messages alone."""
    purse = purse_of(paying_for(LEAST_TOKENS) - 1)
    message = purse.wire.chat().error(402, "insufficient_quota")
    assert f"{PROMPT_TOKENS} prompt tokens" in message


@pytest.mark.parametrize("said_tokens", [17, 1_000, 10**9])
def test_an_upstream_cannot_overdraw_an_account(
    purse_of: PurseOf, upstream: LoopbackUpstream, said_tokens: int
) -> None:
    """Where it counts more output than the balance could pay, the fitted limit is charged and the rest is its loss."""
    purse = purse_of(paying_for(LEAST_TOKENS))
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": said_tokens}
    upstream.script(Json(completion("hi", usage=usage)))
    assert purse.wire.chat(max_tokens=2_000).status == 200
    assert purse.balance_nano == 0
    assert purse.charge()["completion_tokens"] == LEAST_TOKENS


def test_what_an_account_cannot_pay_is_counted_as_short(purse_of: PurseOf, upstream: LoopbackUpstream) -> None:
    """A prompt that the upstream counts higher than we did empties the account and no more; the operator sees it."""
    purse = purse_of(paying_for(LEAST_TOKENS))
    before_nano = short_nano(purse)
    usage = {"prompt_tokens": PROMPT_TOKENS + 10, "completion_tokens": LEAST_TOKENS}
    upstream.script(Json(completion("hi", usage=usage)))
    assert purse.wire.chat(max_tokens=LEAST_TOKENS).status == 200
    assert (purse.balance_nano, purse.charge()["amount_nano"]) == (0, -paying_for(LEAST_TOKENS))
    wait_until(lambda: short_nano(purse) == before_nano + 10 * 1_070, "the shortfall in the metrics")
    purse.wire.chat().error(402, "insufficient_quota")


def short_nano(purse: Purse) -> float:
    [line] = [
        line
        for line in purse.wire.request("GET", "/metrics").body.decode().splitlines()
        if line.startswith("cadenza_ledger_short_nano_total ")
    ]
    return float(line.split(" ")[1])


def test_what_a_running_request_holds_cannot_be_spent_twice(purse_of: PurseOf, upstream: LoopbackUpstream) -> None:
    """While a stream runs a second request has only what is not held; when it ends, what it did not use is back."""
    purse = purse_of(paying_for(500) + paying_for(LEAST_TOKENS) - 1)
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause, STOP, chunk(choices=[], usage=ONE_EACH)]))
    with purse.wire.open_chat(stream=True, max_tokens=500) as connection:
        read_until(connection, b"first word")
        message = purse.wire.chat(max_tokens=500).error(402, "insufficient_quota")
        assert f"{format_dollars(paying_for(LEAST_TOKENS) - 1)} dollars" in message
        pause.release()
        read_until(connection, b"[DONE]")
    assert purse.wire.chat(max_tokens=500).status == 200
