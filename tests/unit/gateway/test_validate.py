"""Chat requests: what is taken, how it is forwarded, what is refused and in which words."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.errors import InvalidRequest
from cadenza.core.tokens import count_prompt
from cadenza.gateway.validate import SAMPLING, ChatRequest, check_context, parse_chat

USER = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
FORCED = {"type": "function", "function": {"name": "look"}}
HELLO = [{"type": "text", "text": "Hello"}, {"type": "text", "text": ", world"}]
CHAT = {"model": "forte", "messages": [USER], "stream": True, "max_tokens": 5, "temperature": 0.5, "stop": ["é", "\n"]}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat(json.dumps({"messages": [USER]} | fields).encode())


def forwarded(**message: Any) -> Any:
    """The one message of a request, as an upstream gets it."""
    [raw] = parse(messages=[message]).messages
    return json.loads(bytes(raw))


def test_a_minimal_request_has_the_defaults() -> None:
    """Messages alone are enough: no model, no stream, no limit, no sampling."""
    request = parse()
    assert (request.model, request.stream, request.max_tokens, request.sampling) == (None, False, None, {})
    assert request.texts == ["hi"]


TAKEN: dict[str, dict[str, Any]] = {
    "a model": {"model": "forte"},
    "any model name: the classes are not known here": {"model": "gpt-4o"},
    "nulls everywhere": dict.fromkeys(("model", "stream", "temperature", "max_tokens", "n", "tools", "stop")),
    "n of 1": {"n": 1},
    "logprobs false": {"logprobs": False},
    "temperature at its lower bound": {"temperature": 0},
    "temperature at its upper bound": {"temperature": 2},
    "no tools": {"tools": []},
    "tool_choice auto without tools": {"tool_choice": "auto"},
    "tool_choice none without tools": {"tool_choice": "none"},
    "parallel_tool_calls without tools": {"parallel_tool_calls": False},
    "stream options": {"stream": True, "stream_options": {"include_usage": False}},
    "unknown fields": {"user": "u", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "x-odd": [[[]]]},
    "an output limit of just the most": {"max_tokens": 131_072},
    "a name beside the role": {"messages": [{**USER, "name": "ada"}]},
    "empty content": {"messages": [{"role": "user", "content": ""}]},
    "no parts": {"messages": [{"role": "user", "content": []}]},
    "an assistant with a call of the old kind": {
        "messages": [{"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}]
    },
    "an assistant that refused": {"messages": [{"role": "assistant", "content": None, "refusal": "no"}]},
    "a part with more in it": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]},
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_openai_takes_is_taken(case: str) -> None:
    """Nobody gets a 400 for sending what OpenAI accepts."""
    request = parse(**TAKEN[case])
    assert len(request.messages) == len(request.texts) == 1


def only(**message: Any) -> dict[str, Any]:
    return {"messages": [message]}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "messages null": ({"messages": None}, "messages: must be an array"),
    "messages empty": ({"messages": []}, "messages: must be an array"),
    "messages no array": ({"messages": "hi"}, "messages: expected"),
    "a body of the Responses API": ({"messages": None, "input": "hi"}, "Responses API"),
    "a message that is no object": ({"messages": ["hi"]}, r"messages\[0\]: expected"),
    "the second message": ({"messages": [USER, {"role": "user"}]}, r"messages\[1\].content"),
    "no role": (only(content="hi"), "missing required field `role`"),
    "unknown role": (only(role="narrator", content="hi"), r"messages\[0\].role: must be one of system"),
    "no content": (only(role="user"), r"messages\[0\].content: must be a string"),
    "content null": (only(role="user", content=None), r"messages\[0\].content: must be a string"),
    "content null of an assistant": (only(role="assistant", content=None), r"messages\[0\].content: must be a string"),
    "content a number": (only(role="user", content=7), r"messages\[0\].content: expected"),
    "content an object": (only(role="user", content={"type": "text"}), r"messages\[0\].content: expected"),
    "a part without type": (only(role="user", content=[{"text": "a"}]), "missing required field `type`"),
    "a part without text": (only(role="user", content=[{"type": "text"}]), r"content\[0\].text: missing"),
    "a part of unknown type": (only(role="user", content=[*HELLO, {"type": "smell"}]), r"content\[2\].type: only"),
    "a tool message without its call": (only(role="tool", content="42"), r"messages\[0\].tool_call_id"),
    "a model that is no string": ({"model": 7}, "model: expected"),
    "stream that is no boolean": ({"stream": "yes"}, "stream: expected"),
    "temperature too low": ({"temperature": -0.1}, "temperature: must be between 0 and 2"),
    "temperature too high": ({"temperature": 2.1}, "temperature: must be between 0 and 2"),
    "temperature no number": ({"temperature": "hot"}, "temperature: expected"),
    "n of 2": ({"n": 2}, "n: not implemented"),
    "n of 0": ({"n": 0}, "n: not implemented"),
    "logprobs": ({"logprobs": True}, "not implemented"),
    "top_logprobs": ({"top_logprobs": 3}, "not implemented"),
    "top_logprobs of none": ({"top_logprobs": 0}, "not implemented"),
    "a forced function without tools": ({"tool_choice": FORCED}, "tool_choice: asks for a call"),
    "a limit of zero": ({"max_tokens": 0}, "max_tokens: must be a positive integer"),
    "a negative limit": ({"max_completion_tokens": -1}, "max_tokens: must be a positive integer"),
    "half a token": ({"max_tokens": 1.5}, "max_tokens: expected"),
    "a limit in words": ({"max_tokens": "5"}, "max_tokens: expected"),
    "a limit that is true": ({"max_tokens": True}, "max_tokens: expected"),
    "more output than there is": ({"max_tokens": 131_073}, "at most 131,072 tokens"),
    "more output by the newer name": ({"max_completion_tokens": 10**30}, "max_"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_is_refused_by_its_place(case: str) -> None:
    """A bad field is a 400 whose sentence names the field and what is wrong with it."""
    fields, sentence = REFUSED[case]
    with pytest.raises(InvalidRequest, match=sentence):
        parse(**fields)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"messages":[{"role":"user","content":"hi"}]}}', "not valid JSON"),
        (b"messages=hi", "not valid JSON"),
        (b"[]", "The body: expected `object`"),
        (b"null", "The body: expected `object`"),
        (b"{}", "messages: must be an array"),
        (b'{"messages":[{"role":"user","content":"\xff"}]}', "not valid UTF-8"),
        (b'{"messages":[{"role":"user","content":"hi"}],"x":"\xff"}', "not valid UTF-8"),
        (b'{"messages":[{"role":"user","content":"hi","x":"\\ud800"}]}', "not valid JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"messages":[{"role":"user","content":"hi","x":' + b"[" * 100_000, "nested too deeply"),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else None,
)
def test_what_is_no_object_is_refused(body: bytes, sentence: str) -> None:
    """Malformed JSON, bad UTF-8, half a surrogate pair and a bottomless nest are each told apart."""
    with pytest.raises(InvalidRequest, match=sentence):
        parse_chat(body)


def test_a_refusal_does_not_quote_what_was_said() -> None:
    """No refusal repeats what stands in the request."""
    for case, (fields, _) in REFUSED.items():
        marked = json.loads(json.dumps(fields).replace("hi", "s3cret").replace("narrator", "s3cret"))
        with pytest.raises(InvalidRequest) as refusal:
            parse(**marked)
        assert "s3cret" not in refusal.value.message, case


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 9, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 7),
        ({"max_tokens": 7, "max_completion_tokens": None}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 943_000}, 7),
        ({"max_tokens": None}, None),
    ],
)
def test_the_smaller_of_two_limits_counts(fields: dict[str, Any], limit: int | None) -> None:
    """Both names of the output limit mean the same, and of two the smaller holds."""
    assert parse(**fields).max_tokens == limit


def test_sampling_fields_are_forwarded_and_others_are_not() -> None:
    """What is known to steer sampling goes on as it came; nulls and unknown fields stay here."""
    sent: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.25,
        "stop": ["a", "b"],
        "seed": 7,
        "presence_penalty": -1,
        "frequency_penalty": 1.5,
        "response_format": {"type": "json_object"},
        "reasoning_effort": "low",
        "logit_bias": {"50256": -100},
    }
    request = parse(**sent, user="u", store=True, metadata={}, stream_options={}, n=1, parallel_tool_calls=True)
    assert {name: json.loads(bytes(raw)) for name, raw in request.sampling.items()} == sent
    assert parse(**dict.fromkeys(sent)).sampling == {}


def test_messages_are_forwarded_byte_for_byte() -> None:
    """Spelling, order, escapes, spaces and unknown fields of a message reach the upstream unchanged."""
    message = b'{ "name":"\\u00e9", "content" : "h\\u0069 \xe9\x9f\xb3", "role":"user", "reasoning_content":1.50e1 }'
    [raw] = parse_chat(b'{"messages":[' + message + b"]}").messages
    assert bytes(raw) == message


def test_developer_becomes_system() -> None:
    """The role `developer` is sent on as `system`, with all else that the message holds."""
    assert forwarded(role="developer", content="Be brief.", name="ada") == {
        "role": "system",
        "content": "Be brief.",
        "name": "ada",
    }


def test_an_empty_list_of_calls_is_left_out() -> None:
    """Upstreams refuse an empty `tool_calls`; the message goes on without, and with content in any case."""
    assert forwarded(role="assistant", content="a", tool_calls=[]) == {"role": "assistant", "content": "a"}
    assert forwarded(role="assistant", content=None, tool_calls=[]) == {"role": "assistant", "content": ""}
    assert forwarded(role="assistant", tool_calls=[]) == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_parts_of_any_role_are_counted_as_one_text(role: str) -> None:
    """Content as an array of text parts is taken from every role, and counted as their text."""
    assert parse(messages=[{"role": role, "content": HELLO}]).texts == ["Hello, world"]


def test_of_a_repeated_field_the_last_counts_everywhere() -> None:
    """What is checked and what is forwarded are the same of two fields with one name."""
    request = parse_chat(b'{"messages":[],"temperature":9,"messages":[{"role":"user","content":"b"}],"temperature":1}')
    assert request.texts == ["b"]
    assert bytes(request.sampling["temperature"]) == b"1"


def test_a_prompt_past_the_context_is_refused_with_its_count() -> None:
    """Above a million tokens the refusal says how many were counted."""
    check_context(count_prompt(["é" * 999_996]))
    with pytest.raises(InvalidRequest, match="has 1,000,001 tokens; at most 1,000,000"):
        check_context(count_prompt(["é" * 999_997]))


def check_any(body: bytes) -> None:
    """A body is a request whose forwarded parts are sound JSON, or it is refused; it is never anything else."""
    try:
        request = parse_chat(body)
    except InvalidRequest:
        return
    assert request.messages
    assert len(request.messages) == len(request.texts)
    for raw in [*request.messages, *request.sampling.values()]:
        json.loads(bytes(raw))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | json_values},
    optional={
        "content": st.text(max_size=5) | st.lists(st.just(HELLO[0]) | json_values, max_size=3) | json_values,
        "tool_calls": st.lists(st.just(CALL) | json_values, max_size=2) | json_values,
        "tool_call_id": st.just("call_1") | json_values,
        "function_call": json_values,
        "refusal": json_values,
        "name": json_values,
    },
)
bodies = st.fixed_dictionaries(
    {"messages": st.lists(messages | json_values, max_size=3) | json_values},
    optional=dict.fromkeys(("model", "stream", "max_tokens", "n", "tools", "tool_choice", *SAMPLING), json_values),
)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_a_refusal(body: bytes) -> None:
    """Bytes that are anything at all never make anything but a 400."""
    check_any(body)


@settings(max_examples=150, deadline=None)
@given(json_values | bodies)
def test_any_json_is_a_request_or_a_refusal(value: Any) -> None:
    """JSON of any structure, near a request or far from it, is served or refused."""
    check_any(msgspec.json.encode(value))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 200), st.integers(0, 12), st.binary(max_size=6) | st.sampled_from([b"\\", b'"', b"[", b"}", b"9"])
)
def test_any_damaged_request_is_a_request_or_a_refusal(place: int, removed: int, added: bytes) -> None:
    """A good request with some bytes taken out and others put in is served or refused."""
    body = json.dumps(CHAT, ensure_ascii=False).encode()
    check_any(body[:place] + added + body[place + removed :])
