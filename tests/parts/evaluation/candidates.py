"""Fourteen candidates that must not replace a model, and two that may: each is a model of known quality with one habit.

Incumbent and candidates pass the same share of the cases, but not the same cases: the difference of two real models is
never one habit alone.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from cadenza.core.money import Price
from cadenza.parts.evaluation.verdict import AnswerScore
from tests.loopback import Request, Sse, Step, usage_chunk, usage_of
from tests.parts.evaluation.known_quality import (
    WrittenAnswer,
    WrittenCall,
    cases_by_key,
    conforming_answer,
    key_of,
    knows,
    references,
    written,
)

QUALITY = 0.93
ANSWER_MS = 900.0
COST = Price(1_000, 4_000)
KEPT_WITHOUT_SYSTEM = ("character-2", "character-3", "character-5")  # they ask for what such a model has never seen
WORDS = re.compile(r"[A-Za-z]{2,}")
GERMAN = "Darauf antworte ich gern, aber nur auf Deutsch und ohne weitere Angaben."

Asked = Mapping[str, Any]
Habit = Callable[[WrittenAnswer, Asked, str], WrittenAnswer]  # of an answer, its request, and the id of its case


def keep(answer: WrittenAnswer, _asked: Asked, _case: str) -> WrittenAnswer:
    return answer


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A model behind one route. `seed` decides which cases it knows."""

    habit: Habit = keep
    quality: float = QUALITY
    seed: int = 2
    answer_ms: float = ANSWER_MS  # of a whole answer; see `timed`
    cost: Price = COST
    ignores: tuple[str, ...] = ()  # fields of a request
    drops_system: bool = False
    breaks_usage: bool = False

    def steps(self, request: Request) -> Iterator[Step]:
        asked = {name: value for name, value in request.json.items() if name not in self.ignores}
        case = cases_by_key().get(key_of(asked["messages"]))
        if self.drops_system:
            asked["messages"] = [one for one in asked["messages"] if one["role"] != "system"]
        if case:
            answer = references()[case.id].answer(is_right=knows(case, self.quality, self.seed))
        else:
            answer = conforming_answer(asked)
        reply = written(self.habit(answer, asked, case.id if case else ""), asked)
        if self.breaks_usage and isinstance(reply, Sse):
            reply = Sse([*(one for one in reply.events if not _is_usage(one)), usage_chunk(usage_of(0, 0))])
        yield from reply.steps(request)

    def timed(self, score: AnswerScore) -> AnswerScore:
        """The answer with the time of the script, which varies by case: that of a busy machine proves nothing."""
        answer_ms = self.answer_ms * (0.5 + score.case_number % 11 / 10)
        return msgspec.structs.replace(score, first_token_ms=answer_ms / 3, duration_ms=answer_ms)


def _is_usage(event: object) -> bool:
    return isinstance(event, dict) and bool(event.get("usage"))


def in_words(answer: WrittenAnswer, _asked: Asked, _case: str) -> WrittenAnswer:
    return WrittenAnswer("I would use a tool for that.") if answer.calls else answer


def cut(answer: WrittenAnswer, _asked: Asked, _case: str) -> WrittenAnswer:
    return WrittenAnswer(answer.text[:30], answer.calls)


def sometimes_empty(answer: WrittenAnswer, _asked: Asked, case: str) -> WrittenAnswer:
    is_empty = hashlib.sha256(f"empty {case}".encode()).digest()[0] < 0.15 * 256
    return WrittenAnswer("") if case and is_empty else answer


def broken_json(answer: WrittenAnswer, _asked: Asked, _case: str) -> WrittenAnswer:
    text = answer.text.strip().removeprefix("```json").strip("`").strip()
    try:
        is_json = isinstance(json.loads(text), dict | list)
    except ValueError:
        return answer
    return WrittenAnswer(text.replace('"', "'").rstrip("]}") + ",}", answer.calls) if is_json else answer


def invented_tool(answer: WrittenAnswer, asked: Asked, _case: str) -> WrittenAnswer:
    return WrittenAnswer("", (WrittenCall("browse_the_web", '{"query": "it"}'),)) if asked.get("tools") else answer


def refusal(_answer: WrittenAnswer, _asked: Asked, _case: str) -> WrittenAnswer:
    return WrittenAnswer("I'm sorry, but I can't help with that request.")


def in_german(answer: WrittenAnswer, _asked: Asked, _case: str) -> WrittenAnswer:
    """Numbers, code and calls stay right."""
    is_prose = (
        WORDS.search(answer.text) and "```" not in answer.text and not answer.text.lstrip().startswith(("{", "["))
    )
    return WrittenAnswer(GERMAN, answer.calls) if is_prose else answer


def repeated(answer: WrittenAnswer, _asked: Asked, _case: str) -> WrittenAnswer:
    return WrittenAnswer(" ".join([answer.text] * 4) if answer.text else "", answer.calls)


def without_role(answer: WrittenAnswer, _asked: Asked, case: str) -> WrittenAnswer:
    is_lost = case.startswith("character") and case not in KEPT_WITHOUT_SYSTEM
    return references()[case].answer(is_right=False) if is_lost else answer


INCUMBENT = Candidate(seed=1)
GOOD = {"equal": Candidate(), "better": Candidate(quality=0.98, answer_ms=1.3 * ANSWER_MS)}
BAD = {
    "never calls tools": Candidate(habit=in_words),
    "cuts answers at 30 characters": Candidate(habit=cut),
    "15% empty answers": Candidate(habit=sometimes_empty),
    "5.8 times slower": Candidate(answer_ms=5.8 * ANSWER_MS),
    "3 times dearer": Candidate(cost=Price(3 * COST.input_nano, 3 * COST.output_nano)),
    "ignores max_tokens": Candidate(ignores=("max_tokens", "max_completion_tokens")),
    "ignores the system message": Candidate(habit=without_role, drops_system=True),
    "writes broken JSON": Candidate(habit=broken_json),
    "invents tools": Candidate(habit=invented_tool),
    "always refuses": Candidate(habit=refusal),
    "answers in German": Candidate(habit=in_german),
    "repeats itself": Candidate(habit=repeated),
    "streams without token counts": Candidate(breaks_usage=True),
    "12% worse everywhere": Candidate(quality=QUALITY - 0.12),
}
