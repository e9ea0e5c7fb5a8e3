"""Chat requests: which are accepted, how they are forwarded, and with which message others are refused."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.chat import SAMPLING, ChatRequest
from cadenza.core.errors import InvalidRequest
from cadenza.gateway.validate import check_context, parse_chat
from tests.unit.gateway.prompts import TOKENIZER

USER = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
FORCED = {"type": "function", "function": {"name": "look"}}
HELLO = [{"type": "text", "text": "Hello"}, {"type": "text", "text": ", world"}]
CHAT = {"model": "forte", "messages": [USER], "stream": True, "max_tokens": 5, "temperature": 0.5, "stop": ["é", "\n"]}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat(json.dumps({"messages": [USER]} | fields).encode())


def forwarded(**message: Any) -> Any:
    """The message as an upstream gets it."""
    [raw] = parse(messages=[message]).messages
    return json.loads(bytes(raw))


def test_a_minimal_request_has_the_defaults() -> None:
    """Messages are the only field that is needed."""
    request = parse()
    assert (request.model, request.stream, request.max_tokens, request.sampling) == (None, False, None, {})
    assert request.texts == ["hi"]


ACCEPTED: dict[str, dict[str, Any]] = {
    "a model": {"model": "forte"},
    "any model name: classes are checked later": {"model": "gpt-4o"},
    "nulls everywhere": dict.fromkeys(("model", "stream", "temperature", "max_tokens", "n", "tools", "stop")),
    "n of 1": {"n": 1},
    "n of 1.0": {"n": 1.0},
    "top_logprobs of 0": {"top_logprobs": 0},
    "text as an answer": {"modalities": ["text"]},
    "no modalities": {"modalities": []},
    "empty functions": {"functions": [], "function_call": ""},
    "logprobs false": {"logprobs": False},
    "temperature at its lower bound": {"temperature": 0},
    "temperature at its upper bound": {"temperature": 2},
    "no tools": {"tools": []},
    "tool_choice auto without tools": {"tool_choice": "auto"},
    "tool_choice none without tools": {"tool_choice": "none"},
    "parallel_tool_calls without tools": {"parallel_tool_calls": False},
    "stream options": {"stream": True, "stream_options": {"include_usage": False}},
    "unknown fields": {"user": "u", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "x-odd": [[[]]]},
    "the largest output limit": {"max_tokens": 131_072},
    "a message with a name": {"messages": [{**USER, "name": "ada"}]},
    "empty content": {"messages": [{"role": "user", "content": ""}]},
    "no parts": {"messages": [{"role": "user", "content": []}]},
    "null functions": {"functions": None, "function_call": None},
    "a null function call of an assistant": {
        "messages": [{"role": "assistant", "content": "hi", "function_call": None, "refusal": None, "audio": None}]
    },
    "a refusal as a part": {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]},
    "an assistant with a refusal": {"messages": [{"role": "assistant", "content": None, "refusal": "no"}]},
    "a part with an unknown field": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]
    },
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_request_that_openai_accepts_is_accepted(case: str) -> None:
    """No client gets a 400 for a field that OpenAI accepts."""
    request = parse(**ACCEPTED[case])
    assert isinstance(request.texts, list)
    assert len(request.messages) == len(request.texts) == 1


def only(**message: Any) -> dict[str, Any]:
    return {"messages": [message]}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "messages null": ({"messages": None}, "messages: must be an array"),
    "messages empty": ({"messages": []}, "messages: must be an array"),
    "messages not an array": ({"messages": "hi"}, "messages: expected"),
    "a body of the Responses API": ({"messages": None, "input": "hi"}, "Responses API"),
    "a message that is not an object": ({"messages": ["hi"]}, r"messages\[0\]: expected"),
    "the second message": ({"messages": [USER, {"role": "user"}]}, r"messages\[1\].content"),
    "a message that is null": ({"messages": [None]}, r"messages\[0\]"),
    "a message that is an array": ({"messages": [[]]}, r"messages\[0\]"),
    "role null": (only(role=None, content="hi"), "role"),
    "role not a string": (only(role=1, content="hi"), "role"),
    "content a boolean": (only(role="user", content=True), r"messages\[0\].content: expected"),
    "content an array of strings": (only(role="user", content=["hi"]), r"content\[0\]: expected"),
    "a part that is null": (only(role="user", content=[None]), r"content\[0\]: expected"),
    "a part whose text is null": (only(role="user", content=[{"type": "text", "text": None}]), r"content\[0\].text"),
    "stream a number": ({"stream": 1}, "stream: expected"),
    "temperature huge": ({"temperature": 1e300}, "temperature: must be between 0 and 2"),
    "temperature a boolean": ({"temperature": True}, "temperature: expected"),
    "n a string": ({"n": "1"}, "n: "),
    "tools not an array": ({"tools": {}}, "tools"),
    "a forced function with empty tools": ({"tools": [], "tool_choice": FORCED}, "tool_choice: asks for a call"),
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
    "a refusal as a part of a user": (only(role="user", content=[{"type": "refusal", "refusal": "no"}]), "type: only"),
    "legacy functions": ({"functions": [{"name": "look"}]}, "Use `tools`"),
    "a legacy function call": ({"function_call": "auto"}, "Use `tools`"),
    "a legacy function message": (only(role="function", name="look", content="42"), "Use `tools`"),
    "a legacy call in the history": (
        only(role="assistant", content=None, function_call={"name": "look", "arguments": "{}"}),
        "Use `tools`",
    ),
    "a legacy call beside a text": (only(role="assistant", content="hi", function_call={"name": "a"}), "Use `tools`"),
    "a tool message without its call": (only(role="tool", content="42"), r"messages\[0\].tool_call_id"),
    "a model that is not a string": ({"model": 7}, "model: expected"),
    "stream not a boolean": ({"stream": "yes"}, "stream: expected"),
    "temperature too low": ({"temperature": -0.1}, "temperature: must be between 0 and 2"),
    "temperature too high": ({"temperature": 2.1}, "temperature: must be between 0 and 2"),
    "temperature not a number": ({"temperature": "hot"}, "temperature: expected"),
    "n of 2": ({"n": 2}, "n: not implemented"),
    "n of 0": ({"n": 0}, "n: not implemented"),
    "logprobs": ({"logprobs": True}, "not implemented"),
    "top_logprobs": ({"top_logprobs": 3}, "not implemented"),
    "audio as an answer": ({"modalities": ["text", "audio"]}, "modalities: only text"),
    "a forced function without tools": ({"tool_choice": FORCED}, "tool_choice: asks for a call"),
    "a limit of zero": ({"max_tokens": 0}, "max_tokens: must be a positive integer"),
    "a negative limit": ({"max_completion_tokens": -1}, "max_tokens: must be a positive integer"),
    "a fractional limit": ({"max_tokens": 1.5}, "max_tokens: must be a positive integer"),
    "a fractional limit that is not used": (
        {"max_tokens": 1, "max_completion_tokens": 1.5},
        "must be a positive integer",
    ),
    "a limit as a string": ({"max_tokens": "5"}, "max_tokens: expected"),
    "a limit that is true": ({"max_tokens": True}, "max_tokens: expected"),
    "a limit above the largest": ({"max_tokens": 131_073}, "at most 131,072 tokens"),
    "a limit above the largest by its newer name": ({"max_completion_tokens": 10**30}, "max_"),
}


def test_a_refusal_part_goes_upstream_as_text() -> None:
    """Few upstreams know parts of type `refusal`, so the content becomes a string."""
    parts = [{"type": "text", "text": "Well, "}, {"type": "refusal", "refusal": "no."}]
    (message,) = parse(messages=[{"role": "assistant", "content": parts, "name": "x"}]).messages
    assert msgspec.json.decode(message) == {"role": "assistant", "content": "Well, no.", "name": "x"}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_field_is_refused_by_its_path(case: str) -> None:
    """The 400 names the field and what is wrong with it."""
    fields, sentence = REFUSED[case]
    with pytest.raises(InvalidRequest, match=sentence):
        parse(**fields)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "not valid JSON: it is empty"),
        (b"{", "not valid JSON"),
        (b'{"messages":[{"role":"user","content":"hi"}]}}', "not valid JSON"),
        (b"messages=hi", "not valid JSON: invalid character"),
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
def test_a_malformed_body_is_refused(body: bytes, sentence: str) -> None:
    """Malformed JSON, malformed UTF-8, half a surrogate pair and endless nesting each have a message."""
    with pytest.raises(InvalidRequest, match=sentence):
        parse_chat(body)


def test_a_refusal_does_not_quote_the_request() -> None:
    """No message of a 400 has text of the client's."""
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
        ({"max_tokens": 17.0}, 17),
        ({"max_completion_tokens": 1e2}, 100),
        ({"max_tokens": 17.0, "max_completion_tokens": 16}, 16),
        ({"max_tokens": 1e30, "tools": [{"type": "function", "function": {"name": "f"}}]}, 131_072),
    ],
)
def test_the_smaller_of_two_limits_counts(fields: dict[str, Any], limit: int | None) -> None:
    """Both names of the output limit mean the same, the smaller one counts, and any whole number is an integer."""
    found = parse(**fields).max_tokens
    assert (found, type(found)) == (limit, type(limit))


