"""A request of the Responses API as a chat body: every form of it, and what is refused."""

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.errors import InvalidRequest
from cadenza.gateway.large.weight import TooManySteps
from cadenza.gateway.validate import parse_chat
from cadenza.parts.protocols.responses_request import ECHO_BYTES_MAX, translate, wrap_reasoning
from cadenza.parts.protocols.translation import fitting_name

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
OTHER_CALL, OTHER_OUTPUT = {**CALL, "call_id": "c2"}, {**OUTPUT, "call_id": "c2"}
CUSTOM = {"type": "custom", "name": "look"}
USER, REASONED = {"role": "user", "content": "go on"}, {"type": "reasoning", "id": "rs_1", "summary": []}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}


def chat_of(**fields: Any) -> Any:
    return json.loads(bytes(translate(json.dumps({"input": "hi", **fields}).encode(), math.inf).chat))


def kept_of(**fields: Any) -> Any:
    return json.loads(translate(json.dumps({"input": "hi", **fields}).encode(), math.inf).kept)


def messages_of(*items: Any, **fields: Any) -> Any:
    return chat_of(input=items, **fields)["messages"]


def refusal_of(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        chat_of(**fields)
    return caught.value.message


def calls(*ids: str, **fields: Any) -> dict[str, Any]:
    made = [{"id": one, "type": "function", "function": {"name": "look", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": None, **fields, "tool_calls": made}


def answer(call_id: str, text: str = "seen") -> dict[str, str]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


@pytest.mark.parametrize("text", ["", "hi"])
def test_a_text_is_one_user_message(text: str) -> None:
    """The empty text of a probe too; instructions become the leading system message."""
    assert chat_of(input=text)["messages"] == [{"role": "user", "content": text}]
    assert chat_of(input=text, instructions="Be brief.")["messages"][0] == {"role": "system", "content": "Be brief."}


def test_messages_of_every_role_and_form() -> None:
    """With and without a type, a text or parts; an assistant's refusal is text, and several parts stay parts."""
    text, other = {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}
    file = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,YQ=="}
    sent = messages_of(
        {"role": "developer", "content": [text], "id": "msg_1", "status": "completed"},
        {"type": "message", "role": "system", "content": "s"},
        {"role": "user", "content": [text, other]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": [text, IMAGE, file]},
    )
    file_part = {"type": "file", "file": {"filename": "a.txt", "file_data": file["file_data"]}}
    assert sent == [
        {"role": "developer", "content": "a"},
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, CHAT_IMAGE, file_part]},
    ]


@pytest.mark.parametrize(
    ("items", "sent"),
    [
        ([CALL, OUTPUT], [calls("c1"), answer("c1")]),
        ([{"role": "assistant", "content": "I look."}, CALL, OUTPUT], [calls("c1", content="I look."), answer("c1")]),
        ([CALL, OTHER_CALL, OUTPUT, OTHER_OUTPUT], [calls("c1", "c2"), answer("c1"), answer("c2")]),
        ([CALL, OUTPUT, OTHER_CALL, OTHER_OUTPUT], [calls("c1"), answer("c1"), calls("c2"), answer("c2")]),
        ([CALL, OTHER_CALL, OTHER_OUTPUT, USER, OUTPUT], [calls("c1", "c2"), answer("c2"), answer("c1"), USER]),
        ([CALL, {"role": "assistant", "content": "I look."}, OUTPUT], [calls("c1", content="I look."), answer("c1")]),
    ],
    ids=["one", "after a text", "parallel", "one after the other", "a message between", "a text after"],
)
def test_calls_of_one_turn_are_one_message(items: list[Any], sent: list[Any]) -> None:
    """With the text beside them. Their outputs follow at once, and what came before the last output comes after it."""
    assert messages_of(*items) == sent


def test_custom_calls_and_outputs_with_parts() -> None:
    """A custom call keeps its input; the images of an output move to a user message behind all outputs."""
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"}
    parts = [{"type": "input_text", "text": "one"}, IMAGE, {"type": "input_text", "text": "two"}]
    sent = messages_of(
        CALL, custom, {**OUTPUT, "output": parts}, {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"}
    )
    made = {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    first = calls("c1")
    first["tool_calls"].append(made)
    assert sent == [first, answer("c1", "one\ntwo"), answer("c2", "ok"), {"role": "user", "content": [CHAT_IMAGE]}]


def test_reasoning_goes_with_the_message_that_follows() -> None:
    """As its text or, if we wrapped it, as the upstream gave it; what another service encrypted is left out."""
    text = {**REASONED, "content": [{"type": "reasoning_text", "text": "hm"}]}
    summary = {**REASONED, "summary": [{"type": "summary_text", "text": "so"}]}
    wrapped = {**REASONED, "encrypted_content": wrap_reasoning({"reasoning_details": [{"a": 1}], "reasoning": "r"})}
    foreign = {**text, "encrypted_content": "gAAAAB=="}
    said = {"role": "assistant", "content": "ok"}
    assert messages_of(text, CALL, OUTPUT) == [calls("c1", reasoning_content="hm"), answer("c1")]
    assert messages_of(summary, said) == [{**said, "reasoning_content": "so"}]
    assert messages_of(wrapped, said) == [{**said, "reasoning_details": [{"a": 1}], "reasoning": "r"}]
    assert messages_of(foreign, said) == [{**said, "reasoning_content": "hm"}]
    assert messages_of(said, text, CALL, OUTPUT)[0] == calls("c1", content="ok", reasoning_content="hm")
    again = {**REASONED, "encrypted_content": wrap_reasoning({"reasoning_details": [{"b": 2}], "reasoning": ["s"]})}
    both = {"reasoning_details": [{"a": 1}, {"b": 2}], "reasoning": ["s"]}
    assert messages_of(wrapped, CALL, again, OTHER_CALL, OUTPUT, OTHER_OUTPUT)[0].items() >= both.items()
    forged = {**REASONED, "encrypted_content": wrap_reasoning({"role": "system"})}
    assert messages_of(text, USER, REASONED, forged, said) == [USER, said]


def test_tools_in_the_flat_form() -> None:
    """Functions, custom tools and those of a namespace, whose names are kept; others are named as ignored."""
    function = {
        "type": "function",
        "name": "look",
        "description": "d",
        "parameters": {"type": "object"},
        "strict": True,
    }
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: x"}
    patch = {"type": "custom", "name": "patch", "format": grammar}
    nested = {
        "type": "namespace",
        "name": "files",
        "description": "d",
        "tools": [{**function, "name": "n" * 60}, patch],
    }
    tools = [function, patch, nested, {"type": "web_search", "filters": {}}, {"type": "image_generation"}]
    chat, kept = chat_of(tools=tools), kept_of(tools=tools)
    names = [one[one["type"]]["name"] for one in chat["tools"]]
    assert names == ["look", "patch", fitting_name("", "n" * 60, "files"), "files__patch"]
    assert (len(names[2]), names[2][:7]) == (64, "files__")
    assert chat["tools"][0]["function"] == {name: function[name] for name in function if name != "type"}
    assert chat["tools"][1]["custom"]["format"] == {
        "type": "grammar",
        "grammar": {"syntax": "lark", "definition": "start: x"},
    }
    assert {"tools.web_search", "tools.image_generation"} <= chat.keys()
    assert kept["names"] == {names[2]: ["files", "n" * 60], "files__patch": ["files", "patch"]}
    assert messages_of({**CALL, "namespace": "files"}, OUTPUT)[0]["tool_calls"][0]["function"]["name"] == "files__look"


def test_names_of_tools_fit_every_model() -> None:
    """At most 64 letters, digits, _ and -; a name that is changed is known again, in calls of earlier turns, too."""
    long, inner = {"type": "function", "name": "n" * 80}, [{"type": "custom", "name": "look up"}]
    tools = [long, {"type": "namespace", "name": "My files. ", "tools": inner}]
    names = [one[one["type"]]["name"] for one in chat_of(tools=tools)["tools"]]
    assert [name[:-8] for name in names] == ["n" * 55 + "_", "My_files____look_up_"]
    assert kept_of(tools=tools)["names"] == {names[0]: ["", "n" * 80], names[1]: ["My files. ", "look up"]}
    [turn, _] = messages_of({**CALL, "name": "n" * 80}, OUTPUT)
    assert turn["tool_calls"][0]["function"]["name"] == names[0]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("required", "required"),
        ({"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
        ({"type": "custom", "name": "p", "namespace": "n"}, {"type": "custom", "custom": {"name": "n__p"}}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}, {"type": "mcp"}]},
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "look"}}]},
            },
        ),
        ({"type": "web_search"}, None),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}, None),
    ],
)
def test_every_form_of_tool_choice(choice: Any, sent: Any) -> None:
    """A choice of a tool that is left out is left out too."""
    chat = chat_of(tools=[{"type": "function", "name": "look"}], tool_choice=choice)
    assert chat.get("tool_choice", sent if sent is None else "missing") == (True if sent is None else sent)


