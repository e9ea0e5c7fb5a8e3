"""What an OpenAI-compatible upstream says -> pieces. The quirks of all dialects end here.

Decoding is lenient in what is not needed and strict in what is: anything that is not an answer is a Fault.
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
COUNT_MAX = 1 << 40  # more tokens than any reply can have; a larger count is no count


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


class _Said(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Said)


def read_chunk(data: bytes) -> Piece | None:
    """One event of a stream; None for its terminator."""
    if data.strip() == b"[DONE]":
        return None
    return _piece(_decode(data))


class ChunkReader:
    """Reads the events of one stream. Most differ from the one before in nothing but their content.

    What stood before and after the content of the last event that was decoded is kept: an event that has the same
    around a text without escapes means the same, and need not be decoded again (1.3 µs in place of 3.5).
    """

    def __init__(self) -> None:
        self._before = self._after = b""  # around the text of an event, as it comes over the wire

    def text_of(self, read: bytes) -> str | None:
        """The text, where what was read is one whole event like the last one. Plain text ends no line, and no event."""
        before, after = self._before, self._after
        if not (before and read.startswith(before) and read.endswith(after)):
            return None
        start, end = len(before), len(read) - len(after)
        if start >= end or not PLAIN_TEXT.fullmatch(read, start, end):
            return None
        try:
            return read[start:end].decode()
        except UnicodeDecodeError:
            return None

    def read(self, data: bytes) -> Piece | None:
        text = self.text_of(write_event(data))
        if text is not None:
            return Piece(text, has_begun=True)
        piece = read_chunk(data)
        if piece and piece.content and PLAIN_CONTENT.fullmatch(piece.content):
            self._learn(data, piece)
        return piece

    def _learn(self, data: bytes, piece: Piece) -> None:
        """Only from an event that says one text, once, in one line, and nothing else; escapes may hide names."""
        name = b'"content":"' if b'"content":"' in data else b'"content": "'
        written = name + piece.content.encode() + b'"'
        is_only_text = not (piece.finish_reason or piece.usage or piece.has_bad_usage or piece.calls)
        is_plain = b"\\" not in data and b"\n" not in data
        is_once = data.count(written) == 1 and data.count(b'"content"') == 1 and b'"message"' not in data
        if is_only_text and is_plain and is_once:
            start = data.index(written) + len(name)
            self._before = b"data: " + data[:start]
            self._after = data[start + len(written) - len(name) - 1 :] + b"\n\n"


def read_whole(body: bytes) -> Piece:
    """A non-streaming reply: it must have a choice, and is finished even where it does not say how."""
    said = _decode(body)
    if not any(choice.message for choice in said.choices or ()):
        raise Fault(FaultKind.MALFORMED)
    piece = _piece(said)
    return msgspec.structs.replace(piece, finish_reason=piece.finish_reason or "stop")


def _decode(data: bytes) -> _Said:
    try:
        said = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Fault(FaultKind.MALFORMED) from None
    if said.error:
        raise _said_error(said.error)
    return said


def _piece(said: _Said) -> Piece:
    content, calls, finish, has_begun = "", list[ToolCallPart](), None, False
    for choice in said.choices or ():
        if choice.index not in (0, None):  # not a set: it may be anything
            continue
        if delta := choice.delta or choice.message:
            content += _text(delta.content)
            calls += _calls(delta, is_whole=choice.delta is None)
            has_begun = has_begun or bool(content or calls or delta.reasoning_content or delta.reasoning)
        if choice.finish_reason and isinstance(choice.finish_reason, str):
            finish = choice.finish_reason
    usage = _usage(said.usage) if said.usage else None
    has_bad_usage = usage is None and said.usage not in (None, {})
    has_begun = has_begun or finish is not None
    return Piece(content, finish, usage, has_bad_usage=has_bad_usage, has_begun=has_begun, calls=tuple(calls))


def _text(content: object) -> str:
    """Content is a string, or parts some of which are text; whatever else stands there is not for the client."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def _calls(delta: _Delta, *, is_whole: bool) -> list[ToolCallPart]:
    """The calls, or parts of calls. In a whole message the place of each says which it is."""
    if delta.tool_calls and isinstance(delta.tool_calls, list):
        parts = [_call(item, item.get("function")) for item in delta.tool_calls if isinstance(item, dict)]
        return [msgspec.structs.replace(part, index=place) for place, part in enumerate(parts)] if is_whole else parts
    if isinstance(delta.function_call, dict):  # the form before tools: one call, without an id
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


def _usage(said: object) -> Usage | None:
    """The counts, if that is what they are."""
    given = said if isinstance(said, dict) else {}
    prompt, completion = _count(given.get("prompt_tokens")), _count(given.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    details = given.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    cached = cached or _count(given.get("prompt_cache_hit_tokens")) or 0
    return Usage(
        prompt, completion, min(cached, prompt), completion_details=_details(given.get("completion_tokens_details"))
    )


def _details(said: object) -> dict[str, int] | None:
    if not isinstance(said, dict):
        return None
    known = ("reasoning_tokens", "audio_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
    return {name: count for name in known if (count := _count(said.get(name))) is not None} or None


def _count(value: object) -> int | None:
    """A token count that can be true; zero is one."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < COUNT_MAX:
        return value
    return None


def _said_error(error: object) -> Fault:
    """An error inside a 200: some carry the status that they should have been sent with."""
    code = error.get("code") or error.get("status") if isinstance(error, dict) else None
    said = str(code)
    return classify_status(int(said) if STATUS.fullmatch(said) else 500)
