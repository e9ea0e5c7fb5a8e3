"""Impossible usage: the charge stays within possible bounds, nothing is credited, and the operator is told."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.account import PROMPT_TOKENS, Account, forte_nano, open_account
from tests.loopback import (
    ROLE,
    STOP,
    Json,
    LoopbackUpstream,
    Reply,
    Sse,
    completion,
    said,
    sse_event,
    usage_chunk,
)
from tests.service import Service, wait_until
from tests.tokens import count_tokens

TEXT = "Music is the silence between the notes."
OWN_COST_NANO = forte_nano(PROMPT_TOKENS, count_tokens(TEXT))
UNREADABLE: dict[str, Any] = {
    "negative prompt": {"prompt_tokens": -5, "completion_tokens": 7},
    "negative completion": {"prompt_tokens": 11, "completion_tokens": -7},
    "both negative": {"prompt_tokens": -11, "completion_tokens": -(10**12)},
    "fractions": {"prompt_tokens": 11.5, "completion_tokens": 7.25},
    "whole numbers as fractions": {"prompt_tokens": 11.0, "completion_tokens": 7.0},
    "strings": {"prompt_tokens": "11", "completion_tokens": "7"},
    "truths": {"prompt_tokens": True, "completion_tokens": True},
    "a list and an object": {"prompt_tokens": [11], "completion_tokens": {"count": 7}},
    "more than any reply has": {"prompt_tokens": 2**63, "completion_tokens": 2**63},
    "more than a machine counts": {"prompt_tokens": 10**40, "completion_tokens": 10**40},
    "a number past all numbers": {"prompt_tokens": 1e300, "completion_tokens": 1e300},
    "half of it": {"prompt_tokens": 11, "completion_tokens": None},
    "no object but a list": [],
    "no object but a word": "eleven",
    "no object but a number": 18,
}
DETAILS: dict[str, Any] = {
    "negative": {"cached_tokens": -1_000_000},
    "more than the prompt": {"cached_tokens": 10**9},
    "a fraction": {"cached_tokens": 2.5},
    "a string": {"cached_tokens": "3"},
    "no object": "cached",
}


@pytest.fixture
def account(service: Service) -> Iterator[Account]:
    with open_account(service) as opened:
        yield opened


def with_usage(usage: Any, *, stream: bool) -> Reply:
    return Sse([ROLE, said(TEXT), STOP, usage_chunk(usage)]) if stream else Json(completion(TEXT, usage=usage))


def doubts(account: Account) -> float:
    """How often the metric counted impossible usage."""
    metrics = account.api.request("GET", "/metrics").body.decode()
    name = 'cadenza_doubtful_usage_total{provider="loopback"} '
    return sum(float(line.removeprefix(name)) for line in metrics.splitlines() if line.startswith(name))


def warnings(account: Account, request_id: str) -> list[Any]:
    complete = account.service.output.rpartition("\n")[0]  # the last line may be in the middle of being written
    lines = (json.loads(line) for line in complete.splitlines() if line.startswith("{"))
    return [line for line in lines if line["level"] == "warning" and line.get("request_id") == request_id]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("usage", UNREADABLE)
def test_unreadable_usage_is_replaced_by_the_local_count(
    account: Account, upstream: LoopbackUpstream, usage: str, stream: bool
) -> None:
    """The reply is served, the local count is charged as estimated, and a metric and a log line say so."""
    before = doubts(account)
    upstream.script(with_usage(UNREADABLE[usage], stream=stream))
    reply = account.api.chat(stream=stream)
    assert reply.status == 200
    assert TEXT.encode() in reply.body
    charge = account.charge()
    assert (charge["amount_nano"], charge["estimated"]) == (-OWN_COST_NANO, True)
    wait_until(lambda: doubts(account) == before + 1, "the doubt in the metrics")
    wait_until(lambda: warnings(account, reply.headers["x-request-id"]) != [], "the warning in the log")
    [line] = warnings(account, reply.headers["x-request-id"])
    assert (line["event"], line["provider"]) == ("an upstream's counts cannot be true", "loopback")


@pytest.mark.parametrize("stream", [False, True])
def test_output_beyond_max_tokens_is_charged_up_to_it(
    account: Account, upstream: LoopbackUpstream, stream: bool
) -> None:
    """An upstream that counts more output than max_tokens is paid for max_tokens."""
    before = doubts(account)
    upstream.script(with_usage({"prompt_tokens": 11, "completion_tokens": 5_000}, stream=stream))
    reply = account.api.chat(max_tokens=50, stream=stream)
    assert account.charge()["amount_nano"] == -forte_nano(11, 50)
    wait_until(lambda: doubts(account) == before + 1, "the doubt in the metrics")
    wait_until(lambda: warnings(account, reply.headers["x-request-id"]) != [], "the warning in the log")


def test_impossible_prompt_count_is_replaced(account: Account, upstream: LoopbackUpstream) -> None:
    """A short prompt that the upstream counts as a billion tokens is counted locally."""
    before = doubts(account)
    upstream.script(with_usage({"prompt_tokens": 10**9, "completion_tokens": 7}, stream=False))
    account.api.chat()
    charge = account.charge()
    assert (charge["amount_nano"], charge["estimated"]) == (-forte_nano(PROMPT_TOKENS, 7), True)
    wait_until(lambda: doubts(account) == before + 1, "the doubt in the metrics")


@pytest.mark.parametrize("details", DETAILS)
def test_cached_tokens_are_part_of_the_prompt(account: Account, upstream: LoopbackUpstream, details: str) -> None:
    """However absurd the count of cached tokens, at most the prompt is cached and charged so."""
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": DETAILS[details]}
    upstream.script(with_usage(usage, stream=False))
    account.api.chat(model="mezzo")
    charge = account.charge()
    assert 0 <= charge["cached_tokens"] <= charge["prompt_tokens"] == 11
    assert 11 * 20 + 7 * 210 <= -charge["amount_nano"] <= 11 * 100 + 7 * 210


def test_last_usage_replaces_an_absurd_one(account: Account, upstream: LoopbackUpstream) -> None:
    """Of an absurd usage and a later correct one, the last is charged."""
    absurd = usage_chunk({"prompt_tokens": 11, "completion_tokens": 10**9})
    good = usage_chunk({"prompt_tokens": 11, "completion_tokens": 7})
    upstream.script(Sse([ROLE, said(TEXT), STOP, absurd, good]))
    account.api.chat(stream=True)
    assert account.charge()["amount_nano"] == -forte_nano(11, 7)


def test_repeated_usage_is_charged_once(account: Account, upstream: LoopbackUpstream) -> None:
    """A usage that the upstream repeats is charged once."""
    counted = usage_chunk({"prompt_tokens": 11, "completion_tokens": 7})
    upstream.script(Sse([ROLE, said(TEXT), STOP, counted, counted, counted]))
    account.api.chat(stream=True)
    assert account.charge()["amount_nano"] == -forte_nano(11, 7)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 5_000, b"NaN"])
def test_unparsable_number_is_replaced_by_the_local_count(
    account: Account, upstream: LoopbackUpstream, number: bytes
) -> None:
    """An unparsable usage chunk after a complete answer does not break it: the local count is charged."""
    event = sse_event(usage_chunk({"prompt_tokens": 11, "completion_tokens": 0.125}))
    upstream.script(Sse([ROLE, said(TEXT), STOP, event.replace(b"0.125", number)]))
    assert account.api.chat(stream=True).body.endswith(b"data: [DONE]\n\n")
    assert account.charge()["amount_nano"] == -OWN_COST_NANO


def test_correct_usage_is_not_reported(account: Account, upstream: LoopbackUpstream) -> None:
    """An ordinary reply changes neither the metric nor the log."""
    before = doubts(account)
    reply = account.api.chat()
    wait_until(lambda: f'"{reply.headers["x-request-id"]}"' in account.service.output, "the line of the request")
    assert doubts(account) == before
    assert warnings(account, reply.headers["x-request-id"]) == []
