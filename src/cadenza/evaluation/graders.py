"""Graders: whether an answer is right, by the graders of its case. All of them must pass.

Patterns, schemas and code run in sandboxed child processes with limits (code_child.py): a hostile one costs seconds and
fails its case. What a reason quotes is content: it is for the operator's own report, and is never stored.
"""

import math
import re
import secrets
import signal
import unicodedata
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from cadenza.children.confine import ChildLimits
from cadenza.children.lane import Lane, LaneSettings
from cadenza.children.process import Died, TooHeavy
from cadenza.core.content import Content
from cadenza.evaluation.code_child_messages import (
    ANSWERS,
    Answered,
    CodeTask,
    Matched,
    NotConfined,
    PatternTask,
    Ran,
    Returned,
    SchemaTask,
)
from cadenza.evaluation.judge import AskJudge, compare
from cadenza.evaluation.refusals import is_refusal
from cadenza.evaluation.suite import (
    CallsTools,
    Case,
    CodeCheck,
    Contains,
    Exact,
    ExpectedCall,
    Grader,
    JsonIs,
    MustNotContain,
    NumberIs,
    Pattern,
    Refusal,
    Rubric,
    RunsCode,
    Suite,
)

CHILD = "cadenza.evaluation.code_child"
MIB = 1024 * 1024
ANSWER_BYTES_MAX = 4 * MIB  # of a child
TEXT_CHARS_MAX = 400_000  # a longer answer fails
SHOWN_CHARS = 120
OWNER = "suite"
NO_SANDBOX = (
    "This suite has cases with code, and this system cannot confine it: it has no filter of system calls (seccomp), or "
    "a container forbids it. Run the evaluation on a Linux host, or leave out the cases with a code grader."
)
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


class Grade(Content, msgspec.Struct, frozen=True):
    """1 if every grader passes, else 0; a tie by a rubric is 0.5. The reason may quote content: it is never stored."""

    score: float
    reason: str = ""


class GradingUnavailable(ValueError):
    """The cases of a suite cannot be graded on this machine. The message says why and what to do."""


class GradingLimits(msgspec.Struct, frozen=True):
    """What one pattern or schema, and the code of one answer, may use."""

    check: ChildLimits = ChildLimits(cpu_s=1, memory_bytes=512 * MIB)
    code: ChildLimits = ChildLimits(cpu_s=4, memory_bytes=512 * MIB)
    clock_s: float = 30.0


class Graders(AbstractAsyncContextManager["Graders"]):
    """The child processes in which patterns, schemas and code of suites and answers run."""

    def __init__(self, limits: GradingLimits | None = None) -> None:
        limits = limits or GradingLimits()
        self._checks = Lane(LaneSettings(CHILD, limits.check, limits.clock_s))
        self._code = Lane(LaneSettings(CHILD, limits.code, limits.clock_s))

    async def __aexit__(self, *_error: object) -> None:
        await self._checks.stop()
        await self._code.stop()

    async def prepare(self, suite: Suite) -> None:
        """GradingUnavailable if the suite has code and the system cannot confine it."""
        if any(isinstance(grader, RunsCode) for case in suite.cases for grader in case.graders):
            await self.run_code(CodeTask("", ()), "")

    async def check(self, task: PatternTask | SchemaTask, body: bytes) -> str:
        """Why it does not match; empty if it does."""
        try:
            head = msgspec.msgpack.encode(task)
            answer = _read(await self._checks.run(OWNER, head, [body], is_bounded=False))
        except (TooHeavy, Died, TimeoutError):
            return "it takes too much time or memory to check"
        return "" if isinstance(answer, Matched) and answer.is_match else getattr(answer, "reason", "") or "no match"

    async def run_code(self, task: CodeTask, code: str) -> Ran | str:
        """What the code did, or why it could not be run to its end. Each run has a child of its own."""
        async with self._code.turn(secrets.token_hex(8), is_bounded=False) as run:
            try:
                answer = _read(await run(msgspec.msgpack.encode(task), [code.encode(errors="replace")]))
            except TooHeavy as error:
                is_slow = error.signal_name == signal.SIGXCPU.name
                return "the code takes too much CPU time" if is_slow else "the code crashes, or takes too much memory"
            except (Died, TimeoutError):
                return "the code does not end in time, or ends the process"
            finally:
                await self._code.stop()
        if isinstance(answer, NotConfined):
            raise GradingUnavailable(NO_SANDBOX)
        return answer if isinstance(answer, Ran) else "the code answered in place of its process"


