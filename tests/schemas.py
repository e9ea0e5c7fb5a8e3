"""What every reply must look like: closed JSON schemas, and the documented order of a stream.

A check raises an AssertionError that names the mistake, and returns the reply in parts.
"""

import json
import re
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

Schema = dict[str, Any]
CLASS_IDS = ["mezzo", "forte", "fortissimo"]
FINISH_REASONS = ["stop", "length", "tool_calls", "content_filter"]
CUT_REASONS = ("length", "content_filter")
EXTRA_NAMES = {"refusal", "reasoning_content", "reasoning", "reasoning_details"}
EVENT_LINE = re.compile(rb"data: \S.*")
COMMENT_LINE = re.compile(rb":.*")


def closed(required: Schema, optional: Schema | None = None) -> Schema:
    """An object with these members and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


COUNT: Schema = {"type": "integer", "minimum": 0}
USAGE = closed(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": closed({"cached_tokens": COUNT}),
    },
    {"completion_tokens_details": {"type": "object", "additionalProperties": COUNT}, "cost": {"type": "number"}},
)
ENVELOPE: Schema = {
    "id": {"type": "string", "pattern": "^chatcmpl-[A-Za-z0-9_-]{24,}$"},
    "created": {"type": "integer", "minimum": 1_700_000_000},
    "model": {"enum": CLASS_IDS},
}
TEXT: Schema = {"type": "string"}
SOME_TEXT: Schema = {**TEXT, "minLength": 1}
CALL_ID: Schema = {"id": {"type": "string", "pattern": "^call_[A-Za-z0-9_-]{24,}$"}}
TOOL_NAME: Schema = {"name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}}
FUNCTION_CALL: Schema = {
    **CALL_ID,
    "type": {"const": "function"},
    "function": closed({**TOOL_NAME, "arguments": TEXT}),
}
CUSTOM_CALL: Schema = {**CALL_ID, "type": {"const": "custom"}, "custom": closed({**TOOL_NAME, "input": TEXT})}
EXTRA_CONTENT: Schema = {"extra_content": {"type": "object", "minProperties": 1}}
REASONING: Schema = {
    "reasoning_content": SOME_TEXT,
    "reasoning": SOME_TEXT,
    "reasoning_details": {"type": "array", "minItems": 1},
}
CITATION = closed({"url": SOME_TEXT, "title": SOME_TEXT, "start_index": COUNT, "end_index": COUNT})
ANNOTATION = closed({"type": {"const": "url_citation"}, "url_citation": CITATION})
ANNOTATIONS: Schema = {"annotations": {"type": "array", "items": ANNOTATION, "minItems": 1, "maxItems": 100}}
NULL: Schema = {"type": "null"}
SAID: Schema = {"role": {"const": "assistant"}, "refusal": NULL}
PLAIN_MESSAGE = closed({**SAID, "content": TEXT}, {**REASONING, **ANNOTATIONS})
REFUSAL_MESSAGE = closed({**SAID, "content": {"anyOf": [NULL, SOME_TEXT]}, "refusal": SOME_TEXT}, REASONING)
CALLS_MESSAGE = closed(
    {
        **SAID,
        "content": {"anyOf": [NULL, SOME_TEXT]},
        "tool_calls": {
            "type": "array",
            "items": {"anyOf": [closed(FUNCTION_CALL, EXTRA_CONTENT), closed(CUSTOM_CALL, EXTRA_CONTENT)]},
            "minItems": 1,
        },
    },
    REASONING,
)
MESSAGE: Schema = {"anyOf": [PLAIN_MESSAGE, REFUSAL_MESSAGE, CALLS_MESSAGE]}
CHOICE = closed(
    {
        "index": {"const": 0},
        "message": MESSAGE,
        "logprobs": {"type": "null"},
        "finish_reason": {"enum": FINISH_REASONS},
    }
)
COMPLETION = closed(
    {
        **ENVELOPE,
        "object": {"const": "chat.completion"},
        "choices": {"type": "array", "items": CHOICE, "minItems": 1, "maxItems": 1},
        "usage": USAGE,
    }
)
CHUNK_HEAD: Schema = {**ENVELOPE, "object": {"const": "chat.completion.chunk"}}
CALL_INDEX: Schema = {"index": {"type": "integer", "minimum": 0}}
CALL_DELTA: Schema = {
    "anyOf": [
        closed({**CALL_INDEX, **FUNCTION_CALL}, EXTRA_CONTENT),
        closed({**CALL_INDEX, **CUSTOM_CALL}, EXTRA_CONTENT),
        closed({**CALL_INDEX, "function": closed({"arguments": SOME_TEXT})}, EXTRA_CONTENT),
        closed({**CALL_INDEX, "custom": closed({"input": SOME_TEXT})}, EXTRA_CONTENT),
    ]
}
CALL_DELTAS: Schema = {"type": "array", "items": CALL_DELTA, "minItems": 1, "maxItems": 1}  # some read only the first
DELTA: Schema = {"role": {"const": "assistant"}, "content": TEXT, "tool_calls": CALL_DELTAS, "refusal": SOME_TEXT}
CHUNK_CHOICE = closed(
    {
        "index": {"const": 0},
        "delta": closed({}, {**DELTA, **REASONING, **ANNOTATIONS}),
        "finish_reason": {"enum": [*FINISH_REASONS, None]},
    }
)
CHUNK = closed({**CHUNK_HEAD, "choices": {"type": "array", "items": CHUNK_CHOICE, "minItems": 1, "maxItems": 1}})
USAGE_CHUNK = closed({**CHUNK_HEAD, "choices": {"type": "array", "maxItems": 0}, "usage": USAGE})
DOLLARS: Schema = {"type": "string", "pattern": r"^\d+\.\d{2,}$"}
PRICE = {"input": DOLLARS, "output": DOLLARS, "cached_input": {"anyOf": [DOLLARS, {"type": "null"}]}}
PRICE_CHANGE = closed({"from": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}, **PRICE})
MODEL_FIELDS: Schema = {
    "object": {"const": "model"},
    "created": {"type": "integer", "minimum": 1_700_000_000},
    "owned_by": {"const": "cadenza"},
}
AUTO_MODEL = closed({"id": {"const": "auto"}, **MODEL_FIELDS})  # it has no price of its own
CLASS_MODEL = closed(
    {
        "id": {"enum": CLASS_IDS},
        **MODEL_FIELDS,
        "pricing": closed({**PRICE, "unit": {"const": "1M tokens"}, "currency": {"const": "USD"}}),
        "pricing_changes": {"type": "array", "items": PRICE_CHANGE},
    }
)
MODEL = {"anyOf": [AUTO_MODEL, CLASS_MODEL]}
MODEL_LIST = closed({"object": {"const": "list"}, "data": {"type": "array", "items": MODEL}})
ERROR_TYPES = [
    "invalid_request_error",
    "authentication_error",
    "insufficient_quota",
    "permission_error",
    "rate_limit_error",
    "api_error",
]
ERROR = closed({"error": closed({"message": {"type": "string", "minLength": 1}, "type": {"enum": ERROR_TYPES}})})


class Called(msgspec.Struct, frozen=True):
    """A tool call, assembled as a client does it."""

    id: str
    name: str
    arguments: str  # or the input of a custom tool
    type: str = "function"


class Stream(msgspec.Struct, frozen=True):
    """A complete stream in parts."""

    id: str
    model: str
    text: str
    pieces: tuple[str, ...]
    finish_reason: str
    usage: dict[str, Any]
    calls: tuple[Called, ...] = ()
    extras: dict[str, Any] = {}  # refusal and reasoning
    annotations: tuple[dict[str, Any], ...] = ()


class BrokenStream(msgspec.Struct, frozen=True):
    """A stream that failed: its text so far, and the error that ended it."""

    text: str
    error: dict[str, str]
    calls: tuple[Called, ...] = ()


def check(value: object, schema: Schema) -> None:
    problems = [
        f"{problem.json_path}: {problem.message}" for problem in Draft202012Validator(schema).iter_errors(value)
    ]
    assert not problems, f"{problems} in {value}"


def check_completion(value: Any) -> None:
    check(value, COMPLETION)
    choice = value["choices"][0]
    _check_reason(choice["finish_reason"], has_calls="tool_calls" in choice["message"])
    _check_total(value["usage"])


def _check_reason(reason: str, *, has_calls: bool) -> None:
    """Calls are the reason of the end, unless the reply was cut."""
    assert reason in CUT_REASONS or (reason == "tool_calls") == has_calls, reason


def completed_calls(value: Any) -> tuple[Called, ...]:
    """The calls of a plain reply."""
    calls = value["choices"][0]["message"].get("tool_calls", [])
    return tuple(Called(call["id"], call[call["type"]]["name"], _text_of_call(call), call["type"]) for call in calls)


def _text_of_call(part: Any) -> str:
    """The arguments of a function, or the input of a custom tool."""
    return str(part["custom"]["input"] if "custom" in part else part["function"]["arguments"])


def check_error(value: Any, type_: str) -> str:
    """Check that this is an error object of this type, and return its message."""
    check(value, ERROR)
    assert value["error"]["type"] == type_, value
    return str(value["error"]["message"])


def check_stream(raw: bytes) -> Stream:
    """Check a whole body: role, content or calls, annotations, an empty delta with a finish reason, usage, [DONE]."""
    *chunks, done = read_events(raw)
    assert done == b"[DONE]", f"the last event is {done!r}"
    role, *content, finish, usage = [json.loads(data) for data in chunks]
    annotations = _check_annotations(content)
    pieces, calls, extras = _check_content(role, content[: len(content) - bool(annotations)])
    check(finish, CHUNK)
    assert finish["choices"][0]["delta"] == {}, finish
    assert finish["choices"][0]["finish_reason"] is not None, finish
    check(usage, USAGE_CHUNK)
    _check_total(usage["usage"])
    _check_same_head([role, *content, finish, usage])
    reason = finish["choices"][0]["finish_reason"]
    _check_reason(reason, has_calls=bool(calls))
    return Stream(
        role["id"], role["model"], "".join(pieces), pieces, reason, usage["usage"], calls, extras, annotations
    )


def check_broken_stream(raw: bytes) -> BrokenStream:
    """Check a body that failed mid-stream: correct chunks without a finish reason, then one error."""
    role, *content, error = [json.loads(data) for data in read_events(raw)]
    pieces, calls, _ = _check_content(role, content)
    _check_same_head([role, *content])
    check_error(error, "api_error")
    return BrokenStream("".join(pieces), error["error"], calls)


def read_events(raw: bytes) -> list[bytes]:
    """The data of each event. An event is one `data: ` line and a blank one; besides it only comments are allowed."""
    assert raw.endswith(b"\n\n"), f"the body ends within an event: {raw[-80:]!r}"
    blocks = [block.lstrip(b"\n") for block in raw.split(b"\n\n")]
    lines = [line for block in blocks if block for line in _event_lines(block)]
    return [line.removeprefix(b"data: ") for line in lines]


def _event_lines(block: bytes) -> list[bytes]:
    lines = [line for line in block.split(b"\n") if not COMMENT_LINE.fullmatch(line)]
    assert len(lines) <= 1, f"an event of several lines: {block!r}"
    assert all(EVENT_LINE.fullmatch(line) for line in lines), f"not a data line: {block!r}"
    return lines


def _check_annotations(content: list[Any]) -> tuple[dict[str, Any], ...]:
    """Those of the last chunk before the finish, which has nothing else. No other chunk may have any."""
    delta = content[-1]["choices"][0]["delta"] if content else {}
    if "annotations" not in delta:
        return ()
    check(content[-1], CHUNK)
    assert delta.keys() == {"annotations"}, delta
    return tuple(delta["annotations"])


def _check_content(role: Any, content: list[Any]) -> tuple[tuple[str, ...], tuple[Called, ...], dict[str, Any]]:
    """The pieces of text, the calls and the extras of a stream."""
    for chunk in [role, *content]:
        check(chunk, CHUNK)
        assert chunk["choices"][0]["finish_reason"] is None, chunk
    first = role["choices"][0]["delta"]
    assert first in ({"role": "assistant"}, {"role": "assistant", "content": ""}), role
    deltas = [chunk["choices"][0]["delta"] for chunk in content]
    extras: dict[str, Any] = {}
    for delta in deltas:
        assert delta.keys() in ({"content"}, {"tool_calls"}) or delta.keys() <= EXTRA_NAMES, content
        for name in delta.keys() & EXTRA_NAMES:
            extras[name] = extras[name] + delta[name] if name in extras else delta[name]
    calls = _check_calls([part for delta in deltas for part in delta.get("tool_calls", [])])
    return tuple(delta["content"] for delta in deltas if "content" in delta), calls, extras


def _check_calls(parts: list[Any]) -> tuple[Called, ...]:
    """Check the order of call deltas: numbered as they begin, with id and name only on the first of each."""
    calls = list[Called]()
    for part in parts:
        assert ("id" in part) == (part["index"] == len(calls)), parts
        if "id" in part:
            calls.append(Called(part["id"], part[part["type"]]["name"], _text_of_call(part), part["type"]))
        else:
            told = calls[part["index"]]
            assert told.type in part, parts
            calls[part["index"]] = Called(told.id, told.name, told.arguments + _text_of_call(part), told.type)
    assert len({call.id for call in calls}) == len(calls), parts
    return tuple(calls)


def _check_same_head(chunks: list[Any]) -> None:
    heads = {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}
    assert len(heads) == 1, f"id, created or model changed within the stream: {heads}"


def _check_total(usage: Any) -> None:
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"], usage
