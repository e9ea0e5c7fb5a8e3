"""Graders: whether an answer is right, by the graders of its case. All of them must pass.

Patterns and schemas are tried in a sandboxed child process with limits (check_child.py): a hostile one costs seconds
and fails its case.
"""

import math
import re
import unicodedata
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from cadenza.children.confine import ChildLimits
from cadenza.children.lane import Lane, LaneSettings
from cadenza.children.process import Died, TooHeavy
from cadenza.core.content import Content
from cadenza.parts.evaluation.check_tasks import MATCH, PatternTask, SchemaTask
from cadenza.parts.evaluation.refusals import is_refusal
from cadenza.parts.evaluation.suite import (
    CallsTools,
    Case,
    Contains,
    Exact,
    ExpectedCall,
    Grader,
    JsonIs,
    MustNotContain,
    NumberIs,
    Pattern,
    Refusal,
)

CHILD = LaneSettings(
    "cadenza.parts.evaluation.check_child", ChildLimits(cpu_s=1, memory_bytes=512 * 1024**2), task_s=30.0
)
TEXT_CHARS_MAX = 400_000  # a longer answer fails
OWNER = "suite"
AROUND = " \t\r\n.!\"'`*_“”„‘’«»()"
MARKS_MAX = 30  # combining marks in a row that are normalized: the time for it grows with their square
FENCE = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)  # in linear time
# A number: groups of three digits with a separator, or plain digits; then decimals, an exponent, a denominator.
_GROUPED = r"\d{1,3}(?:[,\u00a0\u202f'’ ]\d{3})+(?!\d)"
_NUMBER = re.compile(rf"(?:(?<![\w.,])[-−–+])?(?:(?:{_GROUPED}|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{{1,3}})?(?:/\d+)?")


class ReplyCall(Content, msgspec.Struct, frozen=True):
    """A tool call of an answer. `arguments` is JSON text, as the model wrote it."""

    name: str
    arguments: str


class GradedReply(Content, msgspec.Struct, frozen=True):
    """What a model answered, as far as graders look at it."""

    text: str = ""
    calls: tuple[ReplyCall, ...] = ()
    finish_reason: str | None = None
    refusal: str = ""  # the text of the field `refusal`, where the upstream has one


class Graders(AbstractAsyncContextManager["Graders"]):
    """The child process in which the patterns and schemas of suites are tried."""

    def __init__(self) -> None:
        self._checks = Lane(CHILD)

    async def __aexit__(self, *_error: object) -> None:
        await self._checks.stop()

    async def matches(self, task: PatternTask | SchemaTask, body: bytes) -> bool | None:
        """None if trying it takes too much time or memory."""
        try:
            return await self._checks.run(OWNER, msgspec.msgpack.encode(task), [body], is_bounded=False) == MATCH
        except (TooHeavy, Died, TimeoutError):
            return None


async def grade(case: Case, reply: GradedReply, graders: Graders) -> bool:
    """Whether the answer passes all graders of its case."""
    if len(reply.text) > TEXT_CHARS_MAX:
        return False
    try:
        for grader in case.graders:
            if not await _passes(grader, reply, graders):
                return False
    except RecursionError:  # the values are nested too deeply to compare them
        return False
    return True


async def _passes(grader: Grader, reply: GradedReply, graders: Graders) -> bool:
    match grader:
        case Pattern():
            return await _passes_pattern(grader, reply.text, graders)
        case JsonIs():
            return await _passes_json(grader, reply.text, graders)
        case CallsTools():
            return await _passes_calls(grader, reply.calls, graders)
        case _:
            return passes_text(grader, reply)


def passes_text(grader: Exact | Contains | MustNotContain | NumberIs | Refusal, reply: GradedReply) -> bool:
    match grader:
        case Exact():
            return _normal(reply.text, grader) in {_normal(text, grader) for text in grader.texts}
        case Contains():
            return (any if grader.match == "any" else all)(_contained(grader, reply.text))
        case MustNotContain():
            return not any(_contained(grader, reply.text))
        case NumberIs():
            number = last_number(reply.text, grader.decimal)
            room = max(grader.tolerance, grader.relative * abs(grader.value), 1e-9 * abs(grader.value))
            return number is not None and abs(number - grader.value) <= room
        case Refusal():
            return is_refusal(reply.text, reply.refusal, reply.finish_reason) == grader.expected


