"""Credit decides: a request is served, its limit is fitted to the balance, or it is a 402."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal

import pytest

from cadenza.core.money import format_dollars
from tests.account import PROMPT_TOKENS, Account, forte_nano, open_account, prompt_bytes
from tests.loopback import ROLE, STOP, Json, LoopbackUpstream, Pause, Sse, completion, said, usage_chunk
from tests.raw_client import read_until
from tests.service import Service, wait_until

LEAST_TOKENS = 16
FITTED = "x-cadenza-max-tokens"
ONE_EACH = {"prompt_tokens": 1, "completion_tokens": 1}

AccountOf = Callable[[int], Account]


@pytest.fixture
def account_of(service: Service) -> Iterator[AccountOf]:
    """Accounts with exactly this credit."""
    with ExitStack() as opened:
        yield lambda credit_nano: opened.enter_context(open_account(service, credit_nano))


def paying_for(output_tokens: int) -> int:
    """The credit for the prompt of `RawClient.chat` and so much output."""
    return forte_nano(PROMPT_TOKENS, output_tokens)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("credit_nano", [0, 1, paying_for(0), paying_for(LEAST_TOKENS) - 1])
def test_insufficient_credit_is_402(
    account_of: AccountOf, upstream: LoopbackUpstream, credit_nano: int, stream: bool
) -> None:
    """Insufficient credit is a 402 that is not to be retried and names the balance and the amount needed."""
    account = account_of(credit_nano)
    reply = account.api.chat(stream=stream)
    message = reply.error(402, "insufficient_quota")
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers
    assert f"{format_dollars(credit_nano)} dollars" in message
    assert f"{format_dollars(paying_for(LEAST_TOKENS))} " in message
    assert upstream.requests == []
    assert (account.balance_nano, account.charges) == (credit_nano, [])


def test_the_named_amount_is_enough(account_of: AccountOf, upstream: LoopbackUpstream) -> None:
    """A client that adds the amount that the 402 named is served on its next request."""
    account = account_of(1_000)
    account.api.chat().error(402, "insufficient_quota")
    account.give(paying_for(LEAST_TOKENS) - 1_000)
    assert account.api.chat().status == 200


@pytest.mark.parametrize("words", [2_000, 300_000])
def test_a_long_prompt_is_told_what_it_needs(account_of: AccountOf, upstream: LoopbackUpstream, words: int) -> None:
    """The 402 names about as many tokens as the prompt has, also where it is refused without a count."""
    account, prompt = account_of(1_000), [{"role": "user", "content": "harbour " * words}]
    message = account.api.chat(messages=prompt).error(402, "insufficient_quota")
    named = re.search(r"needs (at least|about) ([0-9.]+) for (?:about )?([0-9,]+) prompt tokens", message)
    assert named, message
    tokens = int(named[3].replace(",", ""))
    assert words <= tokens <= 2.1 * words + PROMPT_TOKENS
    assert named[1] == ("at least" if words == 2_000 else "about")
    account.give(int(Decimal(named[2]) * 10**9))
    assert account.api.chat(messages=prompt).status == 200


def test_invalid_request_is_400_before_402(account_of: AccountOf) -> None:
    """An invalid request is a 400 even if the account is empty."""
    account = account_of(0)
    account.api.chat(model="gpt-4o").error(400)
    account.api.chat(temperature=9).error(400)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("affordable", [LEAST_TOKENS, LEAST_TOKENS + 1, 999])
def test_limit_is_fitted_to_the_credit(
    account_of: AccountOf, upstream: LoopbackUpstream, affordable: int, stream: bool
) -> None:
    """A balance that pays for the prompt and some output is served with that limit, which a header names."""
    account = account_of(paying_for(affordable))
    reply = account.api.chat(max_tokens=1_000, stream=stream)
    assert reply.status == 200
    assert upstream.wait_for_request().json["max_tokens"] == affordable
    assert reply.headers[FITTED] == str(affordable)
    assert FITTED in reply.headers["access-control-expose-headers"]


@pytest.mark.parametrize("spare_nano", [0, 1, 3_449])
def test_fitted_limit_is_rounded_down(account_of: AccountOf, upstream: LoopbackUpstream, spare_nano: int) -> None:
    """A remainder that does not pay for another token is not used."""
    account = account_of(paying_for(20) + spare_nano)
    assert account.api.chat(max_tokens=21).headers[FITTED] == "20"


def test_affordable_limit_is_not_changed(account_of: AccountOf, upstream: LoopbackUpstream) -> None:
    """With exactly enough credit the limit is not changed and no header is sent."""
    reply = account_of(paying_for(1_000)).api.chat(max_tokens=1_000)
    assert FITTED not in reply.headers
    assert upstream.wait_for_request().json["max_tokens"] == 1_000


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 1_000}], ids=["no limit", "a limit"])
def test_prompt_is_paid_by_its_tokens(
    account_of: AccountOf, upstream: LoopbackUpstream, fields: dict[str, int], stream: bool
) -> None:
    """Credit for the tokens of a prompt and its answer is enough, although its bytes would cost more."""
    account = account_of(paying_for(1_000))
    assert forte_nano(prompt_bytes(**fields), LEAST_TOKENS) > paying_for(LEAST_TOKENS)
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 1_000}
    said_usage = usage_chunk(usage)
    upstream.script(Sse([ROLE, said("hi"), STOP, said_usage]) if stream else Json(completion("hi", usage=usage)))
    reply = account.api.chat(stream=stream, **fields)
    assert (reply.status, reply.headers.get(FITTED)) == (200, None if fields else "1000")
    assert (account.balance_nano, account.charge()["amount_nano"]) == (0, -paying_for(1_000))


def test_short_limit_needs_only_its_own_credit(account_of: AccountOf, upstream: LoopbackUpstream) -> None:
    """A limit below the least that is fitted needs credit for that limit only."""
    assert account_of(paying_for(5)).api.chat(max_tokens=5).status == 200
    account_of(paying_for(5) - 1).api.chat(max_tokens=5).error(402, "insufficient_quota")
    assert len(upstream.requests) == 1


def test_large_balance_sets_no_limit(account_of: AccountOf, upstream: LoopbackUpstream) -> None:
    """Without a limit of the client, none is sent upstream if the balance is large."""
    reply = account_of(5_000_000_000).api.chat()
    assert FITTED not in reply.headers
    assert {"max_tokens", "max_completion_tokens"}.isdisjoint(upstream.wait_for_request().json)


@pytest.mark.parametrize(
    ("affordable", "limit"),
    [
        (LEAST_TOKENS, LEAST_TOKENS),
        (1_023, 1_023),
        (1_024, 1_024),
        (5_000, 1_024 + 3_976 // 8),
        (131_071, 1_024 + 130_047 // 8),
    ],
)
def test_small_balance_sets_a_limit(
    account_of: AccountOf, upstream: LoopbackUpstream, affordable: int, limit: int
) -> None:
    """Without a limit of the client, the output may have 1,024 tokens, and what an eighth of the rest pays for."""
    reply = account_of(paying_for(affordable)).api.chat()
    assert upstream.wait_for_request().json["max_tokens"] == limit
    assert reply.headers[FITTED] == str(limit)


def test_answers_without_a_limit_cannot_be_served_beyond_the_balance(
    account_of: AccountOf, upstream: LoopbackUpstream
) -> None:
    """However many run at once: the limits that upstreams were sent cost no more than the balance."""
    credit_nano, pauses = paying_for(5_000), [Pause() for _ in range(3)]
    account = account_of(credit_nano)
    upstream.script(*[Sse([ROLE, said("words"), pause, STOP, usage_chunk(ONE_EACH)]) for pause in pauses])
    with ExitStack() as streams:
        connections = [streams.enter_context(account.api.open_chat(stream=True)) for _ in pauses]
        for connection in connections:
            read_until(connection, b"words")
        limits = [request.json["max_tokens"] for request in upstream.requests]
        for pause in pauses:
            pause.release()
        for connection in connections:
            read_until(connection, b"[DONE]")
    assert len(limits) == 3
    assert sum(paying_for(limit) for limit in limits) <= credit_nano


def test_character_layer_is_paid_for(account_of: AccountOf, upstream: LoopbackUpstream) -> None:
    """The prompt that must be paid includes the character layer."""
    account = account_of(paying_for(LEAST_TOKENS) - 1)
    message = account.api.chat().error(402, "insufficient_quota")
    assert f"{PROMPT_TOKENS} prompt tokens" in message


@pytest.mark.parametrize("said_tokens", [17, 1_000, 10**9])
def test_upstream_cannot_overdraw_an_account(
    account_of: AccountOf, upstream: LoopbackUpstream, said_tokens: int
) -> None:
    """If the upstream counts more output than the fitted limit, only the limit is charged."""
    account = account_of(paying_for(LEAST_TOKENS))
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": said_tokens}
    upstream.script(Json(completion("hi", usage=usage)))
    assert account.api.chat(max_tokens=2_000).status == 200
    assert account.balance_nano == 0
    assert account.charge()["completion_tokens"] == LEAST_TOKENS


def test_shortfall_is_counted(account_of: AccountOf, upstream: LoopbackUpstream) -> None:
    """If the upstream counts more prompt than was held, the account is emptied and a metric counts the shortfall."""
    account = account_of(paying_for(LEAST_TOKENS))
    before_nano = short_nano(account)
    usage = {"prompt_tokens": PROMPT_TOKENS + 10, "completion_tokens": LEAST_TOKENS}
    upstream.script(Json(completion("hi", usage=usage)))
    assert account.api.chat(max_tokens=LEAST_TOKENS).status == 200
    assert (account.balance_nano, account.charge()["amount_nano"]) == (0, -paying_for(LEAST_TOKENS))
    wait_until(lambda: short_nano(account) == before_nano + 10 * 1_070, "the shortfall in the metrics")
    account.api.chat().error(402, "insufficient_quota")


def short_nano(account: Account) -> float:
    [line] = [
        line
        for line in account.api.request("GET", "/metrics").body.decode().splitlines()
        if line.startswith("cadenza_ledger_short_nano_total ")
    ]
    return float(line.split(" ")[1])


def test_held_credit_cannot_be_spent_twice(account_of: AccountOf, upstream: LoopbackUpstream) -> None:
    """While a stream runs a second request has only what is not held; afterwards the unused part is free again."""
    account = account_of(paying_for(500) + paying_for(LEAST_TOKENS) - 1)
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause, STOP, usage_chunk(ONE_EACH)]))
    with account.api.open_chat(stream=True, max_tokens=500) as connection:
        read_until(connection, b"first word")
        message = account.api.chat(max_tokens=500).error(402, "insufficient_quota")
        assert f"{format_dollars(paying_for(LEAST_TOKENS) - 1)} dollars" in message
        pause.release()
        read_until(connection, b"[DONE]")
    assert account.api.chat(max_tokens=500).status == 200
