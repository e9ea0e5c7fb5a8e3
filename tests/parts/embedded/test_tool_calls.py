"""Tool calls for a model whose template has no form for them: what the model is asked, and what its reply becomes.

The model's server is a scripted one on the loopback, which records the requests.
"""

import contextlib
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from cadenza.core.faults import FaultKind
from cadenza.core.records import Route
from cadenza.parts.embedded.tool_calls import open_with_tools
from cadenza.upstreams.base import Ask, Collector, Fault, Piece
from cadenza.upstreams.openai import OpenAIUpstream
from tests.loopback import Good, LoopbackUpstream

ROUTE = Route("local", "small", 8_192, 1_024)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
USER = {"role": "user", "content": "How warm is it in Oslo?"}
SMALL_TALK = {"role": "user", "content": "Hi, how are you?"}
OSLO = '{"city": "Oslo"}'


def tool(name: str = "get_weather", description: Any = "The weather of a city.", parameters: Any = CITY) -> Any:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER, CLOCK = tool(), tool("tell_time", "The time of day.")
CALL = {"id": "x", "type": "function", "function": {"name": "get_weather", "arguments": OSLO}}


@pytest.fixture
def model(upstream: LoopbackUpstream) -> LoopbackUpstream:
    return upstream


async def ask(
    model: LoopbackUpstream, *messages: Any, choice: Any = None, tools: Any = None, stream: bool = False
) -> Piece:
    """The whole reply as one piece."""
    given = {"tools": [WEATHER, CLOCK] if tools is None else tools} | ({"tool_choice": choice} if choice else {})
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in given.items()}
    said = [msgspec.Raw(msgspec.json.encode(message)) for message in messages or (USER,)]
    endpoint = OpenAIUpstream(model.base_url)
    whole = Collector()
    try:
        reply = await open_with_tools(endpoint, ROUTE, Ask(said, {}, None, stream=stream, tools=raw))
        await reply.deliver(whole)
        await reply.close()
    finally:
        await endpoint.stop()
    calls = tuple(part for piece in whole.pieces for part in piece.calls)
    return Piece("".join(piece.content for piece in whole.pieces), calls=calls)


def called(piece: Piece) -> tuple[str, str] | None:
    """Name and arguments of the only call, or None without a call."""
    if not piece.calls:
        return None
    assert piece.content == ""
    return "".join(part.name for part in piece.calls), "".join(part.arguments for part in piece.calls)


def force(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


def schema_asked(model: LoopbackUpstream) -> Any:
    return model.requests[-1].json["response_format"]["json_schema"]["schema"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_forced_call_is_bound_to_the_schema(model: LoopbackUpstream, stream: bool) -> None:
    """The model is asked only for arguments in the tool's schema, and its reply becomes a call of that tool."""
    model.script(Good(OSLO))
    assert called(await ask(model, SMALL_TALK, choice=force("get_weather"), stream=stream)) == ("get_weather", OSLO)
    (request,) = model.requests
    assert not {"tools", "tool_choice"} & request.json.keys()
    assert schema_asked(model)["properties"].keys() == {"city"}
    assert request.json["messages"][0] == SMALL_TALK


async def test_none_never_calls(model: LoopbackUpstream) -> None:
    """With `none` a message that fits a tool is answered in words."""
    assert called(await ask(model, choice="none")) is None
    assert "response_format" not in model.requests[0].json


@pytest.mark.parametrize(
    ("text", "name"), [("What is the weather in Oslo?", "get_weather"), ("Tell me the time!", "tell_time")]
)
async def test_a_message_that_names_a_tool_calls_it(model: LoopbackUpstream, text: str, name: str) -> None:
    """The tool is called whose name and description share most words with the message, by one request to the model."""
    model.script(Good(OSLO))
    said = {"role": "user", "content": [{"type": "text", "text": text}]}
    assert called(await ask(model, said)) == (name, OSLO)
    assert len(model.requests) == 1


async def test_a_message_that_names_no_tool_is_answered_in_words(model: LoopbackUpstream) -> None:
    """With `auto`, a message without a word of any tool is answered in words."""
    model.script(Good("I am well."))
    assert await ask(model, SMALL_TALK) == Piece("I am well.")
    assert "response_format" not in model.requests[0].json


async def test_a_required_call_cannot_be_declined(model: LoopbackUpstream) -> None:
    """With `required` a tool is called, even if no word is shared, and even right after a result."""
    model.always(Good(OSLO))
    assert called(await ask(model, SMALL_TALK, choice="required")) == ("get_weather", OSLO)
    answered = {"role": "tool", "tool_call_id": "x", "content": "4"}
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, answered]
    assert called(await ask(model, *history, choice="required")) == ("get_weather", OSLO)


async def test_a_result_is_answered_in_words(model: LoopbackUpstream) -> None:
    """The result of a tool is answered in words, from a history of plain text messages."""
    messages = [
        USER,
        {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]},
        {
            "role": "tool",
            "tool_call_id": "x",
            "content": [{"type": "text", "text": "The weather is"}, {"type": "text", "text": " 4"}],
        },
    ]
    assert called(await ask(model, *messages)) is None
    first, *told, last = model.requests[0].json["messages"]
    assert first == USER
    assert "Let me look." in "".join(message["content"] for message in told)
    assert last["role"] == "tool"
    assert last["content"].endswith("The weather is 4")
    assert all(message.keys() == {"role", "content"} for message in [*told, last])


