"""With every kind of upstream: plain and streamed replies, odd requests, and tool calls over three turns."""

import json
from typing import Any

import pytest

from cadenza.upstreams.dialects import DIALECTS
from tests.account import open_account
from tests.contract.agent import ANSWER, ASKED, TOOLS, TURN_FORMS, calls_made, run_agent
from tests.contract.dialects.manners import CACHED_TOKENS, COMPLETION_TOKENS, PROMPT_TOKENS
from tests.contract.dialects.stage import Stage
from tests.contract.dialects.twin import HELLO, REASONING
from tests.ledger_reader import cost_nano
from tests.loopback import UPSTREAM_MARKS
from tests.raw_client import Reply
from tests.schemas import check_completion, check_stream, completed_calls

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


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", pytest.param("/v1/responses", marks=pytest.mark.parts(reason="protocols"))]
)
def test_fields_that_few_take(spoken: Stage, path: str) -> None:
    """They are sent to an upstream that takes them, and named for any other; the key of a cache is not the client's."""
    names = {"verbosity", "prompt_cache_key", "service_tier"}
    sent = {"prompt_cache_key": "session-of-ada", "service_tier": "priority"}
    message = [{"role": "user", "content": "hi"}]
    chat: dict[str, Any] = {"messages": message, "verbosity": "low", **sent}
    response: dict[str, Any] = {"input": message, "text": {"verbosity": "low"}, **sent}
    body = response if path == "/v1/responses" else chat
    with spoken.conversation():
        reply = spoken.api.request("POST", path, json.dumps(body).encode())
    taken, asked = DIALECTS[spoken.twin.dialect].takes, spoken.upstream.requests[0].json
    assert {*reply.headers["x-cadenza-ignored"].split(", ")} == names - {*taken}
    assert {name for name in names if name in asked} == {*taken}
    assert b"session-of-ada" not in spoken.upstream.requests[0].body
    assert asked.get("verbosity") == ("low" if "verbosity" in taken else None)


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


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_normalised(spoken: Stage, stream: bool) -> None:
    """Each chunk and each reply with calls matches its schema and has nothing of the upstream's own."""
    with spoken.conversation() as conversation:
        reply = spoken.api.chat(messages=ASKED, tools=TOOLS, stream=stream)
    assert reply.status == 200, reply.body
    calls = check_stream(reply.body).calls if stream else completed_calls(reply.json)
    assert [(call.name, json.loads(call.arguments)) for call in calls] == list(spoken.twin.turns[0])
    given_ids = [given for given in conversation.given_ids if len(given) > 1]
    assert not [mark for mark in (*UPSTREAM_MARKS, *given_ids) if mark.encode() in reply.body]


@pytest.mark.parametrize("form", TURN_FORMS)
def test_three_turns_with_tools(spoken: Stage, form: str) -> None:
    """Three turns with parallel calls reach their answer; ids, calls and reasoning go back as the upstream wants."""
    with spoken.conversation() as conversation, spoken.client() as client:
        messages = run_agent(client, TURN_FORMS[form])
    assert messages[-1]["content"] == ANSWER
    assert calls_made(messages) == [list(turn) for turn in spoken.twin.turns]
    ids = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    assert len(set(ids)) == len(ids)
    assert not set(ids) & set(conversation.given_ids)
