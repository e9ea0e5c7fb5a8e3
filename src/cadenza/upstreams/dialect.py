"""Decodes the JSON of an OpenAI-compatible upstream into pieces. No other module knows the quirks of the dialects.

Decoding is lenient about fields that we do not need and strict about the rest: JSON that is not an answer is a Fault.
"""

import re
from typing import Any

import msgspec

from cadenza.core.records import Usage
from cadenza.core.tool_calls import ToolCallPart
from cadenza.http.events import write_event
from cadenza.upstreams.base import Fault, FaultKind, Piece, classify_status

STATUS = re.compile(r"[45][0-9]{2}", re.ASCII)
PLAIN_TEXT = re.compile(rb'[^"\\\x00-\x1f]+')
PLAIN_CONTENT = re.compile(r'[^"\\\x00-\x1f]+')
COUNT_MAX = 1 << 40  # more tokens than any reply can have; a count this large is invalid


class _Delta(msgspec.Struct):
    content: Any = None
    tool_calls: Any = None
    function_call: Any = None
    reasoning_content: Any = None
    reasoning: Any = None


class _Choice(msgspec.Struct):
    index: Any = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Any = None


class _Document(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Document)


def read_chunk(data: bytes) -> Piece | None:
    """The piece in one event of a stream; None for the terminator [DONE]."""
    if data.strip() == b"[DONE]":
        return None
    return _piece(_decode(data))


class ChunkReader:
    """Reads the events of one stream. Most of them differ from the previous one only in their text.

    The bytes before and after the text of the last decoded event are kept. An event with the same bytes around a text
    without escapes means the same and is not decoded (1.3 µs instead of 3.5).
    """

    def __init__(self) -> None:
        self._before = self._after = b""  # around the text of an event, as it stands on the wire
        self._between = b""  # the end of one event and the start of the next

    def recognise(self, data: bytes) -> list[str] | None:
        """The texts, if the data is whole events that differ from the last decoded one only in their text.

        Such a text has no control characters, so it cannot contain the end of a line or of an event.
        """
        before, after = self._before, self._after
        if not (before and data.startswith(before) and data.endswith(after)):
            return None
        start, end = len(before), len(data) - len(after)
        try:
            if start < end and PLAIN_TEXT.fullmatch(data, start, end):
                return [data[start:end].decode()]
            texts = data[start:end].decode().split(self._between.decode())
        except UnicodeDecodeError:
            return None
        return texts if all(map(PLAIN_CONTENT.fullmatch, texts)) else None

    def read(self, data: bytes) -> Piece | None:
        """The piece in one event; None for the terminator."""
        texts = self.recognise(write_event(data))
        if texts and len(texts) == 1:
            return Piece(texts[0], has_begun=True)
        piece = read_chunk(data)
        if piece and piece.content and PLAIN_CONTENT.fullmatch(piece.content):
            self._learn(data, piece)
        return piece

    def _learn(self, data: bytes, piece: Piece) -> None:
        """Keep the bytes around the text, if the event has one line and nothing but one text.

        An event with escapes is not used: an escaped field name could be mistaken for another one.
        """
        name = b'"content":"' if b'"content":"' in data else b'"content": "'
        written = name + piece.content.encode() + b'"'
        is_only_text = not (piece.finish_reason or piece.usage or piece.has_bad_usage or piece.calls)
        is_plain = b"\\" not in data and b"\n" not in data
        is_once = data.count(written) == 1 and data.count(b'"content"') == 1 and b'"message"' not in data
        if is_only_text and is_plain and is_once:
            start = data.index(written) + len(name)
            self._before = b"data: " + data[:start]
            self._after = data[start + len(written) - len(name) - 1 :] + b"\n\n"
            self._between = self._after + self._before


def read_whole(body: bytes) -> Piece:
    """The piece of a non-streaming reply. It must have a message; without a finish reason it counts as `stop`."""
    document = _decode(body)
    if not any(choice.message for choice in document.choices or ()):
        raise Fault(FaultKind.MALFORMED)
    piece = _piece(document)
    return msgspec.structs.replace(piece, finish_reason=piece.finish_reason or "stop")


def _decode(data: bytes) -> _Document:
    try:
        document = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Fault(FaultKind.MALFORMED) from None
    if document.error:
        raise _classify_error(document.error)
    return document


def _piece(document: _Document) -> Piece:
    content, calls, finish, has_begun = "", list[ToolCallPart](), None, False
    for choice in document.choices or ():
        if choice.index not in (0, None):  # not a set: the value may be unhashable
            continue
        if delta := choice.delta or choice.message:
            content += _text(delta.content)
            calls += _calls(delta, is_whole=choice.delta is None)
            has_begun = has_begun or bool(content or calls or delta.reasoning_content or delta.reasoning)
        if choice.finish_reason and isinstance(choice.finish_reason, str):
            finish = choice.finish_reason
    usage = _usage(document.usage) if document.usage else None
    has_bad_usage = usage is None and document.usage not in (None, {})
    has_begun = has_begun or finish is not None
    return Piece(content, finish, usage, has_bad_usage=has_bad_usage, has_begun=has_begun, calls=tuple(calls))


def _text(content: object) -> str:
    """Content is a string or a list of parts. Parts that are not text, and content of any other type, are ignored."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def _calls(delta: _Delta, *, is_whole: bool) -> list[ToolCallPart]:
    """The calls, or parts of calls. In a whole message the position of a call is its index."""
    if delta.tool_calls and isinstance(delta.tool_calls, list):
        parts = [_call(item, item.get("function")) for item in delta.tool_calls if isinstance(item, dict)]
        return [msgspec.structs.replace(part, index=index) for index, part in enumerate(parts)] if is_whole else parts
    if isinstance(delta.function_call, dict):  # the older form: one call, without an id
        return [_call({"index": 0}, delta.function_call)]
    return []


def _call(item: dict[str, Any], function: object) -> ToolCallPart:
    given = function if isinstance(function, dict) else {}
    index, call_id, name, arguments = item.get("index"), item.get("id"), given.get("name"), given.get("arguments")
    if isinstance(arguments, dict | list):
        arguments = msgspec.json.encode(arguments).decode()
    return ToolCallPart(
        index=index if isinstance(index, int) and not isinstance(index, bool) else None,
        id=call_id if isinstance(call_id, str) else "",
        name=name if isinstance(name, str) else "",
        arguments=arguments if isinstance(arguments, str) else "",
    )


def _usage(value: object) -> Usage | None:
    """The token counts; None if they are not valid."""
    given = value if isinstance(value, dict) else {}
    prompt, completion = _count(given.get("prompt_tokens")), _count(given.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    details = given.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    cached = cached or _count(given.get("prompt_cache_hit_tokens")) or 0
    return Usage(
        prompt, completion, min(cached, prompt), completion_details=_details(given.get("completion_tokens_details"))
    )


def _details(value: object) -> dict[str, int] | None:
    if not isinstance(value, dict):
        return None
    known = ("reasoning_tokens", "audio_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
    return {name: count for name in known if (count := _count(value.get(name))) is not None} or None


def _count(value: object) -> int | None:
    """A plausible token count, zero included; else None."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < COUNT_MAX:
        return value
    return None


def _classify_error(error: object) -> Fault:
    """The fault for an error object in a 200 response. Some upstreams put the real status into it."""
    code = error.get("code") or error.get("status") if isinstance(error, dict) else None
    status = str(code)
    return classify_status(int(status) if STATUS.fullmatch(status) else 500)