async def test_a_custom_tool_is_refused(model: LoopbackUpstream) -> None:
    """A custom tool has no schema to bind the model to, so it is refused."""
    with pytest.raises(Fault) as fault:
        await ask(model, tools=[{"type": "custom", "custom": {"name": "run"}}])
    assert fault.value.kind is FaultKind.INVALID


@pytest.mark.parametrize(
    "choice",
    [{"x": 1}, {"type": "custom", "custom": {"name": "run"}}, {"type": "custom", "function": None}],
    ids=str,
)
async def test_a_choice_that_names_no_function_is_answered_in_words(model: LoopbackUpstream, choice: Any) -> None:
    """A choice in a form that this model cannot follow is answered in words."""
    assert called(await ask(model, choice=choice)) is None


@pytest.mark.parametrize("function", ["absent", None])
async def test_a_custom_call_in_the_history_is_left_out(model: LoopbackUpstream, function: Any) -> None:
    """A call without a function, absent or null, is left out of the history."""
    call = {"id": "x", "type": "custom", "custom": {"name": "run", "input": "ls"}}
    call |= {} if function == "absent" else {"function": function}
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    await ask(model, *history, {"role": "tool", "tool_call_id": "x", "content": "a file"})
    told = model.requests[0].json["messages"]
    assert "ls" not in str(told)
    assert told[-1] == {"role": "tool", "content": "a file"}


ENDLESS: dict[str, tuple[Any, Any]] = {
    "strings have an end": (
        {"type": "object", "properties": {"a": {"type": "string"}}},
        {"a": "x" * 200},
    ),
    "strings that may be null have an end": (
        {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
        {"a": "x" * 2_000},
    ),
    "arrays have an end": (
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}},
        {"a": [1] * 50},
    ),
    "objects have no other members": (CITY, {"city": "Oslo", "more": 1}),
}


KEPT: dict[str, tuple[Any, Any]] = {
    "limits of its own": (
        {"type": "object", "properties": {"a": {"type": "string", "minLength": 300, "maxLength": 400}}},
        {"a": "x" * 350},
    ),
    "a least length": (
        {"type": "object", "properties": {"a": {"type": "string", "minLength": 300}}},
        {"a": "x" * 300},
    ),
    "a least number": ({"type": "object", "properties": {"a": {"type": "array", "minItems": 30}}}, {"a": [1] * 30}),
    "open on purpose": ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1, "b": 2}),
    "a property called type": (
        {"type": "object", "properties": {"type": {"enum": ["string", "object"]}}},
        {"type": "object"},
    ),
    "values that look like schemas": (
        {"type": "object", "properties": {"a": {"enum": [{"type": "object"}]}}},
        {"a": {"type": "object"}},
    ),
}


@pytest.mark.parametrize("case", [*ENDLESS, *KEPT])
async def test_the_schema_of_the_model_has_bounds(model: LoopbackUpstream, case: str) -> None:
    """A small model may never end a value: bounds are added where the client has none, and only there."""
    schema, value = (ENDLESS | KEPT)[case]
    await ask(model, tools=[tool(parameters=schema)], choice=force("get_weather"))
    Draft202012Validator(schema).validate(value)
    assert Draft202012Validator(schema_asked(model)).is_valid(value) is (case in KEPT)


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"a": {"type": "string", "minLength": "5"}}},
        {"type": "object", "properties": {"a": {"type": "array", "minItems": None}}},
        {"type": "object", "properties": 7},
        {"type": {"x": 1}},
        nested(200),
        nested(300),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_an_invalid_schema_is_sent_or_refused(model: LoopbackUpstream, parameters: Any) -> None:
    """An invalid or very deep schema is sent to the model or refused, and never an internal error."""
    with contextlib.suppress(Fault):
        await ask(model, tools=[tool(parameters=parameters)], choice=force("get_weather"))
        assert schema_asked(model)["type"] == parameters["type"]


@pytest.mark.parametrize("parameters", [None, {}], ids=str)
async def test_a_tool_without_parameters_takes_an_empty_object(model: LoopbackUpstream, parameters: Any) -> None:
    """No schema, or an empty one, means an empty object."""
    await ask(model, tools=[tool(description=None, parameters=parameters)], choice=force("get_weather"))
    assert Draft202012Validator(schema_asked(model)).is_valid({})
    assert not Draft202012Validator(schema_asked(model)).is_valid({"a": 1})
