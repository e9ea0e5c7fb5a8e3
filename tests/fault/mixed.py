"""The cases of the mixed run: what each request asks, what its upstream does to it, and what it must therefore cost.

A case is made from a seed and its number alone. The upstream keeps its own book of the counts that it has sent.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from cadenza.core.tokens import count_tokens
from tests.fault.books import Row, cost_nano, delivered_cost_nano, usage_cost_nano
from tests.fault.replies import ROLE, STOP, Whole, counts, number_of
from tests.fault.wire import Ask, Seen
from tests.loopback import Close, Cut, Event, Pause, Raw, Reply, Request, Reset, Sse, Status, Step, said
from tests.service import CLASSES

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
MAX_TOKENS_MIN = 60  # more than any reply says; what an upstream says beyond it is another test's
GARBAGE = (b"<html>busy</html>", b'{"choices":', b"", b'{"error": {"code": 503}}', b'{"choices": []}')
ENDINGS: tuple[Event, ...] = (Reset(), Close(), b"data: {\n\n", b'data: {"error": {"message": "no"}}\n\n')


class Case(msgspec.Struct, frozen=True):
    """One request and its fate."""

    ask: Ask
    kind: Kind
    words: Sequence[str]
    usage: dict[str, Any] | None
    at: int  # after how many words it breaks off
    fate: int  # which of the several ways of its kind
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
        usage = counts(prompt_tokens, dice.randint(0, max_tokens or 400), cached_tokens)
    return Case(
        ask=Ask(number, dice.choice(CLASSES), stream=dice.random() < 0.6, max_tokens=max_tokens),
        kind=dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0],
        words=words,
        usage=usage,
        at=dice.randint(0, len(words)),
        fate=dice.randrange(60),
        pause=Pause(),
    )


class Upstream(msgspec.Struct, frozen=True):
    """Does to each request what its case says, and writes down what it was asked and what it counted."""

    cases: dict[int, Case]
    book: dict[int, dict[str, Any]]
    asked: set[int]

    def steps(self, request: Request) -> Iterator[Step]:
        case = self.cases[number_of(request)]
        self.asked.add(case.ask.number)
        for step in reply_of(case).steps(request):
            if case.usage and isinstance(step, bytes) and b'"usage": {' in step:
                self.book[case.ask.number] = case.usage
            yield step


def reply_of(case: Case) -> Reply:
    begun = [ROLE, *map(said, case.words[: case.at])]
    match case.kind:
        case "whole" | "slow":
            return Whole(case.words, case.usage, case.pause if case.kind == "slow" else None)
        case "leaves":
            return Sse([*begun, case.pause, STOP]) if case.ask.stream else Raw([case.pause])
        case "dies":
            cut = Cut(Whole(case.words, case.usage), case.fate * 2, Reset() if case.fate % 2 else Close())
            return Sse([*begun, ENDINGS[case.fate % len(ENDINGS)]], done=False) if case.ask.stream else cut
        case "refused":
            return Status(list(ANSWERED)[case.fate % len(ANSWERED)], b'{"error": {"message": "no"}}')
        case "reset":
            return Raw([Reset()])
        case "garbage":
            return Status(200, GARBAGE[case.fate % len(GARBAGE)])


TURNED_AWAY = (429, 502)


class Flight(msgspec.Struct, frozen=True):
    """A request that was sent, what came of it, and whether its process was killed meanwhile."""

    case: Case
    seen: Seen
    is_killed: bool


def due_nano(flight: Flight, row: Row | None, upstream: Upstream) -> int:
    """What the request must have cost, from what the client saw, what the upstream counted, and nothing else."""
    case, seen, class_id = flight.case, flight.seen, flight.case.ask.class_id
    counted = upstream.book.get(case.ask.number)
    told = row.status if row and flight.is_killed and not seen.raw else seen.status  # what a kill kept from the client
    if told in TURNED_AWAY and case.ask.number not in upstream.asked:  # its route rested after other faults
        return 0
    if row is None:
        has_left = case.kind == "leaves" and not seen.raw
        assert flight.is_killed or has_left, "a request without a hold"
        assert not seen.chunks, "something was delivered without a hold"
        return 0
    if row.is_swept:
        assert flight.is_killed or case.kind == "leaves", "the sweeping of a process that lives"
        assert not seen.is_done, "a reply in full whose charge was not durable"
        assert row.marked_tokens <= count_tokens(seen.text), "a mark of more than was delivered"
        return cost_nano(class_id, row.estimate_tokens, row.marked_tokens) if row.marked_tokens else 0
    if not flight.is_killed:
        check_answer(case, seen)
    if case.is_whole and counted:
        return usage_cost_nano(class_id, counted)
    return delivered_cost_nano(class_id, case.ask.content, case.words if case.is_whole else seen.chunks)


def check_answer(case: Case, seen: Seen) -> None:
    """The client was answered as its case says."""
    match case.kind:
        case "whole" | "slow":
            assert seen.is_done, "not in full"
            assert seen.text == "".join(case.words), "not what was said"
            assert not case.usage or counted_in(seen.usage) == counted_in(case.usage), "not what was counted"
        case "leaves":
            assert seen.text == (case.before_break if case.ask.stream else ""), "not what was said"
        case "dies" if seen.chunks:
            assert not seen.is_done, "looks like a good end"
            assert case.before_break.startswith(seen.text), "not what was said"
        case "refused":
            assert seen.status == ANSWERED[list(ANSWERED)[case.fate % len(ANSWERED)]], "not the right status"
        case _:
            assert seen.status == 502, "not the right status"


def counted_in(usage: dict[str, Any]) -> tuple[int, int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
