"""An agent with two tools runs three turns with parallel calls, on upstreams that check their own ids."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessage

from tests.contract.tool_upstream import ANSWER, DIALECTS, QUESTION, TOOLS, TURNS, ToolUpstream, run_tool
from tests.loopback import LoopbackUpstream
from tests.raw_client import Reply
from tests.schemas import check_completion, check_stream, completed_calls
from tests.service_config import CHARACTER

Turn = Callable[[openai.OpenAI, list[Any]], dict[str, Any]]
ASKED: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]


def whole_turn(client: openai.OpenAI, messages: list[Any]) -> dict[str, Any]:
    """The assistant's message of a plain reply, as clients send it back: with its nulls."""
    message = client.chat.completions.create(model="forte", messages=messages, tools=TOOLS).choices[0].message
    assert isinstance(message, ChatCompletionMessage)
    dumped: dict[str, Any] = message.model_dump()
    return dumped


def streamed_turn(client: openai.OpenAI, messages: list[Any]) -> dict[str, Any]:
    """The assistant's message, assembled from the deltas of a stream."""
    with client.chat.completions.create(model="forte", messages=messages, tools=TOOLS, stream=True) as stream:
        return put_together(stream)


def helper_turn(client: openai.OpenAI, messages: list[Any]) -> dict[str, Any]:
    """The assistant's message as the SDK's streaming helper assembles it, with parsed arguments."""
    with client.chat.completions.stream(model="forte", messages=messages, tools=TOOLS) as stream:
        events = list(stream)
        message = stream.get_final_completion().choices[0].message
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.index for event in done] == list(range(len(message.tool_calls or [])))
    for call in message.tool_calls or []:
        assert call.function.parsed_arguments == json.loads(call.function.arguments)
    dumped: dict[str, Any] = message.model_dump(exclude={"parsed"})
    return dumped


def put_together(chunks: Iterable[ChatCompletionChunk]) -> dict[str, Any]:
    content, calls = "", list[dict[str, Any]]()
    for delta in (choice.delta for part in chunks for choice in part.choices):
        content += delta.content or ""
        for told in delta.tool_calls or []:
            if told.index == len(calls):
                calls.append(told.model_dump(exclude={"index"}))
            else:
                assert told.function is not None
                calls[told.index]["function"]["arguments"] += told.function.arguments or ""
    return {"role": "assistant", "content": content or None, **({"tool_calls": calls} if calls else {})}


TURN_FORMS: dict[str, Turn] = {"whole": whole_turn, "stream": streamed_turn, "helper": helper_turn}


def run_agent(client: openai.OpenAI, turn: Turn) -> list[Any]:
    """The whole conversation, up to the answer without calls."""
    messages = list(ASKED)
    for _ in range(len(TURNS) + 1):
        message = turn(client, messages)
        messages.append(message)
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": run_tool(**_called(call))}
            for call in message.get("tool_calls") or []
        ]
        messages += reversed(results)  # in any order
        if not results:
            return messages
    raise AssertionError("the model never stopped calling")


def _called(call: Any) -> dict[str, str]:
    assert call["type"] == "function"
    return {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}


def check_conversation(messages: list[Any], model: ToolUpstream) -> None:
    assert model.problems == []
    assert messages[-1]["content"] == ANSWER
    rounds = [message["tool_calls"] for message in messages if message.get("tool_calls")]
    made = [
        [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls] for calls in rounds
    ]
    assert made == [list(turn) for turn in TURNS]
    ids = [call["id"] for calls in rounds for call in calls]
    assert len(set(ids)) == len(ids)
    assert not set(ids) & set(model.given_ids)


@pytest.mark.parametrize("form", TURN_FORMS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_agent_loop(client: openai.OpenAI, upstream: LoopbackUpstream, dialect: str, form: str) -> None:
    """Three turns with parallel calls reach their answer, and the upstream gets its own ids back in every turn."""
    model = ToolUpstream(DIALECTS[dialect])
    upstream.always(model)
    try:
        messages = run_agent(client, TURN_FORMS[form])
    except openai.BadRequestError as refused:
        raise AssertionError(model.problems) from refused
    check_conversation(messages, model)
    assert [request.json["messages"][0]["content"] for request in upstream.requests] == [
        f"{CHARACTER}\n\nBe brief."
    ] * 3


def told(reply: Reply, *, stream: bool) -> list[tuple[str, Any]]:
    """The calls of a correct reply."""
    assert reply.status == 200, reply.body
    if stream:
        calls = check_stream(reply.body).calls
    else:
        check_completion(reply.json)
        calls = completed_calls(reply.json)
    return [(call.name, json.loads(call.arguments)) for call in calls]
