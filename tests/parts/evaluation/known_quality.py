"""The answers of an upstream of known quality to the cases of the starter suite, a given share of them right.

A case is recognized by its messages without the system message. Which cases it knows is decided by the seed, exactly
the share of each tag. Everything else it answers as a conforming model does: it counts, stops where it is told to,
calls the tool that it is offered and reports honest token counts.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from cadenza.core.tokens import Tokenizer
from cadenza.parts.evaluation.suite import Case, Suite, load_suite
from tests.loopback import ROLE, Json, Sse, chunk, completion, said, usage_chunk, usage_of

COUNTING = ", ".join(map(str, range(1, 31)))
Key = tuple[tuple[str, str], ...]
tokenizer = Tokenizer()


class WrittenCall(msgspec.Struct, frozen=True):
    """A tool call of a reference."""

    name: str
    arguments: str


class WrittenAnswer(msgspec.Struct, frozen=True):
    """An answer that was written by hand."""

    text: str
    calls: tuple[WrittenCall, ...] = ()


class Reference(msgspec.Struct, frozen=True):
    """For one case of the starter suite: an answer that is right and one that is wrong."""

    id: str
    right: str
    wrong: str
    right_calls: tuple[WrittenCall, ...] = ()
    wrong_calls: tuple[WrittenCall, ...] = ()

    def answer(self, *, is_right: bool) -> WrittenAnswer:
        return WrittenAnswer(self.right, self.right_calls) if is_right else WrittenAnswer(self.wrong, self.wrong_calls)


@cache
def references() -> dict[str, Reference]:
    lines = (Path(__file__).parent / "references.jsonl").read_bytes().splitlines()
    return {one.id: one for one in (msgspec.json.decode(line, type=Reference) for line in lines)}


@cache
def starter() -> Suite:
    return load_suite(None)


@cache
def cases_by_key() -> dict[Key, Case]:
    return {key_of(case.messages): case for case in starter().cases}


def key_of(messages: Iterable[Mapping[str, Any]]) -> Key:
    asked = (message for message in messages if message["role"] not in ("system", "developer"))
    return tuple((message["role"], _text(message.get("content"))) for message in asked)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


def knows(case: Case, quality: float, seed: int) -> bool:
    """Whether a model answers the case rightly: the first cases of the tag, in an order that the seed decides."""

    def place(case_id: str) -> bytes:
        return hashlib.sha256(f"{seed} {case_id}".encode()).digest()

    tag = case.tags[0]
    peers = sorted((one.id for one in starter().cases if one.tags[0] == tag), key=place)
    return peers.index(case.id) < round(quality * len(peers))


def conforming_answer(asked: Mapping[str, Any]) -> WrittenAnswer:
    """To a request that is not a case: a call if it is offered a tool and has no result yet, else it counts."""
    last, choice = asked["messages"][-1], asked.get("tool_choice")
    tools = [tool for tool in asked.get("tools") or () if tool["type"] == "function"]
    if tools and choice != "none" and last["role"] == "user":
        function = tools[0]["function"]
        names = function.get("parameters", {}).get("required", ())
        return WrittenAnswer("", (WrittenCall(function["name"], json.dumps(dict.fromkeys(names, "Oslo"))),))
    return WrittenAnswer("It is 4 degrees." if last["role"] == "tool" else COUNTING)


def written(answer: WrittenAnswer, asked: Mapping[str, Any]) -> Json | Sse:
    """The reply on the wire, cut at `stop` and at `max_tokens`, with counts that match its text."""
    text, finish = answer.text, "tool_calls" if answer.calls else "stop"
    stops = asked.get("stop") or ()
    for stop in [stops] if isinstance(stops, str) else stops:
        text = text.partition(stop)[0]
    limit = asked.get("max_tokens") or asked.get("max_completion_tokens")
    words = [piece for piece in text.replace(" ", "\0 ").split("\0") if piece]
    while limit and words and tokenizer.count("".join(words)) > limit:
        words.pop()
        finish = "length"
    text = "".join(words)
    prompt = tokenizer.count(json.dumps([asked["messages"], asked.get("tools")], ensure_ascii=False))
    said_tokens = tokenizer.count(text) + sum(10 + tokenizer.count(call.arguments) for call in answer.calls)
    usage = usage_of(prompt, max(said_tokens, 1))
    calls = [
        {"id": f"call_{place}", "type": "function", "function": msgspec.to_builtins(call)}
        for place, call in enumerate(answer.calls)
    ]
    if not asked.get("stream"):
        value = completion(text or (None if calls else ""), finish, usage=usage)
        value["choices"][0]["message"] |= {"tool_calls": calls} if calls else {}
        return Json(value)
    deltas = [chunk({"tool_calls": [{"index": place, **call}]}) for place, call in enumerate(calls)]
    counted = [usage_chunk(usage)] if (asked.get("stream_options") or {}).get("include_usage") else []
    return Sse([ROLE, *map(said, words), *deltas, chunk(finish=finish), *counted])
