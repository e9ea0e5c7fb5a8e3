"""Decodes the replies of an OpenAI-compatible upstream into pieces. The quirks of all known upstreams are handled here.

Decoding is lenient about fields that we do not need and strict about the rest: JSON that is not an answer is a Fault.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from cadenza.core.content import Content
from cadenza.core.faults import FaultKind
from cadenza.core.records import Usage
from cadenza.core.tool_calls import ToolCallPart
from cadenza.upstreams.base import NO_EXTRAS, Fault, Piece, Probe
from cadenza.upstreams.errors import classify_error_object

EXTRAS = ("refusal", "reasoning_content", "reasoning", "reasoning_details")  # the fields that are passed on unchanged
CUT = "model_length"  # Mistral's finish reason of a reply that filled the context window
FAILURES = ("error", "network_error", "abort", "insufficient_system_resource")  # finish reasons of a broken reply
COUNT_MAX = 1 << 40  # more tokens than any reply can have; a count this large is invalid
CACHED = ("prompt_cache_hit_tokens", "cached_tokens", "num_cached_tokens")  # DeepSeek, Kimi, Mistral
CACHED_DETAILS = ("prompt_tokens_details", "prompt_token_details")
FURTHER_COUNTS = frozenset({*CACHED, *CACHED_DETAILS, "completion_tokens_details", "reasoning_tokens"})


class _Delta(Content, msgspec.Struct):
    content: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None


class _Choice(Content, msgspec.Struct):
    index: Any = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Any = None
    native_finish_reason: Any = None  # OpenRouter's
    usage: Any = None  # Kimi's


class _Document(Content, msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    x_groq: Any = None
    error: Any = None
    object: Any = None
    code: Any = None
    message: Any = None


_DECODER = msgspec.json.Decoder(_Document)


class _Model(msgspec.Struct):
    id: str
    owned_by: Any = None
    max_model_len: Any = None


class _ModelList(msgspec.Struct):
    data: list[_Model]


def read_models(body: bytes) -> Probe:
    """The models that a provider lists."""
    try:
        listed = msgspec.json.decode(body, type=_ModelList).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Probe(reachable=True, detail="answers, but names no models")
    windows = {model.id: model.max_model_len for model in listed if isinstance(model.max_model_len, int)}
    owner = next((model.owned_by for model in listed if isinstance(model.owned_by, str)), "")
    return Probe(True, "answers", tuple(model.id for model in listed), windows, owner)


def read_chunk(data: bytes, extras: Sequence[str] = EXTRAS) -> Piece | None:
    """The piece in one event of a stream; None for the terminator [DONE]."""
    if data.strip() == b"[DONE]":
        return None
    return _piece(_decode(data), extras)


def read_whole(body: bytes, extras: Sequence[str] = EXTRAS) -> Piece:
    """The piece of a non-streaming reply. It must have a message; without a finish reason it counts as `stop`."""
    document = _decode(body)
    for choice in document.choices or ():
        if choice.message:
            break
    else:
        raise Fault(FaultKind.MALFORMED)
    piece = _piece(document, extras)
    return piece if piece.finish_reason else msgspec.structs.replace(piece, finish_reason="stop")


def _decode(data: bytes) -> _Document:
    try:
        document = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Fault(FaultKind.MALFORMED) from None
    if document.error or document.object == "error":  # older versions of vLLM send the error itself
        raise classify_error_object(document.error or {"code": document.code, "message": document.message})
    return document


def _piece(document: _Document, extras: Sequence[str]) -> Piece:
    calls: list[ToolCallPart] = []
    passed_on = NO_EXTRAS
    content, finish, has_begun = "", None, False
    for choice in document.choices or ():
        if choice.index not in (0, None):  # not a set: the value may be unhashable
            continue
        if delta := choice.delta or choice.message:
            text = delta.content
            content += text if isinstance(text, str) else _text(text)
            if delta.tool_calls or delta.function_call is not None:
                calls += _calls(delta, is_whole=choice.delta is None)
            has_any = delta.refusal or delta.reasoning_content or delta.reasoning or delta.reasoning_details
            if (has_any or isinstance(text, list)) and (given := _extras(delta)):
                passed_on = {**passed_on, **{name: given[name] for name in given if name in extras}}
                has_begun = True
            has_begun = has_begun or bool(content or calls)
        reason, native_reason = choice.finish_reason, choice.native_finish_reason
        if (reason and reason in FAILURES) or (native_reason and native_reason in FAILURES):
            raise Fault(FaultKind.FAILED)
        if reason and isinstance(reason, str):
            finish = "length" if reason == CUT else reason
    counts = document.usage
    if not counts and counts in (None, {}):
        counts = _usage_elsewhere(document)
    usage = _usage(counts) if counts else None
    has_bad_usage = usage is None and counts not in (None, {})
    has_begun = has_begun or finish is not None
    return Piece(content, finish, usage, has_bad_usage, has_begun, tuple(calls), passed_on)


def _text(content: object) -> str:
    """Content is a string or a list of parts. Parts that are not text, and content of any other type, are ignored."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def _extras(delta: _Delta) -> dict[str, Any]:
    """A refusal or reasoning, if the delta has any. Mistral puts reasoning into parts of the content."""
    extras: dict[str, Any] = {}
    for name in ("refusal", "reasoning_content", "reasoning"):
        if (text := getattr(delta, name)) and isinstance(text, str):
            extras[name] = text
    if delta.reasoning_details and isinstance(delta.reasoning_details, list):
        extras["reasoning_details"] = delta.reasoning_details
    if isinstance(delta.content, list):
        thoughts = [part.get("thinking") for part in delta.content if isinstance(part, dict)]
        if text := "".join(map(_text, thoughts)):
            extras.setdefault("reasoning_content", text)
    return extras


