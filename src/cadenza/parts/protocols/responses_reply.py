"""A reply in the form of OpenAI's Responses API: items, and the events by which they grow.

Both relays build it with `ResponseEvents`, so a stream and a reply that is sent whole have the same items.
"""

from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import Any

import msgspec

from cadenza.core.chat import cost_object, text_of_extras
from cadenza.core.content import Content
from cadenza.core.errors import CadenzaError
from cadenza.core.records import FinishReason, ReplyResult, Usage
from cadenza.core.tool_calls import ToolCallDelta, ToolCallNormalizer
from cadenza.gateway.answers import Answers, ErrorShape, error_object
from cadenza.gateway.chunks import encode
from cadenza.gateway.meter import UsageMeter
from cadenza.gateway.relay import ReplyHead, StreamRelay, WholeRelay, join_extras
from cadenza.http.exchange import Exchange
from cadenza.parts.protocols.responses_request import REASONING, wrap_reasoning
from cadenza.parts.protocols.translation import Kept
from cadenza.upstreams.base import Piece

CODES = {"rate_limit_error": "rate_limit_exceeded", "insufficient_quota": "insufficient_quota"}
CODES |= {"invalid_request_error": "invalid_prompt", "context_length_exceeded": "context_length_exceeded"}
REASONS: Mapping[FinishReason, bytes] = {"length": b"max_output_tokens", "content_filter": b"content_filter"}
# By the type of a text that grows: how its events begin, and the field that has it whole.
TEXTS = {
    b"output_text": (b"response.output_text", b"text"),
    b"refusal": (b"response.refusal", b"refusal"),
    b"reasoning_text": (b"response.reasoning_text", b"text"),
    b"function_call": (b"response.function_call_arguments", b"arguments"),
    b"custom_tool_call": (b"response.custom_tool_call_input", b"input"),
}
PREFIXES = {b"message": b"msg", b"reasoning": b"rs", b"function_call": b"fc", b"custom_tool_call": b"ctc"}  # of ids
LOGPROBS = {b"output_text": b',"logprobs":[]'}
DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(("instructions", "max_output_tokens", "previous_response_id", "temperature", "top_p", "user")),
    "background": False,
    "metadata": {},
    "parallel_tool_calls": True,
    "store": False,
    "truncation": "disabled",
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
}
USUAL = encode(DEFAULTS)[1:]
# Most of a stream is written with these, because to encode a dict for each event would take a third more.
EVENT = b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n'
DELTA = b'event: %b.delta\ndata: {"type":"%b.delta",%b%b,"sequence_number":%%d,"delta":%%b}\n\n'
RESPONSE = b'%b,"status":"%b","error":%b,"incomplete_details":%b,"output":[%b],"usage":%b,%b'


class GrowingText(Content, msgspec.Struct, eq=False):
    """A text of an item that grows: the format of the events that extend it, and what was written."""

    type: bytes
    place: bytes  # the fields that say which text it is
    delta: bytes  # a format for the sequence number and the JSON of the text
    written: StringIO
    write: Callable[[str], object]
    ended: bytes = b""  # the JSON of the whole text, once it has ended

    @classmethod
    def at(cls, type_: bytes, place: bytes) -> "GrowingText":
        name, _ = TEXTS[type_]
        written = StringIO()
        delta = DELTA % (name, name, place, LOGPROBS.get(type_, b""))
        return cls(type_, place, delta, written, written.write)

    def whole(self) -> bytes:
        return self.ended or encode(self.written.getvalue())