def test_only_sampling_fields_are_forwarded() -> None:
    """Sampling fields are forwarded unchanged; nulls and unknown fields are not."""
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
    """Order, escapes, spaces and unknown fields of a message reach the upstream unchanged."""
    message = b'{ "name":"\\u00e9", "content" : "h\\u0069 \xe9\x9f\xb3", "role":"user", "reasoning_content":1.50e1 }'
    [raw] = parse_chat(b'{"messages":[' + message + b"]}").messages
    assert bytes(raw) == message


def test_developer_becomes_system() -> None:
    """The role `developer` is forwarded as `system`; the other fields of the message are kept."""
    assert forwarded(role="developer", content="Be brief.", name="ada") == {
        "role": "system",
        "content": "Be brief.",
        "name": "ada",
    }


CITED = [{"type": "url_citation", "url_citation": {"url": "local:a", "title": "a", "start_index": 0, "end_index": 3}}]


def test_annotations_of_our_replies_do_not_go_upstream() -> None:
    """A client that echoes a whole reply sends them back; a null, and a field of another role, are left as they are."""
    said = {"role": "assistant", "content": "a", "refusal": None}
    assert forwarded(**said, annotations=CITED) == said
    assert forwarded(**said, annotations=[]) == said
    assert forwarded(**said, annotations=None) == {**said, "annotations": None}
    assert forwarded(**said, tool_calls=[], annotations=CITED) == said
    assert forwarded(role="user", content="a", annotations=CITED)["annotations"] == CITED
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    assert forwarded(role="assistant", content=parts, annotations=CITED) == {"role": "assistant", "content": "ab"}


