"""Chat requests: which are accepted, how they are forwarded, and with which message others are refused."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.chat import SAMPLING
from cadenza.core.errors import InvalidRequest
from cadenza.gateway.validate import parse_chat

USER = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
HELLO = [{"type": "text", "text": "Hello"}, {"type": "text", "text": ", world"}]
CHAT = {"model": "forte", "messages": [USER], "stream": True, "max_tokens": 5, "temperature": 0.5, "stop": ["é", "\n"]}


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
