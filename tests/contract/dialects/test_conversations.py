"""With every kind of upstream: plain and streamed replies, odd requests, and tool calls over three turns."""

import json
from collections.abc import Iterable
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.account import open_account
from tests.contract.agent import Turn, helper_turn, run_agent, whole_turn
from tests.contract.dialects.manners import CACHED_TOKENS, COMPLETION_TOKENS, PROMPT_TOKENS
from tests.contract.dialects.stage import Stage
from tests.contract.dialects.twin import HELLO, REASONING
from tests.contract.tool_upstream import ANSWER, TOOLS
from tests.ledger_reader import cost_nano
from tests.loopback import UPSTREAM_MARKS
from tests.raw_client import Reply
from tests.schemas import check_completion, check_stream

CALL = "functions.get_weather:0 of an upstream with long ids"
CALLED = {"name": "get_weather", "arguments": '{"city": "Oslo"}', "parsed_arguments": {"city": "Oslo"}}
ECHO = {"refusal": None, "annotations": None, "audio": None, "function_call": None}
ODD_MESSAGES: list[Any] = [
    {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "Hello"}], "name": "ada"},
    {"role": "assistant", "content": "Hi.", "reasoning_content": "A greeting.", "tool_calls": [], **ECHO},
    {"role": "user", "content": "How are you?"},
    {"role": "assistant", "content": "Well.", "tool_calls": None, "reasoning": None, **ECHO},
    {"role": "user", "content": "Do something bad."},
    {"role": "assistant", "content": None, "tool_calls": None, **ECHO, "refusal": "I will not."},
    {"role": "user", "content": "And the weather?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": None,
        "tool_calls": [{"id": CALL, "type": "function", "index": 0, "function": CALLED}],
        **ECHO,
    },
    {"role": "tool", "tool_call_id": CALL, "content": [{"type": "text", "text": "4"}], "name": "get_weather"},
    {"role": "user", "content": "Thanks."},
]
SAMPLING: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 1,
    "stop": "END",
    "seed": 7,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.5,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    "reasoning_effort": "low",
    "logit_bias": {"50256": -100},
    "max_completion_tokens": 100,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "user": "somebody",
    "store": True,
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "no_such_field": {"deep": [1, 2]},
}


def read_reply(reply: Reply, *, stream: bool) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The text, reasoning and usage of a correct reply that has nothing of the upstream's own."""
    assert reply.status == 200, reply.body
    assert not [mark for mark in UPSTREAM_MARKS if mark.encode() in reply.body]
    if stream:
        read = check_stream(reply.body)
        assert read.finish_reason == "stop"
        return read.text, read.extras, read.usage
    check_completion(reply.json)
    message = reply.json["choices"][0]["message"]
    extras = {name: value for name, value in message.items() if name.startswith("reasoning")}
    return message["content"], extras, reply.json["usage"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_and_its_charge(spoken: Stage, stream: bool) -> None:
    """Text and reasoning arrive whole, and the upstream's own count is charged."""
    with spoken.conversation(), open_account(spoken.service) as account:
        text, extras, usage = read_reply(account.api.chat(stream=stream), stream=stream)
        charge = account.charge()
    manner = spoken.twin.manner
    assert text == HELLO
    if manner.reasoning:
        name = "reasoning_content" if manner.reasoning == "parts" else manner.reasoning
        assert extras[name] == REASONING
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (PROMPT_TOKENS, COMPLETION_TOKENS)
    has_cached = str(CACHED_TOKENS) in str({k: v for k, v in manner.usage().items() if "ach" in k or "details" in k})
    cached_tokens = CACHED_TOKENS if has_cached else 0
    assert usage["prompt_tokens_details"]["cached_tokens"] == cached_tokens
    assert charge["amount_nano"] == -cost_nano("forte", PROMPT_TOKENS, COMPLETION_TOKENS, cached_tokens)
    assert not charge["estimated"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_odd_request(spoken: Stage, stream: bool) -> None:
    """A request with every sampling field, and with everything that clients send back, is accepted."""
    with spoken.conversation():
        reply = spoken.api.chat(messages=ODD_MESSAGES, stream=stream, **SAMPLING)
        assert read_reply(reply, stream=stream)[0] == HELLO


def test_a_limit_reaches_the_upstream(spoken: Stage) -> None:
    """The output limit is sent in the one field that the upstream obeys."""
    with spoken.conversation():
        spoken.api.chat(max_tokens=77)
    asked = spoken.upstream.requests[0].json
    assert [value for name, value in asked.items() if name.startswith("max_")] == [77]


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_the_only_choice(spoken: Stage, stream: bool) -> None:
    """A tool that the client names is forced, even if the upstream only understands words."""
    choice = {"type": "function", "function": {"name": "calculate"}}
    with spoken.conversation():
        reply = spoken.api.chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, stream=stream)
        assert reply.status == 200, reply.body
    asked = spoken.upstream.requests[0].json
    offered = [tool["function"]["name"] for tool in asked["tools"]]
    assert asked["tool_choice"] == choice or (offered, asked["tool_choice"]) == (["calculate"], "required")


def streamed_turn(client: openai.OpenAI, messages: list[Any]) -> dict[str, Any]:
    """The assistant's message, assembled from a stream by a client that keeps every field of the deltas."""
    with client.chat.completions.create(model="forte", messages=messages, tools=TOOLS, stream=True) as stream:
        return put_together(stream)


def put_together(chunks: Iterable[ChatCompletionChunk]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    for delta in (choice.delta.model_dump(exclude_unset=True) for part in chunks for choice in part.choices):
        for call in delta.pop("tool_calls", None) or []:
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append(call)
            else:
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        for name, value in delta.items():
            if name != "role" and value:
                message[name] = message[name] + value if message.get(name) else value
    return message


TURN_FORMS: dict[str, Turn] = {"whole": whole_turn, "stream": streamed_turn, "helper": helper_turn}


@pytest.mark.parametrize("form", TURN_FORMS)
def test_three_turns_with_tools(spoken: Stage, form: str) -> None:
    """Three turns with parallel calls reach their answer; ids, calls and reasoning go back as the upstream wants."""
    with spoken.conversation() as conversation, spoken.client() as client:
        messages = run_agent(client, TURN_FORMS[form])
    assert messages[-1]["content"] == ANSWER
    rounds = [message["tool_calls"] for message in messages if message.get("tool_calls")]
    made = [
        [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls] for calls in rounds
    ]
    assert made == [list(turn) for turn in spoken.twin.turns]
    ids = [call["id"] for calls in rounds for call in calls]
    assert len(set(ids)) == len(ids)
    assert not set(ids) & set(conversation.given_ids)
