"""The body of a Messages request becomes that of a chat request."""

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import InvalidRequest
from cadenza.core.records import OUTPUT_TOKENS_MAX
from cadenza.gateway.large.tasks import Translated
from cadenza.gateway.large.weight import TooManySteps
from cadenza.gateway.validate import parse_chat
from cadenza.parts.protocols.anthropic_request import NO_THREADS, translate

HI = {"role": "user", "content": "hi"}
PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
READ = {"name": "Read", "description": "Reads.", "input_schema": {"$schema": "http://x", "type": "object"}}
SOURCE = "messages[0].content[0].source: "
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **fields}


def called(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "Read", "input": arguments}


def result(call_id: str, content: Any = "done", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [*blocks]}


def translated(*messages: Any, steps_max: float = math.inf, **fields: Any) -> Translated:
    body = {"model": "auto", "max_tokens": 100, "messages": messages or [HI], **fields}
    return translate(json.dumps(body).encode(), steps_max)


def chat_of(*messages: Any, **fields: Any) -> dict[str, Any]:
    """The chat body, which the reader of chat requests accepts."""
    body = bytes(translated(*messages, **fields).chat)
    parse_chat(body)
    chat: dict[str, Any] = json.loads(body)
    return chat


def messages_of(*messages: Any, **fields: Any) -> list[Any]:
    return list(chat_of(*messages, **fields)["messages"])


def refused(*messages: Any, **fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        translated(*messages, **fields)
    return caught.value.message


def test_what_both_write_alike_is_unchanged() -> None:
    """Model, stream, sampling and messages of a text go on as they came."""
    chat = chat_of(HI, {"role": "assistant", "content": "Hello."}, HI, stream=True, temperature=0.5, top_p=0.9)
    assert chat == {
        "model": "auto",
        "max_tokens": 100,
        "stream": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "messages": [HI, {"role": "assistant", "content": "Hello."}, HI],
    }


@pytest.mark.parametrize("system", ["Be kind.\n\nBe brief.", [text("Be kind.", cache_control={}), text("Be brief.")]])
def test_the_system_prompt_is_the_first_message(system: Any) -> None:
    """As a string or as blocks; and a later one stays in its place."""
    late = {"role": "system", "content": [text("Note.")]}
    assert messages_of(HI, late, system=system) == [
        {"role": "system", "content": "Be kind.\n\nBe brief."},
        HI,
        {"role": "system", "content": "Note."},
    ]


def test_texts_alone_become_one() -> None:
    """Blocks of text are one string, which every model takes; with an image among them they stay parts, in order."""
    assert messages_of(user(text("a", cache_control={"type": "ephemeral"}), text("b")))[0]["content"] == "a\n\nb"
    image = {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}}
    assert messages_of(user(text("a"), image, text("b"), {"type": "image", "source": PNG}))[0]["content"] == [
        text("a"),
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
        text("b"),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    ]


def test_documents_become_files_or_text() -> None:
    """A PDF is a file; a text is text, after its title."""
    pdf = {"type": "document", "title": "a.pdf", "source": PDF}
    plain = {"type": "document", "title": "Notes", "source": {"type": "text", "media_type": "text/plain", "data": "n"}}
    assert messages_of(user(pdf, plain))[0]["content"] == [
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
        text("Notes\n\nn"),
    ]


