"""A twin of one kind of upstream: it refuses what the real one refuses, and replies in its odd manner.

A Conversation is the reply to every request of one test. What it found wrong with requests is in `problems`.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tests.contract.agent import ANSWER, THINKING, TURNS, Made
from tests.contract.dialects.manners import SIGNATURE, Manner, Said
from tests.contract.dialects.rules import Rule, answered_calls, calls_of, json_arguments
from tests.loopback import Request, Status, Step

KEY = "upstream-key-74"
MODEL = "loopback-large"
HELLO = "Hello there, this is the upstream."
REASONING = "They ask; I think about it."
REQUEST_RULES: tuple[Rule, ...] = (answered_calls, json_arguments)  # of every twin
Turn = tuple[tuple[str, dict[str, Any]], ...]


class Twin(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of upstream."""

    dialect: str
    base_path: str = "/v1"
    path: str = ""  # of the request, if it is not base_path and /chat/completions
    provider_toml: str = ""
    key_header: str = "authorization"
    rules: Sequence[Rule] = ()
    manner: Manner = Manner()
    turns: Sequence[Turn] = TURNS
    wants_reasoning: str | None = None  # the field in which it wants its reasoning back, beside calls

    def problems_of(self, request: Request) -> list[str]:
        path = self.path or f"{self.base_path}/chat/completions"
        key = f"Bearer {KEY}" if self.key_header == "authorization" else KEY
        found = [f"path {request.path}, not {path}"] if request.path != path else []
        if request.headers.get(self.key_header) != key or {"authorization", "api-key"} <= request.headers.keys():
            found.append(f"the key is not in {self.key_header}")
        return found + [problem for rule in (*REQUEST_RULES, *self.rules) for problem in rule(request.json)]


class Conversation:
    """What a twin answers: to a request without tools a text, to one with tools the calls of its turn, then a text."""

    def __init__(self, twin: Twin, *rules: Rule) -> None:
        self.problems: list[str] = []
        self.given_ids: list[str] = []
        self._twin = twin
        self._rules = rules  # further ones
        self._given: list[list[Made]] = []

    def steps(self, request: Request) -> Iterable[Step]:
        asked = request.json
        found = self._twin.problems_of(request)
        found += [problem for rule in self._rules for problem in rule(asked)]
        if asked.get("tools"):
            found += self._problems_of_calls(asked)
        self.problems += found
        if found:
            return Status(400, b'{"error":{"message":"Bad request"}}').steps(request)
        said = self._next(asked)
        reply = self._twin.manner.stream(said, asked) if asked.get("stream") else self._twin.manner.body(said)
        return reply.steps(request)

    def _next(self, asked: Any) -> Said:
        reasoning = REASONING if self._twin.manner.reasoning else ""
        if not asked.get("tools"):
            return Said(HELLO, reasoning)
        if len(self._given) == len(self._twin.turns):
            return Said(ANSWER, reasoning)
        first = len(self.given_ids)
        turn = self._twin.turns[len(self._given)]
        made = [Made(self._twin.manner.new_id(first + place), *call) for place, call in enumerate(turn)]
        self._given.append(made)
        self.given_ids += [call.id for call in made]
        return Said(THINKING if first == 0 else "", reasoning, made)

    def _problems_of_calls(self, asked: Any) -> Iterator[str]:
        """Calls must come back as they were made, and with them what the upstream wants back."""
        rounds, manner = calls_of(asked), self._twin.manner
        if len(rounds) != len(self._given):
            yield f"{len(rounds)} rounds of calls came back, of {len(self._given)}"
        for sent, echoed in zip(self._given, rounds, strict=False):
            wanted = [(made.id, made.name, made.arguments) for made in sent]
            got = [_told(call, has_id=bool(made.id)) for call, made in zip(echoed, sent, strict=False)]
            if got != wanted or len(echoed) != len(sent):
                yield f"calls came back as {echoed}, not as {wanted}"
            if SIGNATURE in str(manner.calls(sent)) and SIGNATURE not in str(echoed[0]):
                yield "the first call of a turn lost its signature"
        callers = [message for message in asked["messages"] if message.get("tool_calls")]
        if (field := self._twin.wants_reasoning) and any(caller.get(field) != REASONING for caller in callers):
            yield f"the reasoning did not come back in {field}"
        if manner.has_details and any(SIGNATURE not in str(caller.get("reasoning_details")) for caller in callers):
            yield "reasoning_details did not come back"


def _told(call: Any, *, has_id: bool) -> tuple[str, str, Any]:
    """The id, name and arguments of a call that came back. If the twin gave no id, any id will do."""
    return call["id"] if has_id else "", call["function"]["name"], json.loads(call["function"]["arguments"])
