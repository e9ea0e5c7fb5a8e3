"""A reply in the form of Anthropic's Messages API: its content is a list of blocks, which are thinking, text and calls.

In a stream one block is open at a time, so calls come one after the other, and what a model says beside its calls
comes after them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from cadenza.core.chat import cost_object, text_of_extras
from cadenza.core.records import FinishReason, ReplyResult, Usage
from cadenza.core.tool_calls import ToolCallDelta, ToolCallNormalizer, ToolCallPart
from cadenza.gateway.answers import Answers
from cadenza.gateway.chunks import encode
from cadenza.gateway.meter import UsageMeter
from cadenza.gateway.relay import ReplyHead, StreamRelay, WholeRelay
from cadenza.http.exchange import Exchange
from cadenza.parts.protocols.translation import Kept

REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
TEXT, THINKING, CALL = "text", "thinking", "tool_use"  # the types of blocks
NO_TEXT = {"text": ""}
NOTHING_KEPT = Kept()
EVENT = b"event: %b\ndata: %b\n\n"
TEXT_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
    b'"delta":{"type":"text_delta","text":%%b}}\n\n'
)


class MessageEvents:
    """Encodes the events of one reply, and keeps which block is open."""

    content = b""  # a text in the open block

    def __init__(self, head: ReplyHead, prompt_tokens: int, kept: Kept) -> None:
        self._head = head
        self._kept = kept
        self._prompt_tokens = prompt_tokens
        self._index = -1
        self._stop_reason = ""
        self._is_refusal = False
        self._has_input = False  # the open call has arguments
        self.open_type = ""

    def role(self) -> bytes:
        """The tokens of the prompt are an estimate, which the end corrects."""
        message = message_object(self._head, [], None, Usage(self._prompt_tokens, 0))
        return _event("message_start", {"message": message})

    def open(self, type_: str = TEXT, fields: Mapping[str, Any] = NO_TEXT) -> bytes:
        """Open a block, unless it is one of a text or of thinking and is open already."""
        if type_ == self.open_type and type_ != CALL:
            return b""
        closed = self.close()
        self._index += 1
        self.open_type = type_
        if type_ == TEXT:
            self.content = TEXT_DELTA % self._index
        block = {"index": self._index, "content_block": {"type": type_, **fields}}
        return closed + _event("content_block_start", block)

    def close(self) -> bytes:
        if not self.open_type:
            return b""
        signed = b""
        if self.open_type == THINKING:
            signed = self._delta("signature_delta", {"signature": self._head.completion_id})
        self.open_type = ""
        return signed + _event("content_block_stop", {"index": self._index})

    def call(self, delta: ToolCallDelta) -> bytes:
        """Anthropic's SDK raises an error if arguments begin with a part that is white space, so they begin without."""
        begun, arguments = b"", delta.arguments
        if delta.id:
            extra = {"extra_content": delta.extra_content} if delta.extra_content else {}
            _, name = self._kept.named(delta.name)
            begun = self.open(CALL, {"id": delta.id, "name": name, "input": {}, **extra})
            self._has_input = False
        if not self._has_input:
            arguments = arguments.lstrip()
        self._has_input = self._has_input or bool(arguments)
        return begun + (self._delta("input_json_delta", {"partial_json": arguments}) if arguments else b"")

    def extras(self, extras: Mapping[str, Any]) -> bytes:
        """Thinking. A refusal is a text, and the reason of the end."""
        data = b""
        if thinking := thinking_of(extras):
            data = self.open(THINKING, {"thinking": "", "signature": ""})
            data += self._delta("thinking_delta", {"thinking": thinking})
        if refusal := extras.get("refusal"):
            self._is_refusal = True
            data += self.open() + self.content % encode(refusal)
        return data

    def annotations(self, annotations: Sequence[Mapping[str, Any]]) -> bytes:
        """The sources of a text, if there was one: in a further block, if the model thought after it."""
        if not (annotations and self.content):
            return b""
        opened = self.open()
        return opened + b"".join(
            [self._delta("citations_delta", {"citation": citation_of(one)}) for one in annotations]
        )

    def finish(self, reason: FinishReason) -> bytes:
        """Claude Code asks again after a stream without any block, so an empty reply has one."""
        self._stop_reason = "refusal" if self._is_refusal else REASONS[reason]
        return (self.open() if self._index < 0 else b"") + self.close()

    def usage(self, usage: Usage, cost_nano: int | None) -> bytes:
        delta = {"stop_reason": self._stop_reason, "stop_sequence": None}
        ended = _event("message_delta", {"delta": delta, "usage": usage_object(usage, cost_nano)})
        return ended + _event("message_stop", {})

    def _delta(self, type_: str, fields: Mapping[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._index, "delta": {"type": type_, **fields}})


