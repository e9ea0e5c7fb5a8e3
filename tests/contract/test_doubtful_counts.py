"""Counts that cannot be true: the charge stays within what can be, nobody is credited, and the operator sees it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cadenza.core.tokens import count_tokens
from tests.contract.purse import PROMPT_TOKENS, Purse, forte_nano, open_purse, wait_until
from tests.loopback import Json, LoopbackUpstream, Reply, Sse, chunk, completion, said, sse_event
from tests.service import Service

TEXT = "Music is the silence between the notes."
ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk(finish="stop")
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
def purse(service: Service) -> Iterator[Purse]:
    with open_purse(service) as opened:
        yield opened


def with_usage(usage: Any, *, stream: bool) -> Reply:
    return (
        Sse([ROLE, said(TEXT), STOP, chunk(choices=[], usage=usage)]) if stream else Json(completion(TEXT, usage=usage))
    )


def doubts(purse: Purse) -> float:
    """How often the operator was shown that the upstream's counts cannot be true."""
    metrics = purse.wire.request("GET", "/metrics").body.decode()
    name = 'cadenza_doubtful_usage_total{provider="loopback"} '
    return sum(float(line.removeprefix(name)) for line in metrics.splitlines() if line.startswith(name))


def warnings(purse: Purse, request_id: str) -> list[Any]:
    lines = (json.loads(line) for line in purse.service.output.splitlines() if line.startswith("{"))
    return [line for line in lines if line["level"] == "warning" and line.get("request_id") == request_id]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("usage", UNREADABLE)
def test_counts_that_are_none_are_replaced_by_our_own(
    purse: Purse, upstream: LoopbackUpstream, usage: str, stream: bool
) -> None:
    """The reply is served, our own count is charged and marked as estimated, and a metric and a log line tell of it."""
    before = doubts(purse)
    upstream.script(with_usage(UNREADABLE[usage], stream=stream))
    reply = purse.wire.chat(stream=stream)
    assert reply.status == 200
    assert TEXT.encode() in reply.body
    charge = purse.charge()
    assert (charge["amount_nano"], charge["estimated"]) == (-OWN_COST_NANO, True)
    wait_until(lambda: doubts(purse) == before + 1, "the doubt in the metrics")
    [line] = warnings(purse, reply.headers["x-request-id"])
    assert (line["event"], line["provider"]) == ("an upstream's counts cannot be true", "loopback")


@pytest.mark.parametrize("stream", [False, True])
def test_more_output_than_was_allowed_is_charged_as_what_was_allowed(
    purse: Purse, upstream: LoopbackUpstream, stream: bool
) -> None:
    """An upstream that counts past max_tokens is believed up to it."""
    before = doubts(purse)
    upstream.script(with_usage({"prompt_tokens": 11, "completion_tokens": 5_000}, stream=stream))
    reply = purse.wire.chat(max_tokens=50, stream=stream)
    assert purse.charge()["amount_nano"] == -forte_nano(11, 50)
    wait_until(lambda: doubts(purse) == before + 1, "the doubt in the metrics")
    assert warnings(purse, reply.headers["x-request-id"])


def test_more_prompt_than_was_sent_is_charged_as_our_own_count(purse: Purse, upstream: LoopbackUpstream) -> None:
    """A prompt of a billion tokens that was two lines long is counted here."""
    before = doubts(purse)
    upstream.script(with_usage({"prompt_tokens": 10**9, "completion_tokens": 7}, stream=False))
    purse.wire.chat()
    charge = purse.charge()
    assert (charge["amount_nano"], charge["estimated"]) == (-forte_nano(PROMPT_TOKENS, 7), True)
    wait_until(lambda: doubts(purse) == before + 1, "the doubt in the metrics")


@pytest.mark.parametrize("details", DETAILS)
def test_cached_tokens_are_part_of_the_prompt(purse: Purse, upstream: LoopbackUpstream, details: str) -> None:
    """However absurd their count, no more than the prompt is cached, and the charge is never less than all cached."""
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": DETAILS[details]}
    upstream.script(with_usage(usage, stream=False))
    purse.wire.chat(model="mezzo")
    charge = purse.charge()
    assert 0 <= charge["cached_tokens"] <= charge["prompt_tokens"] == 11
    assert 11 * 20 + 7 * 210 <= -charge["amount_nano"] <= 11 * 100 + 7 * 210


def test_of_an_absurd_usage_and_a_good_one_the_last_counts(purse: Purse, upstream: LoopbackUpstream) -> None:
    """Usage sent twice is neither summed nor taken from the first."""
    absurd = chunk(choices=[], usage={"prompt_tokens": 11, "completion_tokens": 10**9})
    good = chunk(choices=[], usage={"prompt_tokens": 11, "completion_tokens": 7})
    upstream.script(Sse([ROLE, said(TEXT), STOP, absurd, good]))
    purse.wire.chat(stream=True)
    assert purse.charge()["amount_nano"] == -forte_nano(11, 7)


def test_the_same_usage_twice_is_charged_once(purse: Purse, upstream: LoopbackUpstream) -> None:
    """An upstream that repeats itself is not paid twice."""
    counted = chunk(choices=[], usage={"prompt_tokens": 11, "completion_tokens": 7})
    upstream.script(Sse([ROLE, said(TEXT), STOP, counted, counted, counted]))
    purse.wire.chat(stream=True)
    assert purse.charge()["amount_nano"] == -forte_nano(11, 7)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 5_000, b"NaN"])
def test_a_number_that_no_parser_takes_charges_nothing_false(
    purse: Purse, upstream: LoopbackUpstream, number: bytes
) -> None:
    """After a finished answer an unreadable usage chunk is not the client's trouble: our own count is charged."""
    event = sse_event(chunk(choices=[], usage={"prompt_tokens": 11, "completion_tokens": 0.125}))
    upstream.script(Sse([ROLE, said(TEXT), STOP, event.replace(b"0.125", number)]))
    assert purse.wire.chat(stream=True).body.endswith(b"data: [DONE]\n\n")
    assert purse.charge()["amount_nano"] == -OWN_COST_NANO


def test_good_counts_cast_no_doubt(purse: Purse, upstream: LoopbackUpstream) -> None:
    """An ordinary reply leaves metric and log as they were."""
    before = doubts(purse)
    reply = purse.wire.chat()
    wait_until(lambda: f'"{reply.headers["x-request-id"]}"' in purse.service.output, "the line of the request")
    assert doubts(purse) == before
    assert warnings(purse, reply.headers["x-request-id"]) == []
