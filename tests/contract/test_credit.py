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