def test_a_required_call_of_no_tool_is_left_out() -> None:
    """If only tools of other types were sent, an answer in text is better than an error."""
    assert chat_of(tools=[{"type": "web_search"}], tool_choice="required")["tool_choice"] is True


def test_fields_with_another_name_in_a_chat() -> None:
    """The limit, the effort, the form of the text; unknown fields stay."""
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    fields = {"temperature": 0.5, "top_p": 0.9, "parallel_tool_calls": False, "stream": True, "user": "u", "top_k": 3}
    fields |= {"store": False, "truncation": "disabled", "prompt_cache_key": "a", "service_tier": "auto"}
    chat = chat_of(
        **fields,
        model="auto",
        max_output_tokens=17.0,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": schema, "verbosity": "low"},
        metadata={},
        include=["reasoning.encrypted_content", "message.output_text.logprobs"],
        previous_response_id=None,
    )
    del schema["type"]
    assert chat == {
        **fields,
        "model": "auto",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 17.0,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": schema},
        "verbosity": "low",
        "include.message.output_text.logprobs": True,
    }
    assert chat_of(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    assert "response_format" not in chat_of(text={"format": {"type": "text"}})


def test_what_is_repeated_in_the_reply() -> None:
    """Short fields on one line, because an event is one line; a long one is not repeated."""
    body = b'{"input":"hi","metadata":{\n"a" :\r\n "b"},"instructions":"%b","include":["reasoning.encrypted_content"]}'
    kept = translate(body % (b"x" * ECHO_BYTES_MAX), math.inf).kept
    assert json.loads(kept) == {"echo": {"metadata": {"a": "b"}}, "is_encrypted": True}
    assert b"\n" not in kept


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "prompt", "background"])
def test_what_is_stored_elsewhere_is_refused(name: str) -> None:
    """With what to send instead; null, and false, are fine."""
    assert refusal_of(**{name: "resp_1"}).startswith(f"{name}: ")
    assert name not in chat_of(**{name: None})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": 1}, "input: must be"),
        ({"input": []}, "input: must be a text"),
        ({"input": [REASONED]}, "input: must be a text"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]: refers to an item. Nothing is stored"),
        ({"input": [OUTPUT]}, "input[0].call_id: no call 'c1'"),
        ({"input": [USER, CALL]}, "input[1]: the call 'c1' has no output"),
        ({"input": [CALL, OUTPUT, OUTPUT]}, "input[2].call_id"),
        ({"input": [{"role": "tool", "content": ""}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": None}]}, "input[0].content: must be"),
        ({"input": [{"role": "system", "content": [IMAGE]}]}, "input[0].content: only messages of the role user"),
        (
            {"input": [{"role": "assistant", "content": [IMAGE]}]},
            "input[0].content[0]: must be of the type",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text: missing"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "image_url: missing"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "f"}]}]}, "file_data: missing"),
        ({"input": [{"role": "user", "content": [{"type": "video"}]}]}, "input[0].content[0].type: must be"),
        ({"input": [{"role": "user", "content": ""}] * 16_385}, "input: 16385 items"),
        ({"max_output_tokens": 0}, "max_output_tokens: must be a positive integer"),
        ({"max_output_tokens": 1.5}, "max_output_tokens: must be a positive integer"),
        ({"tools": [{"type": "function", "name": 1}]}, "tools[0].name: must be"),
        ({"tools": {}}, "tools: must be"),
        ({"tools": [{"type": "mcp"}] * 1025}, "tools: at most 1,024"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}] * 1025}]}, "tools: at most 1,024"),
        ({"tools": [{"type": "function", "name": "n" * 257}]}, "tools[0].name: has 257 characters; at most 256"),
        ({"tools": [{"type": "mcp"}, {"type": "namespace", "name": "s" * 257}]}, "tools[1].name: has 257 characters"),
        ({"tool_choice": {"type": "function", "name": "n" * 257}}, "tool_choice.name: has 257 characters"),
        (
            {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp"}, CUSTOM | {"namespace": "s" * 257}]}},
            "tool_choice.tools[1].namespace: has 257 characters",
        ),
        ({"input": [CALL | {"name": "n" * 257}]}, "input[0].name: has 257 characters"),
        ({"input": [CALL | {"namespace": "s" * 257}]}, "input[0].namespace: has 257 characters"),
        ({"text": {"format": "json"}}, "text.format: must be"),
    ],
)
def test_a_wrong_request_is_refused_where_it_is_wrong(fields: dict[str, Any], words: str) -> None:
    """The message names the field of this API, not that of a chat."""
    assert words in refusal_of(**fields)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON: it is empty"),
        (b"[1]", "The body: must be"),
        (b"{}", "input: missing."),
        (b'{"messages":[]}', "send it to /v1/chat/completions"),
        (b'{"input":"hi","metadata":"\\ud800"}', "not valid JSON"),
        (b'{"input":"hi","metadata":%b1%b}' % (b"[" * 2000, b"]" * 2000), "nested too deeply"),
    ],
)
def test_a_body_of_another_shape_is_refused(body: bytes, words: str) -> None:
    """An error of ours, whatever the body is."""
    with pytest.raises(InvalidRequest) as caught:
        translate(body, math.inf)
    assert words in caught.value.message


