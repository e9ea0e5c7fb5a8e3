"""An agent with two tools: its question, its tools, the calls that the model makes, and a client that runs them."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import openai
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessage

QUESTION = "Which is warmer, Oslo or Rome, and what do 2 and 3 make?"
ASKED: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
THINKING = "Let me look."
ANSWER = "Rome is warmer than Oslo by 20 degrees, and 2 and 3 make 5."
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The temperature of a city in degrees.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALCULATE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": None,
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"op": {"enum": ["add", "subtract"]}, "a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["op", "a", "b"],
            "additionalProperties": False,
        },
    },
}
TOOLS: list[Any] = [WEATHER, CALCULATE]
DEGREES = {"Oslo": 4, "Rome": 24}


class Made(msgspec.Struct, frozen=True):
    """A call that the model makes, with the upstream's own id."""

    id: str
    name: str
    arguments: dict[str, Any]

    @property
    def text(self) -> str:
        return json.dumps(self.arguments, ensure_ascii=False)


TURNS: tuple[tuple[tuple[str, dict[str, Any]], ...], ...] = (
    (
        ("get_weather", {"city": "Oslo"}),
        ("get_weather", {"city": "Rome"}),
        ("calculate", {"op": "add", "a": 2, "b": 3}),
    ),
    (("calculate", {"op": "subtract", "a": 24, "b": 4}), ("get_weather", {"city": 'Nowhere \\ "{é}"'})),
)


def run_tool(name: str, arguments: str) -> str:
    """The result of the client's own function."""
    given = json.loads(arguments)
    if name == "get_weather":
        return str(DEGREES.get(given["city"], f"There is no city {given['city']}."))
    return str(given["a"] + given["b"] if given["op"] == "add" else given["a"] - given["b"])


Turn = Callable[[openai.OpenAI, list[Any]], dict[str, Any]]


def whole_turn(client: openai.OpenAI, messages: list[Any]) -> dict[str, Any]:
    """The assistant's message of a plain reply, as clients send it back: with its nulls."""
    message = client.chat.completions.create(model="forte", messages=messages, tools=TOOLS).choices[0].message
    assert isinstance(message, ChatCompletionMessage)
    dumped: dict[str, Any] = message.model_dump()
    return dumped


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


def calls_made(messages: list[Any]) -> list[list[tuple[str, Any]]]:
    """Names and arguments of the calls, turn by turn."""
    return [
        [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
        for message in messages
        if message.get("tool_calls")
    ]


def _called(call: Any) -> dict[str, str]:
    assert call["type"] == "function"
    return {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
