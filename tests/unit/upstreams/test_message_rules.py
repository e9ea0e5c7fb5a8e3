"""Rewriting messages for upstreams that do not take them as clients send them."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from cadenza.core.errors import InvalidRequest
from cadenza.core.records import Route
from cadenza.gateway.validate import parse_chat
from cadenza.upstreams.dialects import DIALECTS, Dialect
from cadenza.upstreams.message_rules import MessageRules, without_nulls

ROUTE = Route("acme", "large", 100_000, 1000)
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
NINE = re.compile("[A-Za-z0-9]{9}")
SIGNED = CALL | {"extra_content": {"google": {"thought_signature": "c2ln"}}}

SENDABLE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant"])},
    optional={
        "content": st.sampled_from(["", "Hi", None, [], [{"type": "text", "text": "Hi"}]]),
        "tool_calls": st.sampled_from([None, []]),
        "refusal": st.sampled_from([None, "", "No."]),
        "reasoning_content": st.sampled_from([None, "", "Hm."]),
        "reasoning": st.sampled_from([None, "", "Hm."]),
        "reasoning_details": st.sampled_from([None, [], [{"type": "x"}]]),
        "name": st.sampled_from([None, "ada"]),
        "extra": st.none() | st.integers() | st.lists(st.text(max_size=3), max_size=2),
    },
)


def rewrite(dialect: Dialect | str, *messages: dict[str, Any], route: Route = ROUTE) -> list[Any]:
    rules = MessageRules(DIALECTS[dialect] if isinstance(dialect, str) else dialect)
    raws = [Raw(json.dumps(message).encode()) for message in messages]
    return [json.loads(bytes(raw)) for raw in rules.apply(raws, route)]


def assistant(dialect: Dialect | str, route: Route = ROUTE, **fields: Any) -> dict[str, Any]:
    """The rewritten message of an assistant, without its role."""
    (message,) = rewrite(dialect, {"role": "assistant", **fields}, route=route)
    assert message.pop("role") == "assistant"
    return dict(message)


def test_plain_messages_are_not_decoded() -> None:
    """Without rules the very same bytes are sent."""
    messages = [Raw(b'{"role" : "assistant", "reasoning":"Hm", "tool_calls":null}')]
    assert MessageRules(DIALECTS["plain"]).apply(messages, ROUTE) is messages


def test_only_messages_with_reasoning_are_decoded() -> None:
    """A dialect that only changes reasoning leaves the bytes of other messages alone."""
    said, thought = Raw(b'{"role" : "user","content":"Hi"}'), Raw(b'{"role":"assistant","content":"a","reasoning":"b"}')
    first, second = MessageRules(DIALECTS["anthropic"]).apply([said, thought], ROUTE)
    assert first is said
    assert json.loads(bytes(second)) == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("dialect", "given", "sent"),
    [
        ("plain", {"reasoning": "a"}, {"reasoning": "a"}),
        ("ollama", {"reasoning_content": "a"}, {"reasoning": "a"}),
        ("ollama", {"reasoning": "a"}, {"reasoning": "a"}),
        ("llamacpp", {"reasoning": "a"}, {"reasoning_content": "a"}),
        ("llamacpp", {"reasoning": "b", "reasoning_content": "a"}, {"reasoning_content": "a"}),
        ("llamacpp", {"reasoning": "b", "reasoning_content": None}, {"reasoning_content": "b"}),
        ("llamacpp", {"reasoning_content": ""}, {}),
        ("llamacpp", {"reasoning": "a", "reasoning_details": [1]}, {"reasoning_content": "a"}),
        ("openrouter", {"reasoning": "a", "reasoning_details": [1]}, {"reasoning": "a", "reasoning_details": [1]}),
        ("openrouter", {"reasoning_details": None}, {}),
        ("openai", {"reasoning": "a", "reasoning_content": "a", "reasoning_details": [1]}, {}),
        ("kimi", {}, {"reasoning_content": " "}),
        ("kimi", {"reasoning_content": ""}, {"reasoning_content": " "}),
        ("kimi", {"reasoning_content": None}, {"reasoning_content": " "}),
        ("deepseek", {"reasoning": None}, {"reasoning_content": ""}),
        ("deepseek", {"reasoning": "a"}, {"reasoning_content": "a"}),
    ],
)
def test_reasoning_has_the_name_that_the_upstream_knows(
    dialect: str, given: dict[str, Any], sent: dict[str, Any]
) -> None:
    """Reasoning is renamed, dropped or filled in; null and empty reasoning is none."""
    assert assistant(dialect, content="Hi", **given) == {"content": "Hi", **sent}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_route_drops_reasoning(dialect: str) -> None:
    """With `reasoning = "drop"` no field of reasoning is sent, not even a filler."""
    route = msgspec.structs.replace(ROUTE, reasoning="drop")
    reasoning = {"reasoning": "a", "reasoning_content": "a", "reasoning_details": [1]}
    assert assistant(dialect, route, content="Hi", **reasoning) == {"content": "Hi"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_message_of_dropped_reasoning_has_a_content(dialect: str) -> None:
    """An assistant message that had nothing but reasoning has an empty text, since upstreams refuse one without any."""
    route = msgspec.structs.replace(ROUTE, reasoning="drop")
    assert assistant(dialect, route, content=None, reasoning_content="a") == {"content": ""}
    assert assistant(dialect, route, reasoning="a") == {"content": ""}


@pytest.mark.parametrize(
    ("dialect", "given", "sent"),
    [
        ("deepseek", {"content": None}, {"content": ""}),
        ("deepseek", {}, {"content": ""}),
        ("mistral", {"content": None}, {"content": ""}),
        ("gemini", {"content": None}, {}),
        ("gemini", {"content": ""}, {}),
        ("gemini", {"content": "Hi"}, {"content": "Hi"}),
        ("tgi", {"content": None}, {}),
        ("tgi", {"content": "Let me look."}, {}),
        ("llamacpp", {"content": None}, {"content": None}),
        ("kimi", {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"content": "ab"}),
    ],
)
def test_content_beside_calls(dialect: str, given: dict[str, Any], sent: dict[str, Any]) -> None:
    """The content of a message with calls is what the upstream wants for no content."""
    found = assistant(dialect, **given, tool_calls=[CALL])
    assert found.pop("tool_calls")
    found.pop("reasoning_content", None)
    assert found == sent


@pytest.mark.parametrize("dialect", ["groq", "mistral", "gemini", "deepseek", "kimi", "tgi", "ollama", "llamacpp"])
@pytest.mark.parametrize("content", [None, ""])
def test_a_refusal_is_sent_as_text(dialect: str, content: Any) -> None:
    """A refused answer has no content, which many upstreams refuse: its refusal is its content, and not sent twice."""
    message = assistant(dialect, content=content, refusal="No.")
    assert (message["content"], "refusal" in message) == ("No.", False)


def test_parts_are_joined_only_if_all_are_text() -> None:
    """An image keeps the parts of its message."""
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    assert rewrite("ollama", {"role": "user", "content": parts})[0]["content"] == parts
    assert rewrite("ollama", {"role": "user", "content": []})[0]["content"] == ""
    assert rewrite("ollama", {"role": "tool", "tool_call_id": "1", "content": parts[:1]})[0]["content"] == "a"


@pytest.mark.parametrize("dialect", ["groq", "mistral", "gemini"])
def test_unknown_fields_are_left_out(dialect: str) -> None:
    """A strict upstream gets the fields of messages, calls and functions that it knows, and no others."""
    echoed = CALL | {"index": 0, "function": {"name": "look", "arguments": "{}", "parsed_arguments": {}}}
    message = assistant(dialect, content="Hi", refusal=None, audio=None, vendor=1, tool_calls=[echoed])
    (call,) = message["tool_calls"]
    assert message.keys() == {"content", "tool_calls"}
    assert call | {"id": CALL["id"]} == CALL
    assert rewrite(dialect, {"role": "user", "content": "Hi", "name": "ada"}) == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("dialect", "is_kept"), [("gemini", True), ("plain", True), ("groq", False), ("mistral", False)]
)
def test_signatures_of_calls(dialect: str, is_kept: bool) -> None:
    """Gemini gets its signatures back; other strict upstreams never see them."""
    (call,) = assistant(dialect, content="Hi", tool_calls=[SIGNED])["tool_calls"]
    assert ("extra_content" in call) == is_kept


def test_ids_of_calls_are_shortened_alike() -> None:
    """A call and its answer get the same short id, different ids stay different, and a fitting id is unchanged."""
    ids = ["call_1", "call_2", "abcdefghi", "abcdefgh_"]
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": [CALL | {"id": call_id} for call_id in ids]},
        *({"role": "tool", "tool_call_id": call_id, "content": "4"} for call_id in ids),
    ]
    called, *answers = rewrite("mistral", *messages)
    sent = [call["id"] for call in called["tool_calls"]]
    assert sent == [answer["tool_call_id"] for answer in answers]
    assert len(set(sent)) == len(ids)
    assert all(map(NINE.fullmatch, sent))
    assert sent[2] == ids[2]


@pytest.mark.parametrize(
    ("dialect", "call_id", "is_kept"),
    [
        ("openai", "x" * 40, True),
        ("openai", "chatcmpl-tool-0123456789abcdef0123456789abcdef", False),
        ("azure", "x" * 41, False),
        ("anthropic", "toolu_01-aB", True),
        ("anthropic", "functions.look:0", False),
        ("kimi", "functions.look:0", True),
        ("plain", "functions.look:0" * 9, True),
    ],
)
def test_ids_of_another_upstream(dialect: str, call_id: str, is_kept: bool) -> None:
    """An id that another upstream gave is kept if it fits; else the call and its answer get a new one."""
    called, answer = rewrite(
        dialect,
        {"role": "assistant", "content": "Hi", "tool_calls": [CALL | {"id": call_id, "extra_content": {"a": 1}}]},
        {"role": "tool", "tool_call_id": call_id, "content": "4"},
    )
    assert called["tool_calls"][0]["id"] == answer["tool_call_id"]
    assert (answer["tool_call_id"] == call_id) == is_kept
    assert called["tool_calls"][0]["extra_content"] == {"a": 1}


def test_tools_without_a_function_are_unchanged() -> None:
    """Only the nulls of functions are left out."""
    tools = [{"type": "custom", "custom": {"name": "sing", "format": None}}]
    assert json.loads(bytes(without_nulls(Raw(json.dumps(tools).encode())))) == tools


@given(messages=st.lists(SENDABLE, min_size=1, max_size=3))
def test_any_message_that_is_accepted_can_be_rewritten(messages: list[dict[str, Any]]) -> None:
    """Every message that we accept from a client can be written in every dialect."""
    try:
        chat = parse_chat(json.dumps({"messages": messages}).encode())
    except InvalidRequest:
        return
    for dialect in DIALECTS.values():
        assert len(MessageRules(dialect).apply(chat.messages, ROUTE)) == len(messages)
