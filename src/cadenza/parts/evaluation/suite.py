"""Suites: files of cases, one JSON object a line, each with its messages and the graders that its answer must pass.

`load_suite` reports every mistake of a file at once, with its line and what to do. Files, cases and texts are bounded,
and a long text of filler with needles in it is generated from a seed instead of being stored. Messages are for an
upstream and are otherwise not read.
"""

import difflib
import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from cadenza.core.content import Content
from cadenza.core.mistakes import describe_mistake
from cadenza.parts.evaluation.haystack import PLACEHOLDER, Haystack, build_haystack, check_haystack

FILE_BYTES_MAX = 32 * 1024 * 1024
LINE_BYTES_MAX = 1024 * 1024
CASES_MAX = 10_000
MESSAGES_MAX = 200
EXPANDED_CHARS_MAX = 64_000_000  # of all texts that are generated
PATTERN_CHARS_MAX = 2_000
MISTAKES_SHOWN = 20
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,79}")
TAG = re.compile(r"[a-z0-9_-]{1,40}")
ROLES = ("system", "developer", "user", "assistant", "tool")
STARTER = "starter"
SCHEMA_DIALECTS = (
    *(f"http://json-schema.org/draft-{draft}/schema" for draft in ("04", "06", "07")),
    *(f"https://json-schema.org/draft/{draft}/schema" for draft in ("2019-09", "2020-12")),
)

Texts = tuple[str, ...]