class OutputItem(Content, msgspec.Struct, eq=False):
    """An item of the reply. Its JSON is `shown` as long as it grows, and `done` afterwards."""

    type: bytes
    id: bytes
    index: int
    texts: list[GrowingText] = []
    call: bytes = b""  # the fields of a call
    extra_content: bytes = b""
    reasoning: dict[str, list[Any]] = {}  # as the upstream gave it, in parts
    annotations: bytes = b"[]"
    done: bytes | None = None

    def shown(self, status: bytes, *, is_encrypted: bool = False) -> bytes:
        start = b'{"id":"%b","type":"%b","status":"%b"' % (self.id, self.type, status)
        if self.type in TEXTS:
            _, field = TEXTS[self.type]
            return start + b'%b%b,"%b":%b}' % (self.call, self.extra_content, field, self.texts[0].whole())
        content = b",".join([self.part(text, text.whole()) for text in self.texts])
        if self.type == b"message":
            return start + b',"role":"assistant","content":[%b]}' % content
        secret = (
            b',"encrypted_content":%b' % encode(wrap_reasoning(join_extras(self.reasoning))) if is_encrypted else b""
        )
        return start + b',"summary":[],"content":[%b]%b}' % (content, secret)

    def part(self, text: GrowingText, whole: bytes) -> bytes:
        _, field = TEXTS[text.type]
        more = b',"annotations":%b,"logprobs":[]' % self.annotations if text.type in LOGPROBS else b""
        return b'{"type":"%b","%b":%b%b}' % (text.type, field, whole, more)


