"""Custom tools, whose input is free text: definitions and calls pass through in their own form."""

from typing import Any

import openai
import pytest

from tests.contract.tool_upstream import WEATHER
from tests.loopback import Json, LoopbackUpstream, Sse, Status, chunk, completion, usage_chunk
from tests.raw_client import MESSAGES, RawClient
from tests.schemas import Called, check_completion, check_stream, completed_calls
from tests.tokens import count_tokens

RUN: dict[str, Any] = {
    "type": "custom",
    "custom": {"name": "run", "description": "Run it.", "format": {"type": "text"}},
}
TOOLS = [RUN, WEATHER]
INPUT = 'print("{hé}") # not JSON'
RUN_CALL = {"id": "ctc_1", "type": "custom", "custom": {"name": "run", "input": INPUT}}
WEATHER_CALL = {"id": "fc_2", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}


def deltas() -> list[dict[str, Any]]:
    """Both calls as OpenAI streams them: later parts have no id, type or name."""
    first = {"index": 0, "id": "ctc_1", "type": "custom", "custom": {"name": "run", "input": ""}}
    pieces = [{"index": 0, "custom": {"input": INPUT[start : start + 7]}} for start in range(0, len(INPUT), 7)]
    return [{"tool_calls": [delta]} for delta in (first, *pieces, {"index": 1, **WEATHER_CALL})]


def script(upstream: LoopbackUpstream, *, stream: bool, usage: Any = None) -> None:
    value = completion(None, "tool_calls")
    value["choices"][0]["message"]["tool_calls"] = [RUN_CALL, WEATHER_CALL]
    if usage is not None:
        value["usage"] = usage
    counted = [] if usage is not None else [usage_chunk()]
    events = [*map(chunk, deltas()), chunk(finish="tool_calls"), *counted]
    upstream.script(Sse(events) if stream else Json(value))


def made(api: RawClient, *, stream: bool) -> tuple[Called, ...]:
    reply = api.chat(tools=TOOLS, stream=stream)
    assert reply.status == 200, reply.body
    if stream:
        return check_stream(reply.body).calls
    check_completion(reply.json)
    return completed_calls(reply.json)


@pytest.mark.parametrize("stream", [False, True])
def test_calls_keep_their_form(api: RawClient, upstream: LoopbackUpstream, stream: bool) -> None:
    """A call of a custom tool has `custom` with name and input, beside a function call, each with an id of ours."""
    script(upstream, stream=stream)
    calls = made(api, stream=stream)
    assert [(call.type, call.name, call.arguments) for call in calls] == [
        ("custom", "run", INPUT),
        ("function", "get_weather", "{}"),
    ]
    assert upstream.requests[0].json["tools"] == TOOLS


@pytest.mark.parametrize("stream", [False, True])
def test_calls_go_back_with_the_ids_of_the_upstream(api: RawClient, upstream: LoopbackUpstream, stream: bool) -> None:
    """In the history the upstream gets its own calls back, and the answers to them."""
    script(upstream, stream=stream)
    run, weather = made(api, stream=stream)
    echoed = [{**RUN_CALL, "id": run.id}, {**WEATHER_CALL, "id": weather.id}]
    answers = [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in (run, weather)]
    messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": echoed}, *answers]
    assert api.chat(tools=TOOLS, messages=messages).status == 200
    *_, assistant, first, second = upstream.requests[1].json["messages"]
    assert assistant["tool_calls"] == [RUN_CALL, WEATHER_CALL]
    assert [first["tool_call_id"], second["tool_call_id"]] == ["ctc_1", "fc_2"]


def test_the_input_counts_as_output(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Where the upstream counts nothing, names and inputs of custom calls are counted."""
    script(upstream, stream=True, usage={})
    usage = check_stream(api.chat(tools=TOOLS, stream=True).body).usage
    assert abs(usage["completion_tokens"] - count_tokens(f"run{INPUT}get_weather{{}}")) <= 3


def test_the_input_counts_as_prompt(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A long input in the history makes the prompt longer."""
    call = {"id": "a", "type": "custom", "custom": {"name": "run", "input": "é " * 1_100_000}}
    answer = {"role": "tool", "tool_call_id": "a", "content": "done"}
    messages = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}, answer]
    assert api.chat(tools=TOOLS, messages=messages).error(400).startswith("context_length_exceeded: ")
    assert upstream.requests == []


def test_the_sdk_gets_a_custom_call(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """The OpenAI SDK parses a custom call as its own type of call."""
    script(upstream, stream=False)
    tools: list[Any] = TOOLS
    reply = client.chat.completions.create(model="forte", messages=[{"role": "user", "content": "hi"}], tools=tools)
    [call, _] = reply.choices[0].message.tool_calls or []
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("run", INPUT)


def test_a_refused_custom_tool_is_400(api: RawClient, upstream: LoopbackUpstream) -> None:
    """An upstream that does not know custom tools makes a 400, not a 502."""
    upstream.script(Status(400, b'{"error":{"message":"unknown variant `custom`, expected `function`"}}'))
    api.chat(tools=[RUN]).error(400)