def test_a_turn_with_tools() -> None:
    """Thinking, text and calls are one message; results follow, a message each, and then what the user says."""
    sent = [
        HI,
        assistant(
            {"type": "thinking", "thinking": "hm", "signature": "s"}, text("Ok."), called("a", x=[1]), called("b")
        ),
        user(result("a"), text("And?"), result("b", [text("one"), text("two")])),
    ]
    chat = chat_of(*sent, tools=[READ], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert chat["messages"][1:] == [
        {
            "role": "assistant",
            "content": "Ok.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "Read", "arguments": '{"x": [1]}'}},
                {"id": "b", "type": "function", "function": {"name": "Read", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "done"},
        {"role": "tool", "tool_call_id": "b", "content": "one\n\ntwo"},
        {"role": "user", "content": "And?"},
    ]
    function = {"name": "Read", "description": "Reads.", "parameters": READ["input_schema"]}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == ("auto", False)


def test_results_in_several_messages_follow_their_calls() -> None:
    """Between them there may be texts of the user and of the system: those come after."""
    late = {"role": "system", "content": "Note."}
    sent = messages_of(HI, assistant(called("a"), called("b")), user(result("a"), text("x")), late, user(result("b")))
    assert [one.get("tool_call_id") or one["content"] for one in sent[2:]] == ["a", "b", "x", "Note."]


def test_images_of_results_move_into_the_next_message() -> None:
    """A chat has images in messages of the user only; the result says where it is, and that a call has failed."""
    shot = result("a", [text("See:"), {"type": "image", "source": PNG}], is_error=True)
    _, _, answer, after = messages_of(HI, assistant(called("a")), user(shot, text("Well?")))
    assert answer["content"] == "Error: See:\n\n(The image of this result is in the next message.)"
    assert [part["type"] for part in after["content"]] == ["image_url", "text"]


@pytest.mark.parametrize(
    ("source", "url"),
    [
        (PNG, "data:image/png;base64,aGk="),
        ({"type": "url", "url": "https://images.invalid/a.png"}, "https://images.invalid/a.png"),
    ],
)
def test_an_image_has_the_limits_of_a_chat(source: Any, url: str) -> None:
    """Of the user or of a result, by its data or its address, it is as large as the same image of a chat."""
    image, used = {"type": "image", "source": source}, assistant(called("t1"))
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
    expected = parse_chat(json.dumps(body).encode())
    for messages in ([user(image)], [HI, used, user(result("t1", [image]))]):
        chat = parse_chat(bytes(translated(*messages).chat))
        assert (chat.media, {*chat.needs}) == (expected.media, {"vision"})


def test_an_empty_result_is_an_empty_text() -> None:
    """One that names tools which a search has found says that they can be called."""
    missing = {"type": "tool_result", "tool_use_id": "a"}
    named = result("b", [{"type": "tool_reference", "tool_name": "Read"}])
    sent = messages_of(HI, assistant(called("a"), called("b")), user(missing, named))
    assert [one["content"] for one in sent[2:]] == ["", "The tool Read can be called now."]


def test_blocks_of_other_services_are_dropped_and_named() -> None:
    """What Anthropic's servers added to an answer is left out; thinking that they have hidden is not worth a word."""
    blocks = [{"type": "redacted_thinking", "data": "x"}, {"type": "server_tool_use", "id": "1", "name": "web_search"}]
    chat = chat_of(HI, assistant(*blocks, text("So.")), HI)
    assert chat["messages"][1] == {"role": "assistant", "content": "So."}
    assert set(chat) == {"model", "max_tokens", "messages", "messages.server_tool_use"}


def test_server_tools_are_dropped_and_named() -> None:
    """With them goes a choice that nothing else can fulfil; the other tools stay."""
    alone = chat_of(tools=[SEARCH], tool_choice={"type": "any"})
    assert set(alone) == {"model", "max_tokens", "messages", "tools.web_search_20250305"}
    both = chat_of(tools=[SEARCH, {**READ, "type": "custom"}], tool_choice={"type": "tool", "name": "web_search"})
    assert "tool_choice" not in both
    assert [tool["function"]["name"] for tool in both["tools"]] == ["Read"]


@pytest.mark.parametrize(
    ("sent", "forwarded"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "Read"}, {"type": "function", "function": {"name": "Read"}}),
    ],
)
def test_the_choice_of_a_tool(sent: Any, forwarded: Any) -> None:
    """Each choice has a counterpart."""
    assert chat_of(tools=[READ], tool_choice=sent)["tool_choice"] == forwarded


def test_other_fields() -> None:
    """Stop sequences, effort and schema have other names; what has no counterpart keeps its own, and is dropped."""
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    chat = chat_of(
        stop_sequences=["END"],
        output_config={"effort": "max", "format": schema},
        top_k=5,
        metadata={"user_id": "u"},
        context_management={"edits": []},
        thinking={"type": "adaptive"},
    )
    assert (chat["stop"], chat["reasoning_effort"]) == (["END"], "high")
    assert chat["response_format"]["json_schema"]["schema"] == schema["schema"]
    body = bytes(translated(top_k=5, metadata={"user_id": "u"}, context_management={}).chat)
    assert set(parse_chat(body).extra) == {"top_k", "metadata", "context_management"}


def test_the_limit_is_needed_and_fitted() -> None:
    """It is a 400 without one, but not to count; one above the most that is served is the most."""
    assert chat_of(max_tokens=10**9)["max_tokens"] == OUTPUT_TOKENS_MAX
    assert refused(max_tokens=None).startswith("max_tokens: missing")
    counted = translate(json.dumps({"model": "auto", "messages": [HI]}).encode(), math.inf, needs_limit=False)
    assert json.loads(bytes(counted.chat)) == {"model": "auto", "messages": [HI]}


def test_a_long_name_of_a_tool_fits_every_model() -> None:
    """Anthropic takes 128 characters, a chat 64. Tools, choice and calls have the short one, and the reply the long."""
    long = "mcp__files__" + "n" * 80
    tools, used = [READ, {**READ, "name": long}], {**called("t1"), "name": long}
    asked: dict[str, Any] = {"tools": tools, "tool_choice": {"type": "tool", "name": long}}
    chat = chat_of(HI, assistant(used), user(result("t1")), **asked)
    [first, second] = [tool["function"]["name"] for tool in chat["tools"]]
    assert (first, len(second), second[:60]) == ("Read", 64, long[:55] + "_" + second[56:60])
    assert chat["tool_choice"]["function"]["name"] == second
    assert chat["messages"][1]["tool_calls"][0]["function"]["name"] == second
    assert json.loads(translated(**asked).kept)["names"] == {second: ["", long]}


def test_a_name_that_no_client_sends_is_refused() -> None:
    """Above 256 characters, of a tool, a choice or a call; the error names the field."""
    longest, longer = "n" * 256, "n" * 257
    assert len(chat_of(tools=[{**READ, "name": longest}])["tools"][0]["function"]["name"]) == 64
    said = "name: has 257 characters; at most 256 are allowed."
    assert refused(tools=[READ, {**READ, "name": longer}]) == f"tools[1].{said}"
    assert refused(tools=[READ], tool_choice={"type": "tool", "name": longer}) == f"tool_choice.{said}"
    used = {**called("t1"), "name": longer}
    assert refused({"role": "assistant", "content": [used]}) == f"messages[0].content[0].{said}"
    assert "at most 1,024" in refused(tools=[READ] * 1025)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "adaptive"}}, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
        ({"tools": [READ]}, True),
        ({"tools": [SEARCH]}, False),
    ],
)
def test_when_a_reply_shows_thinking(fields: Any, shown: bool) -> None:
    """If it was asked for, or with tools: simple programs read the text in the first block."""
    assert json.loads(translated(**fields).kept) == ({"shows_thinking": True} if shown else {})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"type": "video"}], "messages[0].content[0].type: here a block must be"),
        ([{"type": "text"}], "messages[0].content[0].text: missing"),
        *[
            ([{"type": "image", "source": one}], f"{SOURCE}must be of the type base64 or url, with the data. No files")
            for one in ({"type": "file", "file_id": "f"}, {"type": "base64", "data": "aGk="}, {"type": "url"})
        ],
        ([{"type": "document", "source": {"type": "url", "url": "u"}}], f"{SOURCE}must be"),
        ([result("a", [{"type": "video"}])], "messages[0].content[0].content[0].type: here"),
        ([{"type": "image"}], f"{SOURCE}must be an object"),
        (5, "messages[0].content: must be a string or an array, not an integer"),
    ],
)
def test_what_is_wrong_is_said_by_its_path(content: Any, said: str) -> None:
    """The path is that of the request as it was sent."""
    assert refused({"role": "user", "content": content}).startswith(said)