class ResponseEvents:
    """Encodes the events of one response, and keeps its items for those at the end.

    Reasoning ends when something else begins. A message and calls end with the reply, because their parts may come in
    any order.
    """

    content = b""  # `texts` encodes them instead

    def __init__(self, completion_id: str, created: int, model: str, kept: Kept) -> None:
        self._id = completion_id.removeprefix("chatcmpl-").encode()
        head = b'{"id":"resp_%b","object":"response","created_at":%d,"model":%b'
        self._head = head % (self._id, created, encode(model))
        self._rest = encode({**DEFAULTS, **kept.echo})[1:] if kept.echo else USUAL
        self._kept = kept
        self.sequence = 0
        self._items: list[OutputItem] = []
        self._message: OutputItem | None = None
        self.text: GrowingText | None = None  # of the message
        self._refusal: GrowingText | None = None
        self._reasoning: OutputItem | None = None
        self._calls: dict[int, OutputItem] = {}
        self._cut_by: bytes | None = None  # why the reply is incomplete

    def role(self) -> bytes:
        response = b'"response":' + self._response(b"in_progress")
        return self._event(b"response.created", response) + self._event(b"response.in_progress", response)

    def texts(self, texts: list[str]) -> bytes:
        """The text of the message continues."""
        if (text := self.text) is None:
            begun = self._open_message()
            self.text, added = self._add_text(self._message, b"output_text")
            return begun + added + self.texts(texts)
        number = self.sequence
        self.sequence = number + len(texts)
        text.write("".join(texts))
        return b"".join([text.delta % numbered for numbered in enumerate(map(encode, texts), number)])

    def extend(self, text: GrowingText, more: str) -> bytes:
        number = self.sequence
        self.sequence = number + 1
        text.write(more)
        return text.delta % (number, encode(more))

    def extras(self, extras: Mapping[str, Any]) -> bytes:
        """A refusal or reasoning."""
        data = b""
        if fields := {name: value for name, value in extras.items() if name in REASONING and value}:
            data = self._reason(fields)
        if refusal := extras.get("refusal"):
            data += self._open_message()
            if self._refusal is None:
                self._refusal, added = self._add_text(self._message, b"refusal")
                data += added
            data += self.extend(self._refusal, refusal)
        return data

    def call(self, delta: ToolCallDelta) -> bytes:
        data, item = b"", self._calls.get(delta.index)
        if item is None:
            data = self._close_reasoning()
            item = self._calls[delta.index] = self._item(
                b"custom_tool_call" if delta.type == "custom" else b"function_call"
            )
            namespace, name = self._kept.named(delta.name)
            fields = {"call_id": delta.id, "name": name, **({"namespace": namespace} if namespace else {})}
            item.call = b"," + encode(fields)[1:-1]
            item.texts.append(GrowingText.at(item.type, b'"item_id":"%b","output_index":%d' % (item.id, item.index)))
            data += self._add(item)
        if delta.extra_content:
            item.extra_content = b',"extra_content":' + encode(delta.extra_content)
        return data + (self.extend(item.texts[0], delta.arguments) if delta.arguments else b"")

    def replace_text(self, text: str) -> None:
        """The text of the message, if it has one, is this instead."""
        if self.text:
            self.text.written = StringIO(text)

    def annotations(self, annotations: Sequence[Mapping[str, Any]]) -> bytes:
        """The sources of the message."""
        if self.text is None or self._message is None:
            return b""
        shown = [encode({"type": one["type"], **one["url_citation"]}) for one in annotations]
        self._message.annotations = b"[%b]" % b",".join(shown)
        fields = b'%b,"annotation_index":%d,"annotation":%b'
        numbered = [fields % (self.text.place, number, one) for number, one in enumerate(shown)]
        return b"".join([self._event(b"response.output_text.annotation.added", one) for one in numbered])

    def finish(self, reason: FinishReason) -> bytes:
        """The ends of all items, except calls that may be cut: no client is to make them."""
        self._cut_by = REASONS.get(reason)
        status = b"incomplete" if self._cut_by else b"completed"
        still_open = [item for item in self._items if item.done is None]
        return b"".join([self._close(item, status) for item in still_open if not (self._cut_by and item.type in TEXTS)])

    def usage(self, usage: Usage, cost_nano: int | None) -> bytes:
        """The last event, with the whole response."""
        name = b"response.incomplete" if self._cut_by else b"response.completed"
        return self._event(name, b'"response":' + self.whole(usage, cost_nano))

    def whole(self, usage: Usage, cost_nano: int | None) -> bytes:
        """The response, after `finish`."""
        shown = encode(usage_of(usage, cost_nano))
        if self._cut_by:
            return self._response(b"incomplete", details=b'{"reason":"%b"}' % self._cut_by, usage=shown)
        return self._response(b"completed", usage=shown)

    def failed(self, error: CadenzaError, _request_id: str) -> bytes:
        """The newline ends an event that may be unfinished.

        The first event has the error as it is published, and as an object, which SDKs raise. Codex reads the second.
        """
        code = CODES.get(error.message.partition(":")[0]) or CODES.get(error.type, "server_error")
        shown = {"code": code, "message": error.message}
        published = {**shown, "param": None}
        raised = self._event(b"error", encode({**published, "error": {"type": error.type, **published}})[1:-1])
        response = self._response(b"failed", error=encode(shown))
        return b"\n" + raised + self._event(b"response.failed", b'"response":' + response)

    def _response(
        self, status: bytes, error: bytes = b"null", details: bytes = b"null", usage: bytes = b"null"
    ) -> bytes:
        is_encrypted = self._kept.is_encrypted
        output = [item.done or item.shown(b"incomplete", is_encrypted=is_encrypted) for item in self._items]
        return RESPONSE % (self._head, status, error, details, b",".join(output), usage, self._rest)

    def _event(self, name: bytes, fields: bytes) -> bytes:
        number = self.sequence
        self.sequence = number + 1
        return EVENT % (name, name, number, fields)

    def _item(self, type_: bytes) -> OutputItem:
        index = len(self._items)
        return OutputItem(type_, b"%b_%b%d" % (PREFIXES[type_], self._id, index), index)

    def _add(self, item: OutputItem) -> bytes:
        self._items.append(item)
        fields = b'"output_index":%d,"item":%b' % (item.index, item.shown(b"in_progress"))
        return self._event(b"response.output_item.added", fields)

    def _open_message(self) -> bytes:
        if self._message:
            return b""
        closed = self._close_reasoning()
        self._message = self._item(b"message")
        return closed + self._add(self._message)

    def _reason(self, fields: Mapping[str, Any]) -> bytes:
        data, item = b"", self._reasoning
        if item is None:
            item = self._reasoning = self._item(b"reasoning")
            data = self._add(item)
        if self._kept.is_encrypted:
            for name, value in fields.items():
                item.reasoning.setdefault(name, []).append(value)
        if text := text_of_extras(fields):
            if not item.texts:
                data += self._add_text(item, b"reasoning_text")[1]
            data += self.extend(item.texts[0], text)
        return data

    def _add_text(self, item: OutputItem | None, type_: bytes) -> tuple[GrowingText, bytes]:
        """Another part of the item's content."""
        assert item
        place = b'"item_id":"%b","output_index":%d,"content_index":%d' % (item.id, item.index, len(item.texts))
        text = GrowingText.at(type_, place)
        item.texts.append(text)
        return text, self._event(b"response.content_part.added", b'%b,"part":%b' % (place, item.part(text, b'""')))

    def _close_reasoning(self) -> bytes:
        item, self._reasoning = self._reasoning, None
        return self._close(item, b"completed") if item else b""

    def _close(self, item: OutputItem, status: bytes) -> bytes:
        data = list[bytes]()
        for text in item.texts:
            text.ended, (name, field) = text.whole(), TEXTS[text.type]
            fields = b'%b,"%b":%b%b' % (text.place, field, text.ended, LOGPROBS.get(text.type, b""))
            data.append(self._event(name + b".done", fields))
            if item.type not in TEXTS:
                part = b'%b,"part":%b' % (text.place, item.part(text, text.ended))
                data.append(self._event(b"response.content_part.done", part))
        item.done = item.shown(status, is_encrypted=self._kept.is_encrypted)
        fields = b'"output_index":%d,"item":%b' % (item.index, item.done)
        return b"".join([*data, self._event(b"response.output_item.done", fields)])


