"""An agent with two tools, as a client of the OpenAI SDK: it calls them until it has its answer."""

import json
from collections.abc import Callable
from typing import Any

import openai
from openai.types.chat import ChatCompletionMessage

from tests.contract.tool_upstream import QUESTION, TOOLS, TURNS, run_tool

Turn = Callable[[openai.OpenAI, list[Any]], dict[str, Any]]
ASKED: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]


def whole_turn(client: openai.OpenAI, messages: list[Any]) -> dict[str, Any]:
    """The assistant's message of a plain reply, as clients send it back: with its nulls."""
    message = client.chat.completions.create(model="forte", messages=messages, tools=TOOLS).choices[0].message
    assert isinstance(message, ChatCompletionMessage)
    dumped: dict[str, Any] = message.model_dump()
    return dumped


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