def test_further_refusals() -> None:
    """Roles, calls without an id, choices and systems that do not exist."""
    assert refused({"role": "tool", "content": ""}).startswith("messages[0].role: must be one of")
    assert refused(assistant({"type": "tool_use", "name": "Read"})).startswith("messages[0].content[0]: a tool_use")
    assert refused(tools=[READ], tool_choice={"type": "some"}).startswith("tool_choice.type: must be")
    assert refused(system=[{"type": "image"}]).startswith("system: only blocks of text")


def change(kind: str, **tool: Any) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": f"tool_{kind}", "tool": tool}]}


def test_system_messages_change_the_tools() -> None:
    """They offer another, also in place of an earlier one, take one back, or offer it again; no message is left."""
    writing: list[Any] = [
        {"name": "Write", "description": said, "input_schema": {}} for said in ("Writes.", "Writes more.")
    ]
    read = {"type": "tool_reference", "name": "Read"}
    changes = [change("addition", type="tool_definition", definition=one) for one in writing]
    chat = chat_of(HI, *changes, change("removal", **read), tools=[READ])
    assert [(one["function"]["name"], one["function"]["description"]) for one in chat["tools"]] == [
        ("Write", "Writes more.")
    ]
    assert chat["messages"] == [HI]
    assert len(chat_of(HI, change("removal", **read), change("addition", **read), tools=[READ])["tools"]) == 1
    assert "tools" not in chat_of(HI, change("removal", **read), tools=[READ])
    assert refused(HI, change("addition", definition=3)).startswith("messages[1].content[0].tool.definition: ")