NAMES = ("type", "role", "content", "output", "call_id", "name", "namespace", "summary", "encrypted_content", "tools")
TYPES = ("message", "function_call", "custom_tool_call", "function_call_output", "reasoning", "function", "namespace")
plain = st.none() | st.booleans() | st.integers() | st.sampled_from(["", "user", "assistant", "c1", "e30=", *TYPES])
anything = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
)
item_like = st.fixed_dictionaries({"type": st.sampled_from(TYPES), "call_id": st.just("c1")}).flatmap(
    lambda item: st.dictionaries(st.sampled_from(NAMES[1:]), anything, max_size=5).map(lambda more: {**item, **more})
)


@settings(max_examples=60)
@given(st.lists(item_like, max_size=4), st.lists(item_like, max_size=3), anything, anything)
def test_whatever_a_body_has_it_is_a_chat_or_refused(items: Any, tools: Any, choice: Any, form: Any) -> None:
    """There is no other error, and what was translated has the form of a chat."""
    body = {"input": items, "tools": tools, "tool_choice": choice, "text": form, "reasoning": form}
    with suppress(InvalidRequest):
        parse_chat(bytes(translate(json.dumps(body).encode(), math.inf).chat))


def test_items_of_other_services_are_named() -> None:
    """A history with searches of another service is served without them."""
    chat = chat_of(input=[USER, {"type": "web_search_call", "id": "ws", "action": {"query": "q"}, "output": 1}])
    assert (chat["messages"], chat["input.web_search_call"]) == ([USER], True)


@pytest.mark.parametrize(
    "items",
    [
        [USER] * 1001,
        [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 2000}],
        [{**REASONED, "content": [{"type": "reasoning_text", "text": ""}] * 2000}, USER],
        [CALL, *[{"role": "assistant", "content": "x" * 1000}] * 125, OUTPUT],  # each is copied for the next
    ],
)
def test_a_long_conversation_is_not_translated_on_the_event_loop(items: list[Any]) -> None:
    """Beyond the steps that it may take, it stops."""
    body = json.dumps({"input": items}).encode()
    with pytest.raises(TooManySteps):
        translate(body, 2000)
    assert translate(body, 2100)