def _calls(delta: _Delta, *, is_whole: bool) -> list[ToolCallPart]:
    """The calls, or parts of calls. In a whole message the position of a call is its index."""
    given = delta.tool_calls
    if given and isinstance(given, dict):  # TGI sends one, not a list
        given = [given]
    if given and isinstance(given, list):
        parts = [_call(item) for item in given if isinstance(item, dict)]
        return [msgspec.structs.replace(part, index=index) for index, part in enumerate(parts)] if is_whole else parts
    if isinstance(delta.function_call, dict):  # the older form: one call, without an id
        return [_call({"index": 0, "function": delta.function_call})]
    return []


def _call(item: dict[str, Any]) -> ToolCallPart:
    is_custom = isinstance(item.get("custom"), dict)
    given = item["custom"] if is_custom else item.get("function")
    given = given if isinstance(given, dict) else {}
    index, call_id, extra_content = item.get("index"), item.get("id"), item.get("extra_content")
    name, arguments = given.get("name"), given.get("input" if is_custom else "arguments")
    if isinstance(arguments, dict | list):
        arguments = msgspec.json.encode(arguments).decode()
    return ToolCallPart(
        index=index if isinstance(index, int) and not isinstance(index, bool) else None,
        id=call_id if isinstance(call_id, str) else "",
        name=name if isinstance(name, str) else "",
        arguments=arguments if isinstance(arguments, str) else "",
        type="custom" if is_custom else "function",
        extra_content=extra_content if extra_content and isinstance(extra_content, dict) else None,
    )


def _usage_elsewhere(document: _Document) -> object:
    """Kimi counts in the choice, and Groq once did so in a field of its own."""
    if isinstance(document.x_groq, dict) and "usage" in document.x_groq:
        return document.x_groq["usage"]
    for choice in document.choices or ():
        if choice.usage:
            return choice.usage
    return None


def _usage(value: object) -> Usage | None:
    """The token counts; None if they are not valid."""
    given = value if isinstance(value, dict) else {}
    prompt, completion = given.get("prompt_tokens"), given.get("completion_tokens")
    if not (type(prompt) is type(completion) is int and 0 <= prompt < COUNT_MAX and 0 <= completion < COUNT_MAX):
        return None
    if FURTHER_COUNTS.isdisjoint(given):
        return Usage(prompt, completion)
    cached = _cached(given)
    return Usage(prompt, completion, cached if cached < prompt else prompt, completion_details=_details(given))


def _cached(given: dict[str, Any]) -> int:
    for name in CACHED_DETAILS:
        details = given.get(name)
        if isinstance(details, dict) and (count := _count(details.get("cached_tokens"))):
            return count
    for name in CACHED:
        if name in given and (count := _count(given[name])):
            return count
    return 0


def _details(given: dict[str, Any]) -> dict[str, int] | None:
    """The details of the completion. SGLang has its count of reasoning tokens outside of them."""
    details = given.get("completion_tokens_details")
    if not isinstance(details, dict):
        if "reasoning_tokens" not in given:
            return None
        details = {"reasoning_tokens": given["reasoning_tokens"]}
    known = ("reasoning_tokens", "audio_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
    return {name: count for name in known if (count := _count(details.get(name))) is not None} or None


def _count(value: object) -> int | None:
    """A plausible token count, zero included; else None."""
    return value if type(value) is int and 0 <= value < COUNT_MAX else None
