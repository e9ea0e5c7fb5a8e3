"""Which chat requests are refused, with which message, and which odd ones are served."""

from typing import Any

import pytest

from tests.loopback import LoopbackUpstream
from tests.raw_client import MESSAGES, RawClient
from tests.schemas import check_completion, check_stream

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
NULLABLE = """temperature top_p n stop max_tokens max_completion_tokens presence_penalty frequency_penalty seed
logit_bias logprobs top_logprobs stream stream_options metadata store service_tier modalities audio prediction
reasoning_effort"""
FORCED = {"type": "function", "function": {"name": "look"}}


def says(content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}]}


def only(message: Any) -> dict[str, Any]:
    return {"messages": [message]}


# One of each kind: tests/unit/gateway/test_validate.py has the others.
REFUSED: dict[str, dict[str, Any]] = {
    "model of another house": {"model": "gpt-4o"},
    "model in capitals": {"model": "FORTE"},
    "empty model": {"model": ""},
    "model no string": {"model": 7},
    "messages empty": {"messages": []},
    "role unknown": says("hi", "narrator"),
    "second message bad": {"messages": [*MESSAGES, {"role": "user"}]},
    "max_tokens above the limit": {"max_tokens": 131_073},
    "n of 2": {"n": 2},
    "logprobs": {"logprobs": True},
    "a forced function without tools": {"tool_choice": FORCED},
}
SERVED: dict[str, dict[str, Any]] = {
    "empty string": says(""),
    "text parts": says([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
    "system in parts": {"messages": [{"role": "system", "content": [{"type": "text", "text": "x"}]}, *MESSAGES]},
    "developer": {"messages": [{"role": "developer", "content": "x"}, *MESSAGES]},
    "assistant last": {"messages": [*MESSAGES, {"role": "assistant", "content": "Well,"}]},
    "calls with content null": {
        "messages": [
            *MESSAGES,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "42"},
        ]
    },
    "calls without content": {
        "messages": [
            *MESSAGES,
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "42"}]},
        ]
    },
    "empty tool_calls in the history": {
        "messages": [*MESSAGES, {"role": "assistant", "content": "x", "tool_calls": []}, *MESSAGES]
    },
    "lowest temperature": {"temperature": 0},
    "highest temperature": {"temperature": 2},
    "largest max_tokens": {"max_tokens": 131_072},
    "n of 1": {"n": 1},
    "logprobs false": {"logprobs": False},
    "no tools": {"tools": []},
    "tool_choice auto": {"tool_choice": "auto"},
    "tool_choice none": {"tools": [], "tool_choice": "none"},
    "parallel_tool_calls": {"parallel_tool_calls": True},
    "stream_options without a stream": {"stream_options": {"include_usage": False}},
    "all nulls of the published schema": dict.fromkeys(NULLABLE.split()),
    "fields that nobody knows": {"user": "u", "metadata": {"a": "b"}, "store": True, "no_such_field": [1]},
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_field_is_400(api: RawClient, upstream: LoopbackUpstream, case: str) -> None:
    """An invalid request is a 400 that is not to be retried, and reaches no upstream."""
    reply = api.chat(**REFUSED[case])
    reply.error(400)
    assert reply.headers["x-should-retry"] == "false"
    assert upstream.requests == []


@pytest.mark.parametrize("case", SERVED)
@pytest.mark.parametrize("stream", [False, True])
def test_odd_but_valid_request_is_served(api: RawClient, upstream: LoopbackUpstream, case: str, stream: bool) -> None:
    """What OpenAI accepts is not a 400."""
    reply = api.chat(**{**SERVED[case], "stream": stream})
    assert reply.status == 200, reply.body
    if stream:
        check_stream(reply.body)
    else:
        check_completion(reply.json)


@pytest.mark.parametrize("stream_options", [None, {}, {"include_usage": False}, {"include_usage": True}])
def test_usage_chunk_is_always_sent(api: RawClient, upstream: LoopbackUpstream, stream_options: Any) -> None:
    """Whatever stream_options says, the stream has its usage chunk."""
    assert check_stream(api.chat(stream=True, stream_options=stream_options).body).usage["total_tokens"] == 18


def test_missing_messages_is_400(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A body without messages is refused with that name."""
    assert "messages" in api.post({"model": "forte"}).error(400)
    assert upstream.requests == []


@pytest.mark.parametrize("body", [[], "hi", 7, None, True])
def test_body_that_is_not_an_object_is_400(api: RawClient, body: Any) -> None:
    """Only a JSON object is a chat request."""
    api.post(body).error(400)


def test_reserved_class_says_so(api: RawClient, upstream: LoopbackUpstream) -> None:
    """`piano` is refused as reserved, not as unknown."""
    assert "reserved" in api.chat(model="piano").error(400)
    assert upstream.requests == []


def test_unknown_model_names_the_usable_ones(api: RawClient) -> None:
    """The refusal of an unknown model lists the usable ones."""
    message = api.chat(model="gpt-4o").error(400)
    assert all(usable in message for usable in ("auto", "mezzo", "forte", "fortissimo"))
    assert "piano" not in message


@pytest.mark.parametrize("fields", [{"n": 2}, {"logprobs": True}, {"top_logprobs": 1}])
def test_missing_openai_feature_is_named(api: RawClient, fields: dict[str, Any]) -> None:
    """An OpenAI feature that this service lacks is refused as not implemented."""
    assert "not implemented" in api.chat(**fields).error(400)


def test_body_of_the_responses_api_gets_a_hint(api: RawClient) -> None:
    """A body of the Responses API is told which shape this path expects."""
    message = api.post({"model": "forte", "input": "hi", "instructions": "be brief"}).error(400)
    assert "Responses" in message
    assert "messages" in message


def test_message_names_the_place_of_the_mistake(api: RawClient) -> None:
    """A mistake deep inside the messages is reported with its index."""
    message = api.post({"messages": [*MESSAGES, {"role": "user", "content": [{"type": "hologram"}]}]}).error(400)
    assert "messages[1]" in message