def test_system_messages_of_one_turn() -> None:
    """The last effort is that of the request; a text that ends with the next message of the user is left out then."""
    low, brief = {"role": "system", "output_config": {"effort": "low"}}, {"role": "system", "content": "Be brief."}
    chat = chat_of(HI, brief | {"clear_at": "next_user_message"}, low, HI, output_config={"effort": "high"})
    assert (chat["reasoning_effort"], chat["messages"]) == ("low", [HI, HI])
    assert messages_of(HI, brief | {"clear_at": "next_user_message"}) == [HI, brief]
    assert messages_of(brief | {"clear_at": "never"}, HI) == [brief, HI]
    assert refused({"role": "user"}) == "messages[0].content: missing."


def test_a_thread_is_refused() -> None:
    """Even its first request: the next one would have only what is new. Null asks for none."""
    for thread in ({"type": "create"}, {"previous_message_id": "chatcmpl-1"}):
        assert refused(thread=thread) == NO_THREADS
    assert "thread" not in chat_of(thread=None)


def test_too_many_steps_are_left_to_another_process() -> None:
    """Messages and blocks count, those of results and of the system too, stops, and four times each tool."""
    many = [text("x")] * 10
    result = {"type": "tool_result", "tool_use_id": "t1", "content": many}
    for messages, fields, steps in (
        ([user(*many)], {}, 11),
        ([user(result)], {}, 12),
        ([HI], {"system": many}, 11),
        ([HI], {"stop_sequences": ["x"] * 10}, 11),
        ([HI], {"tools": [READ] * 10}, 41),
    ):
        with pytest.raises(TooManySteps):
            translated(*messages, steps_max=steps - 1, **fields)
        translated(*messages, steps_max=steps, **fields)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
BLOCKS = st.dictionaries(
    st.sampled_from(
        ["type", "text", "thinking", "id", "name", "input", "tool_use_id", "is_error", "content", "source"]
    ),
    JSON | st.sampled_from(["text", "image", "tool_use", "tool_result", "document", "search_result", "thinking"]),
    max_size=6,
)
SENT = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.text(max_size=4) | st.lists(BLOCKS)}
)


@given(st.lists(SENT, max_size=4), st.dictionaries(st.sampled_from(["system", "tools", "tool_choice", "x"]), JSON))
def test_any_body_is_translated_or_refused(messages: list[Any], fields: dict[str, Any]) -> None:
    """Nothing but a 400 comes of a body, whatever is in it."""
    body = json.dumps({"max_tokens": 5, "messages": messages, **fields}).encode()
    with suppress(InvalidRequest):
        parse_chat(bytes(translate(body, math.inf).chat))
