"""An upstream that calls tools over three turns, in the dialect of one kind of server, and checks what it gets back.

Its calls have ids of its own form. It answers 400 to a conversation that does not repeat them: ids, names and arguments
as it sent them, one result for each call. The mistakes that it found are in `problems`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tests.loopback import Json, Request, Sse, Status, Step, chunk, completion, usage_chunk

QUESTION = "Which is warmer, Oslo or Rome, and what do 2 and 3 make?"
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


class Dialect(msgspec.Struct, frozen=True):
    """How one kind of server encodes calls: its ids, deltas, message and finish reason."""

    new_id: Callable[[int], str]
    deltas: Callable[[Sequence[Made]], list[dict[str, Any]]]
    message_calls: Callable[[Sequence[Made]], list[dict[str, Any]]]
    finish: str = "tool_calls"
    thinks: bool = True


def run_tool(name: str, arguments: str) -> str:
    """The result of the client's own function."""
    given = json.loads(arguments)
    if name == "get_weather":
        return str(DEGREES.get(given["city"], f"There is no city {given['city']}."))
    return str(given["a"] + given["b"] if given["op"] == "add" else given["a"] - given["b"])


class ToolUpstream:
    """The reply to every request of one conversation. Use one for each conversation."""

    def __init__(self, dialect: Dialect) -> None:
        self.problems: list[str] = []
        self.given_ids: list[str] = []
        self._dialect = dialect
        self._given: list[list[Made]] = []

    def steps(self, request: Request) -> Iterable[Step]:
        asked = request.json
        rounds = [message["tool_calls"] for message in asked["messages"] if message.get("tool_calls")]
        found = list(self._find_problems(asked, rounds))
        if found:
            self.problems += found
            return Status(400, b'{"error":{"message":"upstream-id-71"}}').steps(request)
        if len(rounds) == len(TURNS):
            return _say(ANSWER, is_stream=asked.get("stream", False)).steps(request)
        return self._call(TURNS[len(rounds)], is_stream=asked.get("stream", False)).steps(request)

    def _find_problems(self, asked: Any, rounds: list[Any]) -> Iterator[str]:
        if asked.get("tools") != TOOLS:
            yield "the tools are not those that the client sent"
        if len(rounds) != len(self._given):
            yield f"{len(rounds)} rounds of calls came back, of {len(self._given)}"
        for sent, echoed in zip(self._given, rounds, strict=False):
            wanted = [(made.id, made.name, made.text) for made in sent]
            got = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in echoed]
            if got != wanted:
                yield f"calls came back as {got}, not as {wanted}"
        answered = [message["tool_call_id"] for message in asked["messages"] if message["role"] == "tool"]
        if sorted(answered) != sorted(self.given_ids):
            yield f"answers to {answered}, not to {self.given_ids}"

    def _call(self, turn: Sequence[tuple[str, dict[str, Any]]], *, is_stream: bool) -> Sse | Json:
        first = len(self.given_ids)
        made = [Made(self._dialect.new_id(first + place), *call) for place, call in enumerate(turn)]
        self._given.append(made)
        self.given_ids += [call.id for call in made]
        text = THINKING if self._dialect.thinks and first == 0 else None
        if is_stream:
            said = [chunk({"role": "assistant", "content": text})]
            deltas = [chunk(delta) for delta in self._dialect.deltas(made)]
            return Sse([*said, *deltas, chunk(finish=self._dialect.finish), usage_chunk()])
        reply = completion(text, self._dialect.finish)
        reply["choices"][0]["message"]["tool_calls"] = self._dialect.message_calls(made)
        return Json(reply)


def _say(text: str, *, is_stream: bool) -> Sse | Json:
    if not is_stream:
        return Json(completion(text))
    return Sse([chunk({"role": "assistant", "content": text}), chunk(finish="stop"), usage_chunk()])


def _in_fragments(made: Sequence[Made]) -> list[dict[str, Any]]:
    """As OpenAI and llama.cpp: id and name, then arguments a few characters at a time, call after call."""
    deltas = []
    for index, call in enumerate(made):
        first = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        pieces = [call.text[start : start + 5] for start in range(0, len(call.text), 5)]
        deltas += [first, *({"index": index, "function": {"arguments": piece}} for piece in pieces)]
    return [{"tool_calls": [delta]} for delta in deltas]


def _named_in_fragments(made: Sequence[Made]) -> list[dict[str, Any]]:
    """As vLLM with a named tool: id, type and name on every delta of a call."""
    deltas = []
    for index, call in enumerate(made):
        for start in range(0, len(call.text), 9):
            function = {"name": call.name, "arguments": call.text[start : start + 9]}
            deltas.append({"index": index, "id": call.id, "type": "function", "function": function})
    return [{"tool_calls": [delta]} for delta in deltas]


def _each_whole_at_0(made: Sequence[Made]) -> list[dict[str, Any]]:
    """As Ollama: one chunk for each call, all of them labelled 0."""
    return [{"role": "assistant", "content": "", "tool_calls": [_whole(call) | {"index": 0}]} for call in made]


def _all_whole_at_once(made: Sequence[Made]) -> list[dict[str, Any]]:
    """As Mistral: all calls in one chunk."""
    return [{"tool_calls": [_whole(call) | {"index": index} for index, call in enumerate(made)]}]


def _whole(call: Made) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}


def _wholes(made: Sequence[Made]) -> list[dict[str, Any]]:
    return [_whole(call) for call in made]


def _wholes_at_0(made: Sequence[Made]) -> list[dict[str, Any]]:
    return [_whole(call) | {"index": 0} for call in made]


DIALECTS = {
    "openai": Dialect(lambda n: f"call_Up{n:022d}", _in_fragments, _wholes),
    "vllm": Dialect(lambda n: f"chatcmpl-tool-{n:032x}", _named_in_fragments, _wholes),
    "ollama": Dialect(lambda n: f"call_up{n:06d}", _each_whole_at_0, _wholes_at_0, finish="stop"),
    "llama.cpp": Dialect(lambda n: f"UpLlama{n:025d}", _in_fragments, _wholes),
    "mistral": Dialect(lambda n: f"Mx{n:07d}", _all_whole_at_once, _wholes, thinks=False),
}