def usage_of(usage: Usage, cost_nano: int | None) -> dict[str, Any]:
    details = usage.completion_details or {}
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},  # the SDK declares it
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": details.get("reasoning_tokens", 0)},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        **cost_object(cost_nano),
    }


class StreamedResponse(StreamRelay):
    """A stream. After a fault it ends with `response.failed`."""

    def __init__(self, exchange: Exchange, answers: Answers, head: ReplyHead, meter: UsageMeter, kept: Kept) -> None:
        super().__init__(exchange, answers, head, meter)
        self._events: ResponseEvents = ResponseEvents(head.completion_id, head.created, head.class_id, kept)
        answers.errors = ErrorShape(error_object, self._events.failed)

    def _take_text(self, text: str) -> None:
        if not text:
            return
        events, growing = self._events, self._events.text
        if growing is None:
            data = events.texts([text])
        else:  # as in `extend`, without its call: most of a burst comes here
            number = events.sequence
            events.sequence = number + 1
            growing.write(text)
            data = growing.delta % (number, encode(text))
        self._unsent.append((data, text))

    def take_texts(self, texts: list[str]) -> bool:
        if self._grounded is not None:
            return super().take_texts(texts)
        events = self._events
        if events.text and len(texts) == 1:  # as most are
            return self._send(events.extend(events.text, texts[0]), texts[0])
        return self._send(events.texts(texts), "".join(texts))


class WholeResponse(WholeRelay, eq=False, kw_only=True):
    """A response that is sent whole: the items of the stream that it would be."""

    events: ResponseEvents
    normalizer: ToolCallNormalizer
    deltas: list[ToolCallDelta] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, kept: Kept, answers: Answers, head: ReplyHead, meter: UsageMeter) -> "WholeResponse":
        events = ResponseEvents(head.completion_id, head.created, head.class_id, kept)
        return cls(answers, head, meter, events=events, normalizer=ToolCallNormalizer())

    def take(self, piece: Piece) -> None:
        super().take(piece)
        if piece.extras:
            self.events.extras(piece.extras)
        if piece.content:
            self.events.texts([piece.content])
        if piece.calls and self.head.has_tools:
            self._take_calls(self.normalizer.take(piece.calls))

    def take_texts(self, texts: list[str]) -> bool:
        self.events.texts(texts)
        return super().take_texts(texts)

    def finish(self, result: ReplyResult) -> None:
        assert self.message
        if self.head.grounding.answer:
            self.events.replace_text(self.message.content or "")
        self.events.annotations(self.message.annotations or ())
        assert result.finish_reason
        self.events.finish(result.finish_reason)
        response = self.events.whole(result.usage, self.head.shown_cost_nano(result.usage))
        self.answers.send_json(response, self.head.headers)

    def _calls(self) -> list[ToolCallDelta]:
        self._take_calls(self.normalizer.finish())
        return self.deltas

    def _take_calls(self, deltas: list[ToolCallDelta]) -> None:
        self.deltas += deltas
        for delta in deltas:
            self.events.call(delta)