class GraderSpec(Content, msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """One thing that an answer is graded by, as a suite names it; `kind` says which."""


class Exact(GraderSpec, frozen=True, tag="exact"):
    """The whole answer is one of the texts. Spaces around it never count; runs of spaces do not unless asked."""

    texts: Texts
    ignore_case: bool = False
    ignore_space: bool = True
    ignore_punctuation: bool = False  # around the answer: quotes, asterisks, a full stop


class Contains(GraderSpec, frozen=True, tag="contains"):
    """The answer contains all of the texts, or any of them."""

    texts: Texts
    ignore_case: bool = True
    match: Literal["all", "any"] = "all"


class MustNotContain(GraderSpec, frozen=True, tag="must_not_contain"):
    """The answer contains none of the texts."""

    texts: Texts
    ignore_case: bool = True


class Pattern(GraderSpec, frozen=True, tag="regex"):
    """A regular expression of Python is found in the answer, matches all of it, or is not found."""

    pattern: str
    ignore_case: bool = False
    match: Literal["search", "full", "absent"] = "search"


class NumberIs(GraderSpec, frozen=True, tag="number"):
    """The last number of the answer is the value, within the tolerance."""

    value: float
    tolerance: float = 0.0  # absolute
    relative: float = 0.0  # as a share of the value
    decimal: Literal[".", ","] = "."


class JsonIs(GraderSpec, frozen=True, tag="json"):
    """The answer is JSON that the schema accepts, or that equals a value. Code fences around it are allowed."""

    schema: Any = msgspec.UNSET
    equals: Any = msgspec.UNSET
    allow_fence: bool = True


class ExpectedCall(Content, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call that the answer must have. `schema`: `arguments` is a JSON schema."""

    name: str
    arguments: Any = msgspec.UNSET
    match: Literal["equal", "subset", "schema"] = "equal"


class CallsTools(GraderSpec, frozen=True, tag="tool_call"):
    """The answer has exactly these calls, in any order unless asked. None: it must not call a tool."""

    calls: tuple[ExpectedCall, ...]
    in_order: bool = False


class Refusal(GraderSpec, frozen=True, tag="refusal"):
    """The answer refuses, or does not."""

    expected: bool


Grader = Exact | Contains | MustNotContain | Pattern | NumberIs | JsonIs | CallsTools | Refusal
KINDS: dict[str, type[GraderSpec]] = {str(one.__struct_config__.tag): one for one in get_args(Grader)}


class Case(Content, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of a suite. An answer passes if all graders pass it."""

    id: str
    tags: tuple[str, ...]
    messages: list[dict[str, Any]]
    graders: tuple[Grader, ...]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    max_tokens: int | None = None
    stop: list[str] | str | None = None
    temperature: float | None = None
    haystack: Haystack | None = None  # has been put into the messages once the suite is loaded


class Suite(msgspec.Struct, frozen=True):
    """The cases of a file, in its order. Suites with the same digest ask and grade the same."""

    name: str
    cases: tuple[Case, ...]
    digest: bytes


class SuiteError(ValueError):
    """A suite cannot be used. The message has one line for each mistake."""

    def __init__(self, mistakes: list[str]) -> None:
        shown = mistakes[:MISTAKES_SHOWN]
        more = [f"and {len(mistakes) - len(shown)} more mistakes"] if len(mistakes) > len(shown) else []
        super().__init__("\n".join([*shown, *more]))
        self.mistakes = mistakes


class Mistake(ValueError):
    """One mistake of a suite. The message ends the sentence "suite.jsonl:7: …"."""


def load_suite(path: Path | None) -> Suite:
    """The suite of a file, or the starter suite. SuiteError with all mistakes of the file."""
    if path is None:
        return read_suite(STARTER, read_starter())
    return read_suite(path.name, read_file(path))


def read_file(path: Path) -> bytes:
    """The bytes of a file. SuiteError if it cannot be read, or is too large."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SuiteError([f"{path}: cannot be read: {error.strerror}"]) from None
    if len(data) > FILE_BYTES_MAX:
        raise SuiteError([f"{path}: is larger than {FILE_BYTES_MAX // 1024**2} MiB; split it"])
    return data


def read_starter() -> bytes:
    folder = files("cadenza.parts.evaluation") / STARTER
    parts = sorted((part for part in folder.iterdir() if part.name.endswith(".jsonl")), key=lambda part: part.name)
    return b"".join(part.read_bytes() for part in parts)


def read_suite(name: str, data: bytes) -> Suite:
    """The suite in the bytes of a file with this name."""
    mistakes, cases, lines_by_id, room = list[str](), list[Case](), dict[str, int](), EXPANDED_CHARS_MAX
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        if len(cases) + len(mistakes) >= CASES_MAX:
            mistakes.append(f"{name}:{number}: a suite has at most {CASES_MAX} cases; split it")
            break
        try:
            case, size_chars = _read_case(line, room)
            if case.id in lines_by_id:
                raise Mistake(f"the id {case.id!r} is used on line {lines_by_id[case.id]} already")
        except ValueError as error:
            mistakes.append(f"{name}:{number}: {error}")
            continue
        room -= size_chars
        lines_by_id[case.id] = number
        cases.append(case)
    if not cases and not mistakes:
        mistakes.append(f"{name}: has no cases; write one JSON object a line")
    if mistakes:
        raise SuiteError(mistakes)
    digest = hashlib.sha256(msgspec.json.encode(cases, order="deterministic")).digest()
    return Suite(name, tuple(cases), digest)


def _read_case(line: bytes, room: int) -> tuple[Case, int]:
    """The case with its haystack in its messages, and how many characters that added."""
    if len(line) > LINE_BYTES_MAX:
        raise Mistake(f"the line is longer than {LINE_BYTES_MAX // 1024} KiB; generate long texts with `haystack`")
    try:
        raw = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Mistake(f"not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise Mistake("a case is a JSON object")
    _check_keys(raw)
    try:
        case = msgspec.convert(raw, Case)
    except msgspec.ValidationError as error:
        raise Mistake(describe_mistake(str(error))) from None
    _check_case(case)
    for grader in case.graders:
        check_grader(grader, case)
    return _fill(case, room)


def _check_keys(raw: dict[str, Any]) -> None:
    """Mistake for a key that does not exist, with the nearest one that does."""
    if "is_cheap" in raw:
        raise Mistake("`is_cheap` was for the watch, which is gone: remove it")
    _check_names("key", raw, Case.__struct_fields__)
    graders = raw.get("graders")
    for place, grader in enumerate(graders if isinstance(graders, list) else ()):
        if not isinstance(grader, dict):
            continue
        kind = grader.get("kind")
        if kind is None:
            raise Mistake(f"graders[{place}] has no `kind`; use one of {', '.join(KINDS)}")
        _check_names(f"kind of graders[{place}]", [str(kind)], tuple(KINDS))
        _check_names(f"key of graders[{place}]", grader, ("kind", *KINDS[kind].__struct_fields__))


def _check_names(what: str, names: Iterable[str], known: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise Mistake(
                f"unknown {what}: {name!r}; "
                + (f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(known)}")
            )


def _check_case(case: Case) -> None:
    if not ID.fullmatch(case.id):
        raise Mistake("`id` has 1 to 80 letters, digits and `_.:/-`, and begins with a letter or digit")
    if wrong := [tag for tag in case.tags if not TAG.fullmatch(tag)]:
        raise Mistake(f"the tag {wrong[0]!r} is not of the form [a-z0-9_-]{{1,40}}")
    if not case.tags:
        raise Mistake('`tags` is empty; give at least one, such as "general"')
    if not case.graders:
        raise Mistake("`graders` is empty; an answer could not fail")
    if not 1 <= len(case.messages) <= MESSAGES_MAX:
        raise Mistake(f"`messages` has 1 to {MESSAGES_MAX} messages")
    for place, message in enumerate(case.messages):
        _check_message(f"messages[{place}]", message)
    if case.messages[-1]["role"] not in ("user", "tool"):
        raise Mistake("the last message is not of the user or a tool; there is nothing to answer")
    if case.max_tokens is not None and case.max_tokens < 1:
        raise Mistake("`max_tokens` is at least 1")
    for place, tool in enumerate(case.tools or ()):
        if not isinstance(tool.get("function"), dict) or not isinstance(tool["function"].get("name"), str):
            raise Mistake(f'tools[{place}]: write {{"type": "function", "function": {{"name": …}}}}')


def _check_message(place: str, message: dict[str, Any]) -> None:
    if message.get("role") not in ROLES:
        raise Mistake(f"{place}: `role` is one of {', '.join(ROLES)}")
    content = message.get("content")
    if not isinstance(content, str | list) and not (content is None and message.get("tool_calls")):
        raise Mistake(f"{place}: `content` is a text or a list of parts")
    if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise Mistake(f"{place}: a message of a tool needs `tool_call_id`")


def _fill(case: Case, room: int) -> tuple[Case, int]:
    haystack = case.haystack
    if haystack is None:
        return case, 0
    check_haystack(haystack)
    texts = [message["content"] for message in case.messages if isinstance(message.get("content"), str)]
    if sum(text.count(PLACEHOLDER) for text in texts) != 1:
        raise Mistake(f"`haystack` is given, so one message must have {PLACEHOLDER} in its text, once")
    if haystack.words * 10 > room:
        raise Mistake("the generated texts of the suite are too long together; use fewer `words`")
    text = build_haystack(haystack)
    messages = [
        {**message, "content": message["content"].replace(PLACEHOLDER, text)}
        if isinstance(message.get("content"), str)
        else message
        for message in case.messages
    ]
    return msgspec.structs.replace(case, messages=messages), len(text)


def check_grader(grader: Grader, case: Case) -> None:
    """Mistake for a grader that cannot work."""
    match grader:
        case Exact() | Contains() | MustNotContain():
            if not grader.texts or not all(grader.texts):
                raise Mistake("`texts` of a grader needs at least one text, and none that is empty")
        case Pattern():
            _check_pattern(grader)
        case NumberIs():
            if not (math.isfinite(grader.value) and 0 <= grader.tolerance < math.inf and 0 <= grader.relative < 1):
                raise Mistake("`value` and `tolerance` are finite, `tolerance` is not negative, `relative` is below 1")
        case JsonIs() if grader.schema is not msgspec.UNSET:
            check_schema(grader.schema)
        case CallsTools():
            _check_calls(grader, case)
        case _:
            pass


def _check_pattern(grader: Pattern) -> None:
    if not 1 <= len(grader.pattern) <= PATTERN_CHARS_MAX:
        raise Mistake(f"a pattern has 1 to {PATTERN_CHARS_MAX} characters")
    try:
        re.compile(grader.pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise Mistake(f"the pattern {grader.pattern!r} does not compile: {error}") from None


def _check_calls(grader: CallsTools, case: Case) -> None:
    known = {tool["function"]["name"] for tool in case.tools or ()}
    for call in grader.calls:
        if call.name not in known:
            raise Mistake(f"the grader expects a call of {call.name!r}, which is not among the case's `tools`")
        if call.match == "schema":
            check_schema(call.arguments)
        elif call.match == "subset" and not isinstance(call.arguments, dict):
            raise Mistake(f"the expected call of {call.name!r} matches a subset, so its `arguments` is an object")


def check_schema(schema: object) -> None:
    """Mistake if it is not a JSON schema, or refers to another document: nothing is fetched."""
    import jsonschema_rs  # noqa: PLC0415 import time, and 8 MB that a server does not need

    if not isinstance(schema, dict | bool):
        raise Mistake("a JSON schema is an object")
    if outside := next((ref for ref in _references(schema) if not ref.startswith("#")), None):
        raise Mistake(f"the schema refers to {outside!r}; only references within it (#/…) and known drafts work")
    try:
        jsonschema_rs.meta.validate(schema)
        jsonschema_rs.validator_for(schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise Mistake(f"not a JSON schema: {str(error).splitlines()[0]}") from None


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("$ref", "$dynamicRef", "$schema", "$id") and isinstance(inner, str):
                if key != "$schema" or inner.removesuffix("#") not in SCHEMA_DIALECTS:
                    yield inner
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