def _read(reply: bytearray) -> Answered | None:
    """The reply of a child; None for one that it cannot have sent by itself."""
    try:
        return ANSWERS.decode(reply) if len(reply) <= ANSWER_BYTES_MAX else None
    except (ValueError, RecursionError):
        return None


async def grade(case: Case, reply: GradedReply, graders: Graders) -> Grade:
    """The grade by all graders but a rubric."""
    if len(reply.text) > TEXT_CHARS_MAX:
        return Grade(0.0, f"the answer is longer than {TEXT_CHARS_MAX} characters")
    for grader in case.graders:
        try:
            reason = await _why_it_fails(grader, reply, graders)
        except RecursionError:
            reason = "the values are nested too deeply to compare them"
        if reason:
            return Grade(0.0, reason)
    return Grade(1.0)


async def _why_it_fails(grader: Grader, reply: GradedReply, graders: Graders) -> str:
    """Empty if the answer passes."""
    match grader:
        case Pattern():
            return await _grade_pattern(grader, reply.text, graders)
        case JsonIs():
            return await _grade_json(grader, reply.text, graders)
        case CallsTools():
            return await _grade_calls(grader, reply.calls, graders)
        case RunsCode():
            return await _grade_code(grader, reply.text, graders)
        case Rubric():
            return ""
        case _:
            return grade_text(grader, reply)


async def grade_pair(
    case: Case, replies: tuple[GradedReply, GradedReply], graders: Graders, ask_judge: AskJudge | None
) -> tuple[Grade, Grade]:
    """The grades of incumbent and candidate. Where both pass and the case has a rubric, the judge compares them."""
    first, second = await grade(case, replies[0], graders), await grade(case, replies[1], graders)
    if not case.rubric or not first.score == second.score == 1:
        return first, second
    if ask_judge is None:
        raise GradingUnavailable("This suite has cases with a rubric: name the class or model that judges them.")
    question = "\n\n".join(
        f"{one['role']}: {one['content']}" for one in case.messages if isinstance(one["content"], str)
    )
    score = await compare(case.rubric.text, question, (replies[0].text, replies[1].text), ask_judge)
    words = {1.0: "the judge prefers it", 0.5: "the judge sees a tie", 0.0: "the judge prefers the other"}
    return Grade(score, words[score]), Grade(1 - score, words[1 - score])


def grade_text(grader: Exact | Contains | MustNotContain | NumberIs | Refusal, reply: GradedReply) -> str:
    """Why the answer fails; empty if it passes."""
    match grader:
        case Exact():
            found = _normal(reply.text, grader)
            return "" if found in {_normal(text, grader) for text in grader.texts} else f"found {_shown(reply.text)}"
        case Contains():
            plain = _folded(reply.text, grader.ignore_case)
            has = [_folded(text, grader.ignore_case) in plain for text in grader.texts]
            missing = [text for text, is_there in zip(grader.texts, has, strict=True) if not is_there]
            is_enough = any(has) if grader.match == "any" else all(has)
            return "" if is_enough else f"lacks {_shown(missing[0])}"
        case MustNotContain():
            text = _folded(reply.text, grader.ignore_case)
            there = next((one for one in grader.texts if _folded(one, grader.ignore_case) in text), None)
            return f"contains {_shown(there)}" if there is not None else ""
        case NumberIs():
            number = last_number(reply.text, grader.decimal)
            if number is None:
                return "has no number"
            room = max(grader.tolerance, grader.relative * abs(grader.value), 1e-9 * abs(grader.value))
            return "" if abs(number - grader.value) <= room else f"found {number:g}"
        case Refusal():
            refuses = is_refusal(reply.text, reply.refusal, reply.finish_reason)
            return "" if refuses == grader.expected else "refuses" if refuses else "does not refuse"


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


