"""The cases of the mixed run: what each request asks, what the upstream does with it, and what it must cost.

A case depends only on the seed and its number. The upstream records the usage that it has sent.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from tests.ledger_reader import Row, cost_nano, delivered_cost_nano, left_cost_nano, usage_cost_nano
from tests.loopback import (
    ROLE,
    STOP,
    Close,
    Cut,
    Event,
    Pause,
    Raw,
    Request,
    Reset,
    Sse,
    Status,
    Step,
    Whole,
    request_number,
    said,
    usage_of,
)
from tests.loopback import Reply as ScriptedReply
from tests.raw_client import ChatRequest, Reply
from tests.service_config import CLASSES
from tests.tokens import count_tokens

Kind = Literal["whole", "slow", "leaves", "dies", "refused", "reset", "garbage"]
WEIGHTS: dict[Kind, int] = {"whole": 58, "slow": 4, "leaves": 12, "dies": 12, "refused": 8, "reset": 3, "garbage": 3}
WORDS = (
    " time",
    " and",
    " tide",
    " wait",
    " for",
    " no",
    " one",
    " 火花",
    " Übermut",
    " naïve",
    " 42",
    " counterpoint",
)
ANSWERED = {400: 400, 413: 400, 429: 429, 500: 502, 503: 502}
MAX_TOKENS_MIN = 60  # more than any reply has
GARBAGE = (b"<html>busy</html>", b'{"choices":', b"", b'{"error": {"code": 503}}', b'{"choices": []}')
ENDINGS: tuple[Event, ...] = (Reset(), Close(), b"data: {\n\n", b'data: {"error": {"message": "no"}}\n\n')


class Case(msgspec.Struct, frozen=True):
    """One request and what happens to it."""

    request: ChatRequest
    kind: Kind
    words: Sequence[str]
    usage: dict[str, Any] | None
    at: int  # the number of words after which it breaks off
    variant: int  # selects among the variants of the kind
    pause: Pause

    @property
    def is_whole(self) -> bool:
        return self.kind in {"whole", "slow"}

    @property
    def before_break(self) -> str:
        return "".join(self.words[: self.at])


def make_case(seed: int, number: int) -> Case:
    dice = random.Random(f"{seed}-{number}")
    max_tokens = dice.choice([None, dice.randint(MAX_TOKENS_MIN, 300)])
    words = [dice.choice(WORDS) for _ in range(dice.randint(1, 12))]
    usage = None
    if dice.random() < 0.75:
        prompt_tokens = dice.randint(0, 900)
        cached_tokens = dice.choice([0, dice.randint(0, prompt_tokens)])
        usage = usage_of(prompt_tokens, dice.randint(0, max_tokens or 400), cached_tokens)
    return Case(
        request=ChatRequest(number, dice.choice(CLASSES), stream=dice.random() < 0.6, max_tokens=max_tokens),
        kind=dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0],
        words=words,
        usage=usage,
        at=dice.randint(0, len(words)),
        variant=dice.randrange(60),
        pause=Pause(),
    )


class Upstream(msgspec.Struct, frozen=True):
    """Answers each request as its case says, and records the requests and the usage that it sent."""

    cases: dict[int, Case]
    counted: dict[int, dict[str, Any]]
    asked: set[int]

    def steps(self, request: Request) -> Iterator[Step]:
        case = self.cases[request_number(request)]
        self.asked.add(case.request.number)
        for step in reply_of(case).steps(request):
            if case.usage and isinstance(step, bytes) and b'"usage": {' in step:
                self.counted[case.request.number] = case.usage
            yield step


def reply_of(case: Case) -> ScriptedReply:
    begun = [ROLE, *map(said, case.words[: case.at])]
    match case.kind:
        case "whole" | "slow":
            return Whole(case.words, case.usage, case.pause if case.kind == "slow" else None)
        case "leaves":
            return Sse([*begun, case.pause, STOP]) if case.request.stream else Raw([case.pause])
        case "dies":
            cut = Cut(Whole(case.words, case.usage), case.variant * 2, Reset() if case.variant % 2 else Close())
            return Sse([*begun, ENDINGS[case.variant % len(ENDINGS)]], done=False) if case.request.stream else cut
        case "refused":
            return Status(list(ANSWERED)[case.variant % len(ANSWERED)], b'{"error": {"message": "no"}}')
        case "reset":
            return Raw([Reset()])
        case "garbage":
            return Status(200, GARBAGE[case.variant % len(GARBAGE)])


TURNED_AWAY = (429, 502)


class SentCase(msgspec.Struct, frozen=True):
    """A request that was sent, its reply, and whether its process was killed in the meantime."""

    case: Case
    reply: Reply
    is_killed: bool
    side: int = 0
    ended_s: float = 0.0


def expected_cost_nano(sent: SentCase, row: Row | None, upstream: Upstream, *, may_be_lost: bool = False) -> int:
    """What the request must have cost, computed only from what the client saw and what the upstream counted.

    It may be lost if its process was killed right after its client left.
    """
    case, reply, class_id = sent.case, sent.reply, sent.case.request.class_id
    counted = upstream.counted.get(case.request.number)
    told = row.status if row and sent.is_killed and not reply.raw else reply.status  # a kill kept it from the client
    if told in TURNED_AWAY and case.request.number not in upstream.asked:  # its route was resting after other faults
        return 0
    if row is None:
        has_left = case.kind == "leaves" and (may_be_lost or not reply.raw)
        assert sent.is_killed or has_left, "a request that did not end in the ledger"
        assert not reply.is_done, "a complete reply without a durable charge"
        return 0
    if row.is_swept:
        assert sent.is_killed or case.kind == "leaves", "a request of a living process was swept"
        assert not reply.is_done, "a complete reply without a durable charge"
        assert row.completion_tokens <= count_tokens(reply.text), "more tokens are marked than were delivered"
        return cost_nano(class_id, row.prompt_tokens, row.completion_tokens)
    if not sent.is_killed:
        check_answer(case, reply)
    if case.kind == "leaves" and (case.request.number in upstream.asked or row.state == "settled"):
        return left_cost_nano(class_id, case.request.content, reply.chunks)
    if case.is_whole and counted:
        return usage_cost_nano(class_id, counted)
    return delivered_cost_nano(class_id, case.request.content, case.words if case.is_whole else reply.chunks)


def check_answer(case: Case, reply: Reply) -> None:
    """The client got the reply that its case says."""
    match case.kind:
        case "whole" | "slow":
            assert reply.is_done, "not complete"
            assert reply.text == "".join(case.words), "another text"
            assert not case.usage or counted_in(reply.usage) == counted_in(case.usage), "another usage"
        case "leaves":
            assert reply.text == (case.before_break if case.request.stream else ""), "another text"
        case "dies" if reply.chunks:
            assert not reply.is_done, "looks complete"
            assert case.before_break.startswith(reply.text), "another text"
        case "refused":
            assert reply.status == ANSWERED[list(ANSWERED)[case.variant % len(ANSWERED)]], "another status"
        case _:
            assert reply.status == 502, "another status"


def counted_in(usage: dict[str, Any]) -> tuple[int, int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