def test_annotations_of_a_message_with_calls_do_not_go_upstream() -> None:
    """On the tool path, too."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    messages = [{**said, "annotations": CITED}, {"role": "tool", "tool_call_id": "c", "content": "1"}]
    [first, _] = parse(messages=messages).messages
    assert json.loads(bytes(first)) == said


def test_an_empty_list_of_calls_is_left_out() -> None:
    """Upstreams refuse an empty `tool_calls`: the message is forwarded without it, and always with content."""
    assert forwarded(role="assistant", content="a", tool_calls=[]) == {"role": "assistant", "content": "a"}
    assert forwarded(role="assistant", content=None, tool_calls=[]) == {"role": "assistant", "content": ""}
    assert forwarded(role="assistant", tool_calls=[]) == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_parts_of_any_role_are_counted_as_one_text(role: str) -> None:
    """Every role may send its content as an array of text parts, which is counted as their text."""
    assert parse(messages=[{"role": role, "content": HELLO}]).texts == ["Hello, world"]


def test_the_last_of_a_repeated_field_counts() -> None:
    """The field that is checked is the one that is forwarded."""
    request = parse_chat(b'{"messages":[],"temperature":9,"messages":[{"role":"user","content":"b"}],"temperature":1}')
    assert request.texts == ["b"]
    assert bytes(request.sampling["temperature"]) == b"1"


def test_a_prompt_above_the_context_limit_is_refused_with_its_count() -> None:
    """Above a million tokens, the 400 says how many were counted."""
    check_context(TOKENIZER.count_prompt(["é" * 999_996]))
    with pytest.raises(InvalidRequest, match=r"length is 1000000 tokens.* resulted in 1000001 tokens"):
        check_context(TOKENIZER.count_prompt(["é" * 999_997]))


def check_any(body: bytes) -> None:
    """Parse a body: the forwarded parts are valid JSON, or the body is refused with a 400."""
    try:
        request = parse_chat(body)
    except InvalidRequest:
        return
    assert request.messages
    assert isinstance(request.texts, list)
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


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_a_refusal(body: bytes) -> None:
    """No bytes raise anything but a 400."""
    check_any(body)


@given(json_values | bodies)
def test_any_json_is_a_request_or_a_refusal(value: Any) -> None:
    """JSON of any structure, like a request or not, is accepted or refused."""
    check_any(msgspec.json.encode(value))


@given(
    st.integers(0, 200), st.integers(0, 12), st.binary(max_size=6) | st.sampled_from([b"\\", b'"', b"[", b"}", b"9"])
)
def test_any_damaged_request_is_a_request_or_a_refusal(place: int, removed: int, added: bytes) -> None:
    """A good request with some bytes removed and others inserted is accepted or refused."""
    body = json.dumps(CHAT, ensure_ascii=False).encode()
    check_any(body[:place] + added + body[place + removed :])