async def _grade_pattern(grader: Pattern, text: str, graders: Graders) -> str:
    flags = re.IGNORECASE if grader.ignore_case else re.NOFLAG
    task = PatternTask(grader.pattern, int(flags), grader.match == "full")
    reason = await graders.check(task, text.strip().encode(errors="replace"))
    if grader.match != "absent":
        return f"the pattern {_shown(grader.pattern)}: {reason}" if reason else ""
    return "" if reason == "no match" else f"the pattern {_shown(grader.pattern)}: {reason or 'is found'}"


async def _grade_json(grader: JsonIs, text: str, graders: Graders) -> str:
    body = text.strip()
    if grader.allow_fence and (fenced := FENCE.search(body + "\n")):
        body = fenced[1].strip()
    data = body.encode(errors="replace")
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return "is not JSON"
    if grader.equals is not msgspec.UNSET and not same_value(value, grader.equals):
        return f"is other JSON: {_shown(body)}"
    return "" if grader.schema is msgspec.UNSET else await graders.check(SchemaTask(grader.schema), data)


async def _grade_calls(grader: CallsTools, calls: Sequence[ReplyCall], graders: Graders) -> str:
    names = [call.name for call in calls]
    if len(calls) != len(grader.calls):
        return f"calls {', '.join(map(_shown, names)) or 'no tool'}; expected {len(grader.calls)} calls"
    left = list(calls)
    for expected in grader.calls:
        candidates, reason = left[:1] if grader.in_order else left, ""
        for call in candidates:
            reason = await _mismatch(expected, call, graders)
            if not reason:
                left.remove(call)
                break
        else:
            return f"no call of {expected.name} as expected: {reason}"
    return ""


async def _mismatch(expected: ExpectedCall, call: ReplyCall, graders: Graders) -> str:
    if call.name != expected.name:
        return f"calls {_shown(call.name)}"
    try:
        arguments = msgspec.json.decode(call.arguments or "{}")
    except (ValueError, RecursionError):
        return "its arguments are not JSON"
    if not isinstance(arguments, dict):
        return "its arguments are not an object"
    if expected.arguments is msgspec.UNSET:
        return ""
    if expected.match == "schema":
        return await graders.check(SchemaTask(expected.arguments), msgspec.json.encode(arguments))
    names = expected.arguments if expected.match == "subset" else {*arguments, *expected.arguments}
    wrong = [name for name in names if not same_value(arguments.get(name), expected.arguments.get(name))]
    return f"another {_shown(str(wrong[0]))}" if wrong else ""


async def _grade_code(grader: RunsCode, text: str, graders: Graders) -> str:
    task = CodeTask(grader.function, tuple(check.args for check in grader.checks))
    ran = await graders.run_code(task, find_code(text, grader.function))
    if isinstance(ran, str):
        return ran
    if ran.raised:
        return f"the code raises {_shown(ran.raised)}"
    if grader.prints is not None:
        return "" if ran.printed.split() == grader.prints.split() else f"the code prints {_shown(ran.printed)}"
    if len(ran.returned) != len(grader.checks):
        return "the code answered in place of its process"
    pairs = enumerate(zip(grader.checks, ran.returned, strict=True), start=1)
    return next((f"check {place}: {reason}" for place, (check, one) in pairs if (reason := _wrong(check, one))), "")


def _wrong(check: CodeCheck, returned: Returned) -> str:
    if check.raises is not None or returned.raised:
        is_right = returned.raised == check.raises
        return "" if is_right else f"raises {_shown(returned.raised)}" if returned.raised else "raises nothing"
    try:
        value = msgspec.json.decode(returned.value)
    except (ValueError, RecursionError):
        return "returns no value of JSON"
    return "" if same_value(value, check.equals) else f"returns {_shown(returned.value)}"


def find_code(text: str, function: str) -> str:
    """The last code block that defines the function, else the first block, else the whole text."""
    blocks = [block[1] for block in FENCE.finditer(text + "\n")]
    defining = [block for block in blocks if function and re.search(rf"def\s+{function}\b", block)]
    return defining[-1] if defining else blocks[0] if blocks else text


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


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…")
