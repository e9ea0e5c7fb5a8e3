"""With every kind of upstream: what it refuses, limits, filters and breaks off becomes one of our own errors."""

import re

import pytest

from tests.account import open_account
from tests.contract.dialects.stage import TWINS, Stage
from tests.loopback import Json, Reply, Sse, Status, chunk
from tests.schemas import check_broken_stream

OVERFLOW = re.compile(
    r"context_length_exceeded: This model's maximum context length is (\d+) tokens\. "
    r"However, your messages resulted in (\d+) tokens\. "
)
ROUTE_TOKENS = 1_000_000
FLAGGING = [name for name, twin in TWINS.items() if twin.flagged]
IN_A_200 = {
    "too long": {
        "message": "This endpoint's maximum context length is 131072 tokens. However, you requested about 141607 "
        "tokens (10535 of text input, 131072 in the output).",
        "code": 400,
    },
    "busy": {"message": "Rate limit exceeded", "code": 429},
    "failed": {"message": "Provider returned error", "code": "server_error"},
}


def answer(stage: Stage, reply: Reply) -> None:
    stage.upstream.reset()
    stage.upstream.always(reply)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(spoken: Stage, stream: bool) -> None:
    """Context overflow is a 400 in the words that clients know, with the upstream's numbers where it tells them."""
    too_long = spoken.twin.too_long
    answer(spoken, too_long.reply)
    found = OVERFLOW.match(spoken.api.chat(stream=stream).error(400))
    assert found
    assert int(found[1]) == (too_long.window_tokens or ROUTE_TOKENS)
    assert int(found[2]) == too_long.prompt_tokens or (too_long.prompt_tokens is None and int(found[2]) > 0)
    assert len(spoken.upstream.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_the_upstream_refuses(spoken: Stage, stream: bool) -> None:
    """A refusal is a 400 in our own words, without a retry and without a charge."""
    answer(spoken, spoken.twin.refusal)
    with open_account(spoken.service) as account:
        message = account.api.chat(stream=stream).error(400)
        assert account.charges == []
    assert message.startswith("The model cannot take this request")
    assert len(spoken.upstream.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_rate_limit(spoken: Stage, stream: bool) -> None:
    """A rate limit is a 429 that says when to retry."""
    answer(spoken, spoken.twin.busy)
    reply = spoken.api.chat(stream=stream)
    reply.error(429, "rate_limit_error")
    assert int(reply.headers["retry-after"]) >= 1


@pytest.mark.parametrize("name", FLAGGING)
def test_content_that_the_upstream_does_not_allow(stage: Stage, name: str) -> None:
    """Moderation is a 400: the same request would be flagged again."""
    stage.switch(name)
    flagged = stage.twin.flagged
    assert flagged
    answer(stage, flagged)
    assert "its content is not allowed" in stage.api.chat().error(400)


def test_a_stream_that_breaks_off(spoken: Stage) -> None:
    """An error in the middle of a stream ends it with our error event, and what was delivered is charged."""
    answer(spoken, spoken.twin.breaks)
    with open_account(spoken.service) as account:
        reply = account.api.chat(stream=True)
        account.wait_until_ended()
        charge = account.charge()
    assert check_broken_stream(reply.body).text == "Hello "
    assert charge["estimated"]
    assert charge["completion_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "type_"),
    [
        ("too long", 400, "invalid_request_error"),
        ("busy", 429, "rate_limit_error"),
        ("failed", 502, "api_error"),
    ],
)
def test_an_error_inside_a_200(stage: Stage, fault: str, status: int, type_: str, stream: bool) -> None:
    """An error that comes with status 200 gets the status that it should have had."""
    stage.switch("openrouter")
    document = {"error": IN_A_200[fault]}
    answer(stage, Sse([b": OPENROUTER PROCESSING\n\n", document]) if stream else Json(document))
    stage.api.chat(stream=stream).error(status, type_)


def test_a_reply_that_filled_the_window(stage: Stage) -> None:
    """Mistral's `model_length` is `length`: the answer was cut."""
    stage.switch("mistral")
    cut = {"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "model_length"}]}
    answer(stage, Json(cut))
    assert stage.api.chat().json["choices"][0]["finish_reason"] == "length"


def test_a_call_that_the_model_got_wrong(stage: Stage) -> None:
    """Groq's `tool_use_failed` is a failure of the model and not of the request, so it may be retried."""
    stage.switch("groq")
    body = b'{"error":{"message":"Failed to call a function.","code":"tool_use_failed","failed_generation":"<f"}}'
    answer(stage, Status(400, body))
    stage.api.chat().error(502, "api_error")


def test_a_network_error_without_an_error_object(stage: Stage) -> None:
    """OpenRouter may say only in `native_finish_reason` that the provider failed."""
    stage.switch("openrouter")
    failed = chunk(finish="stop")
    failed["choices"][0]["native_finish_reason"] = "network_error"
    answer(stage, Sse([chunk({"role": "assistant", "content": ""}), chunk({"content": "Hello "}), failed]))
    assert check_broken_stream(stage.api.chat(stream=True).body).text == "Hello "