class CallsInTurn(ToolCallNormalizer):
    """The deltas of one call after those of the other: a call waits until the one before it is complete."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0
        self._waiting: dict[int, list[ToolCallDelta]] = {}  # by the index of their call

    def take(self, parts: Sequence[ToolCallPart]) -> list[ToolCallDelta]:
        return self._in_turn(super().take(parts))

    def finish(self) -> list[ToolCallDelta]:
        ready = self._in_turn(super().finish())
        return ready + [delta for _, deltas in sorted(self._waiting.items()) for delta in deltas]

    def _in_turn(self, deltas: list[ToolCallDelta]) -> list[ToolCallDelta]:
        """What follows a call that is complete is left out."""
        for delta in deltas:
            if delta.index >= self._turn:
                self._waiting.setdefault(delta.index, []).append(delta)
        ready: list[ToolCallDelta] = []
        while self._waiting:
            ready += self._waiting.pop(self._turn, ())
            if not self._calls[self._turn].is_whole:
                break
            self._turn += bool(self._waiting)
        return ready


class MessageStream(StreamRelay):
    """A stream. What else is said once a call has begun waits for the end of the calls."""

    def __init__(self, exchange: Exchange, answers: Answers, head: ReplyHead, meter: UsageMeter, kept: Kept) -> None:
        super().__init__(exchange, answers, head, meter)
        self._events: MessageEvents = MessageEvents(head, meter.prompt.rough, kept)
        self._calls = CallsInTurn() if head.has_tools else None
        self._shows_thinking = kept.shows_thinking
        self._later: list[Callable[[], None]] = []

    def take_texts(self, texts: list[str]) -> bool:
        if self._grounded or self._events.open_type == TEXT:
            return super().take_texts(texts)
        self._take_text("".join(texts))
        return self.flush()

    def _end(self) -> None:
        super()._end()
        if self._later:
            self._unsent.append((self._events.close(), ""))
        for say in self._later:
            say()

    def _take_text(self, text: str) -> None:
        opened = self._events.open_type
        if text and opened == CALL:
            self._later.append(partial(self._take_text, text))
            return
        if text and opened != TEXT:
            self._unsent.append((self._events.open(), ""))
        super()._take_text(text)

    def _take_extras(self, extras: Mapping[str, Any]) -> None:
        shown = {"refusal": extras.get("refusal") or ""}
        if self._shows_thinking:
            shown["reasoning_content"] = thinking_of(extras)
        if self._events.open_type == CALL:
            self._later.append(partial(self._take_extras, shown))
        elif text_of_extras(shown):
            super()._take_extras(shown)


class WholeMessage(WholeRelay):
    """A reply that is not a stream."""

    kept: Kept = NOTHING_KEPT

    def _joined_extras(self) -> dict[str, Any]:
        """Thinking that is hidden is not counted, as in a stream."""
        extras = super()._joined_extras()
        return extras if self.kept.shows_thinking else {name: extras[name] for name in extras.keys() & {"refusal"}}

    def finish(self, result: ReplyResult) -> None:
        message, head = self.message, self.head
        assert message
        assert result.finish_reason
        extras = msgspec.to_builtins(message)
        blocks = list[dict[str, Any]]()
        if thinking := thinking_of(extras):
            blocks.append({"type": THINKING, "thinking": thinking, "signature": head.completion_id})
        if text := (message.content or "") + (message.refusal or ""):
            blocks.append({"type": TEXT, "text": text})
            if citations := list(map(citation_of, extras.get("annotations", ()))):
                blocks[-1]["citations"] = citations
        blocks += [call_block(call, self.kept) for call in extras.get("tool_calls", ())]
        reason = "refusal" if message.refusal else REASONS[result.finish_reason]
        usage, cost_nano = result.usage, head.shown_cost_nano(result.usage)
        shown = message_object(head, blocks or [{"type": TEXT, "text": ""}], reason, usage, cost_nano)
        self.answers.send_json(encode(shown), head.headers)


def message_object(
    head: ReplyHead, blocks: list[dict[str, Any]], reason: str | None, usage: Usage, cost_nano: int | None = None
) -> dict[str, Any]:
    return {
        "id": head.completion_id,
        "type": "message",
        "role": "assistant",
        "model": head.class_id,
        "content": blocks,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": usage_object(usage, cost_nano),
    }


def usage_object(usage: Usage, cost_nano: int | None = None) -> dict[str, Any]:
    """The prompt's tokens without those that were cached, which are counted beside them."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        **cost_object(cost_nano),
    }


def thinking_of(extras: Mapping[str, Any]) -> str:
    return str(extras.get("reasoning_content") or extras.get("reasoning") or "")


def call_block(call: Mapping[str, Any], kept: Kept) -> dict[str, Any]:
    """A call. Arguments that are no JSON object, as of a call that was cut, are left out."""
    called, arguments = call[call["type"]], dict[str, Any]()
    with suppress(msgspec.DecodeError, RecursionError):
        arguments = msgspec.json.decode(called.get("arguments", ""), type=dict[str, Any])
    _, name = kept.named(called["name"])
    block = {"type": CALL, "id": call["id"], "name": name, "input": arguments}
    return block | {"extra_content": call["extra_content"]} if "extra_content" in call else block


def citation_of(annotation: Mapping[str, Any]) -> dict[str, Any]:
    cited, no_quote = annotation["url_citation"], {"cited_text": "", "encrypted_index": ""}
    return {"type": "web_search_result_location", "url": cited["url"], "title": cited["title"], **no_quote}


def _event(type_: str, fields: Mapping[str, Any]) -> bytes:
    return EVENT % (type_.encode(), encode({"type": type_, **fields}))