def _contained(grader: Contains | MustNotContain, text: str) -> list[bool]:
    plain = _folded(text, grader.ignore_case)
    return [_folded(one, grader.ignore_case) in plain for one in grader.texts]


def last_number(text: str, decimal: str = ".") -> float | None:
    """The last number of a text: 1,234.5, −7, .5, 3/4 or 1e-3; with a decimal comma 1.234,5."""
    plain = text.replace("{,}", ",")
    if decimal == ",":
        plain = plain.translate({ord(","): ".", ord("."): ","})
    numbers = _NUMBER.findall(plain)
    if not numbers:
        return None
    digits = re.sub(r"[,\u00a0\u202f'’ ]", "", numbers[-1]).replace("−", "-").replace("–", "-")
    value, _, denominator = digits.partition("/")
    number = float(value) / (float(denominator or 1) or 1.0)
    return number if math.isfinite(number) else None


async def _passes_pattern(grader: Pattern, text: str, graders: Graders) -> bool:
    flags = re.IGNORECASE if grader.ignore_case else re.NOFLAG
    task = PatternTask(grader.pattern, int(flags), grader.match == "full")
    is_match = await graders.matches(task, text.strip().encode(errors="replace"))
    return is_match is (grader.match != "absent")


async def _passes_json(grader: JsonIs, text: str, graders: Graders) -> bool:
    body = text.strip()
    if grader.allow_fence and (fenced := FENCE.search(body + "\n")):
        body = fenced[1].strip()
    data = body.encode(errors="replace")
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return False
    if grader.equals is not msgspec.UNSET and not same_value(value, grader.equals):
        return False
    return grader.schema is msgspec.UNSET or await graders.matches(SchemaTask(grader.schema), data) is True


async def _passes_calls(grader: CallsTools, calls: Sequence[ReplyCall], graders: Graders) -> bool:
    if len(calls) != len(grader.calls):
        return False
    left = list(calls)
    for expected in grader.calls:
        for call in left[:1] if grader.in_order else left:
            if await _is_call(expected, call, graders):
                left.remove(call)
                break
        else:
            return False
    return True


async def _is_call(expected: ExpectedCall, call: ReplyCall, graders: Graders) -> bool:
    try:
        arguments = msgspec.json.decode(call.arguments or "{}")
    except (ValueError, RecursionError):
        return False
    if call.name != expected.name or not isinstance(arguments, dict):
        return False
    if expected.arguments is msgspec.UNSET:
        return True
    if expected.match == "schema":
        return await graders.matches(SchemaTask(expected.arguments), msgspec.json.encode(arguments)) is True
    names = expected.arguments if expected.match == "subset" else {*arguments, *expected.arguments}
    return all(same_value(arguments.get(name), expected.arguments.get(name)) for name in names)


def same_value(found: object, expected: object) -> bool:
    """Equal as JSON: 1 is 1.0, but not true; floats may differ in the last digits."""
    if isinstance(found, bool) or isinstance(expected, bool) or found is None or expected is None:
        return found is expected
    if isinstance(found, int | float) and isinstance(expected, int | float):
        return _same_number(found, expected)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(same_value, found, expected))
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same_value(found[key], expected[key]) for key in expected)
    return type(found) is type(expected) and found == expected


def _same_number(found: float, expected: float) -> bool:
    if isinstance(found, int) and isinstance(expected, int):
        return found == expected
    try:
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12)
    except OverflowError:  # an integer beyond every float
        return False


def _folded(text: str, ignore_case: bool) -> str:
    plain = text if text.isascii() or _has_many_marks(text) else unicodedata.normalize("NFC", text)
    return plain.casefold() if ignore_case else plain


def _has_many_marks(text: str) -> bool:
    """Whether so many combining marks are in a row as no language has."""
    row = 0
    for character in text:
        row = row + 1 if unicodedata.combining(character) else 0
        if row > MARKS_MAX:
            return True
    return False


def _normal(text: str, grader: Exact) -> str:
    plain = _folded(text, grader.ignore_case).strip()
    plain = plain.strip(AROUND) if grader.ignore_punctuation else plain
    return " ".join(plain.split()) if grader.ignore_space else plain
