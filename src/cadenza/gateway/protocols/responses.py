"""POST /v1/responses: a chat whose request and reply have the forms of OpenAI's Responses API. Nothing is stored.

`responses_body.py` translates the request, `serve_chat` serves it, and the relays here write the reply. Both of them
build it with `ResponseEvents`, so a stream and a reply that is sent whole have the same items.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import StringIO
from typing import Any

import msgspec

from cadenza import clock
from cadenza.core.chat import new_completion_id, text_of_extras
from cadenza.core.content import Content
from cadenza.core.errors import CadenzaError, InvalidRequest
from cadenza.core.money import format_dollars
from cadenza.core.records import AUTO, FinishReason, ReplyResult, Usage
from cadenza.core.tool_calls import ToolCallDelta, ToolCallNormalizer
from cadenza.gateway.answers import Answers, ErrorShape, error_object
from cadenza.gateway.chat import serve_chat
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.meter import UsageMeter
from cadenza.gateway.protocols.chat import encode
from cadenza.gateway.protocols.reading import read_translated
from cadenza.gateway.protocols.responses_body import REASONING, Kept, wrap_reasoning
from cadenza.gateway.relay import ReplyHead, StreamRelay, WholeRelay
from cadenza.gateway.request import ApiRequest
from cadenza.http.exchange import Exchange
from cadenza.upstreams.base import Piece

KEPT = msgspec.json.Decoder(Kept)
OWN_NAMES = {"max_tokens": "max_output_tokens", "messages": "input", "response_format": "text.format"}  # by the chat's
CODES = {"rate_limit_error": "rate_limit_exceeded", "insufficient_quota": "insufficient_quota"}
CODES |= {"invalid_request_error": "invalid_prompt", "context_length_exceeded": "context_length_exceeded"}
REASONS: Mapping[FinishReason, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
# By the type of a text that grows: how its events begin, and the field that has it whole.
TEXTS = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
LOGPROBS: Mapping[str, Mapping[str, Any]] = {"output_text": {"logprobs": []}}
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


async def serve_responses(gateway: Gateway, request: ApiRequest) -> None:
    try:
        request, raw = await read_translated(gateway, request, "responses")  # 415 413 402 408 400 429
        kept, chat = KEPT.decode(raw), request.chat
        assert chat
        request.answers.errors = ErrorShape(error_object, partial(early_failure, chat.model or AUTO, kept))
        stream, whole = partial(StreamedResponse, kept=kept), partial(WholeResponse.of, kept)
        await serve_chat(gateway, msgspec.structs.replace(request, make_stream_relay=stream, make_whole_relay=whole))
    except InvalidRequest as error:
        name, colon, rest = error.message.partition(":")
        error.message = OWN_NAMES.get(name, name) + colon + rest
        raise


def early_failure(model: str, kept: Kept, error: CadenzaError, request_id: str) -> bytes:
    """The whole stream, if only pings were sent before the error."""
    now_ms = clock.now_ms()
    events = ResponseEvents(new_completion_id(now_ms), now_ms // 1000, model, kept)
    return events.role() + events.failed(error, request_id)


class GrowingText(Content, msgspec.Struct, eq=False):
    """A text of an item that grows: the format of the events that extend it, and what was written."""

    type: str
    place: dict[str, Any]  # the fields that say which text it is
    delta: bytes  # a format for the sequence number and the JSON of the text
    written: StringIO
    write: Callable[[str], object]

    @classmethod
    def at(cls, type_: str, place: dict[str, Any]) -> "GrowingText":
        name = f"{TEXTS[type_][0]}.delta"
        head = encode({"type": name, **place, **LOGPROBS.get(type_, {})})[:-1].replace(b"%", b"%%")
        delta = b"event: %b\ndata: %b" % (name.encode(), head) + b',"sequence_number":%d,"delta":%b}\n\n'
        written = StringIO()
        return cls(type_, place, delta, written, written.write)

    def whole(self) -> msgspec.Raw:
        return msgspec.Raw(encode(self.written.getvalue()))


class OutputItem(Content, msgspec.Struct, eq=False):
    """An item of the reply. Its JSON is `shown` as long as it grows, and `done` afterwards."""

    type: str
    id: str
    index: int
    texts: list[GrowingText] = []
    fields: dict[str, Any] = {}  # of a call: its id, name and namespace; of reasoning: what the upstream gave
    annotations: Sequence[Mapping[str, Any]] = ()
    done: msgspec.Raw | None = None

    def shown(self, status: str, *, is_encrypted: bool = False) -> dict[str, Any]:
        head = {"id": self.id, "type": self.type, "status": status}
        if self.type == "message":
            return {**head, "role": "assistant", "content": [self.part(text) for text in self.texts]}
        if self.type == "reasoning":
            secret = {"encrypted_content": wrap_reasoning(self.fields)} if is_encrypted else {}
            return {**head, "summary": [], "content": [self.part(text) for text in self.texts], **secret}
        return {**head, **self.fields, TEXTS[self.type][1]: self.texts[0].whole()}

    def part(self, text: GrowingText, whole: msgspec.Raw | None = None) -> dict[str, Any]:
        more = {"annotations": self.annotations, **LOGPROBS[text.type]} if text.type in LOGPROBS else {}
        return {"type": text.type, TEXTS[text.type][1]: text.whole() if whole is None else whole, **more}


class ResponseEvents:
    """Encodes the events of one response, and keeps its items for those at the end.

    Reasoning ends when something else begins. A message and calls end with the reply, because their parts may come in
    any order.
    """

    content = b""  # `texts` encodes them instead

    def __init__(self, completion_id: str, created: int, model: str, kept: Kept) -> None:
        self._id = completion_id.removeprefix("chatcmpl-")
        self._head = {"id": f"resp_{self._id}", "object": "response", "created_at": created, "model": model}
        self._kept = kept
        self._sequence = 0
        self._items: list[OutputItem] = []
        self._message: OutputItem | None = None
        self._text: GrowingText | None = None  # of the message
        self._refusal: GrowingText | None = None
        self._reasoning: OutputItem | None = None
        self._calls: dict[int, OutputItem] = {}
        self._cut_by: str | None = None  # why the reply is incomplete

    def role(self) -> bytes:
        response = msgspec.Raw(encode(self._response("in_progress")))
        events = (self._event(name, {"response": response}) for name in ("response.created", "response.in_progress"))
        return b"".join(events)

    def texts(self, texts: list[str]) -> bytes:
        """The text of the message continues."""
        begun = b""
        if (text := self._text) is None:
            begun = self._open_message()
            text, added = self._add_text(self._message, "output_text")
            self._text, begun = text, begun + added
        number = self._sequence
        if len(texts) == 1:
            self._sequence = number + 1
            text.write(texts[0])
            return begun + text.delta % (number, encode(texts[0]))
        self._sequence += len(texts)
        text.write("".join(texts))
        return begun + b"".join([text.delta % numbered for numbered in enumerate(map(encode, texts), number)])

    def extras(self, extras: Mapping[str, Any]) -> bytes:
        """A refusal or reasoning."""
        data = b""
        if fields := {name: value for name, value in extras.items() if name in REASONING and value}:
            data = self._reason(fields)
        if refusal := extras.get("refusal"):
            data += self._open_message()
            if self._refusal is None:
                self._refusal, added = self._add_text(self._message, "refusal")
                data += added
            data += self._extend(self._refusal, refusal)
        return data

    def call(self, delta: ToolCallDelta) -> bytes:
        data, item = b"", self._calls.get(delta.index)
        if item is None:
            namespace, name = self._kept.names.get(delta.name, ("", delta.name))
            fields = {"call_id": delta.id, "name": name, **({"namespace": namespace} if namespace else {})}
            kind, prefix = ("custom_tool_call", "ctc") if delta.type == "custom" else ("function_call", "fc")
            data = self._close_reasoning()
            item = self._calls[delta.index] = self._item(kind, prefix)
            item.fields = fields
            item.texts.append(GrowingText.at(kind, {"item_id": item.id, "output_index": item.index}))
            data += self._add(item)
        if delta.extra_content:
            item.fields["extra_content"] = delta.extra_content
        return data + (self._extend(item.texts[0], delta.arguments) if delta.arguments else b"")

    def replace_text(self, text: str) -> None:
        """The text of the message, if it has one, is this instead."""
        if self._text:
            self._text.written = StringIO(text)

    def annotations(self, annotations: Sequence[Mapping[str, Any]]) -> bytes:
        """The sources of the message."""
        if self._text is None or self._message is None:
            return b""
        self._message.annotations = [{"type": one["type"], **one["url_citation"]} for one in annotations]
        name, place = "response.output_text.annotation.added", self._text.place
        return b"".join(
            self._event(name, {**place, "annotation_index": number, "annotation": one})
            for number, one in enumerate(self._message.annotations)
        )

    def finish(self, reason: FinishReason) -> bytes:
        """The ends of all items, except calls that may be cut: no client is to make them."""
        self._cut_by = REASONS.get(reason)
        status = "incomplete" if self._cut_by else "completed"
        still_open = [item for item in self._items if item.done is None]
        return b"".join([self._close(item, status) for item in still_open if not (self._cut_by and item.type in TEXTS)])

    def usage(self, usage: Usage, cost_nano: int | None) -> bytes:
        """The last event, with the whole response."""
        response = self.whole(usage, cost_nano)
        return self._event(f"response.{response['status']}", {"response": response})

    def whole(self, usage: Usage, cost_nano: int | None) -> dict[str, Any]:
        """The response, after `finish`."""
        shown = {"usage": usage_of(usage, cost_nano)}
        if self._cut_by:
            return self._response("incomplete", {**shown, "incomplete_details": {"reason": self._cut_by}})
        return self._response("completed", shown)

    def failed(self, error: CadenzaError, _request_id: str) -> bytes:
        """The newline before it ends an event that may be unfinished."""
        code = CODES.get(error.message.partition(":")[0]) or CODES.get(error.type, "server_error")
        response = self._response("failed", {"error": {"code": code, "message": error.message}})
        return b"\n" + self._event("response.failed", {"response": response})

    def _response(self, status: str, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
        item_status = "completed" if status == "completed" else "incomplete"
        output = [item.done or item.shown(item_status, is_encrypted=self._kept.is_encrypted) for item in self._items]
        state = {"status": status, "error": None, "incomplete_details": None, "output": output, "usage": None}
        return {**self._head, **state, **DEFAULTS, **self._kept.echo, **(fields or {})}

    def _event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        data = encode({"type": name, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)

    def _item(self, type_: str, prefix: str) -> OutputItem:
        index = len(self._items)
        return OutputItem(type_, f"{prefix}_{self._id}{index}", index)

    def _add(self, item: OutputItem) -> bytes:
        self._items.append(item)
        return self._event(
            "response.output_item.added", {"output_index": item.index, "item": item.shown("in_progress")}
        )

    def _open_message(self) -> bytes:
        if self._message:
            return b""
        closed = self._close_reasoning()
        self._message = self._item("message", "msg")
        return closed + self._add(self._message)

    def _reason(self, fields: Mapping[str, Any]) -> bytes:
        data, item = b"", self._reasoning
        if item is None:
            item = self._reasoning = self._item("reasoning", "rs")
            data = self._add(item)
        for name, value in fields.items():
            item.fields[name] = item.fields[name] + value if name in item.fields else value
        if text := text_of_extras({name: value for name, value in fields.items() if name != "refusal"}):
            if not item.texts:
                data += self._add_text(item, "reasoning_text")[1]
            data += self._extend(item.texts[0], text)
        return data

    def _add_text(self, item: OutputItem | None, type_: str) -> tuple[GrowingText, bytes]:
        """Another part of the item's content."""
        assert item
        place = {"item_id": item.id, "output_index": item.index, "content_index": len(item.texts)}
        text = GrowingText.at(type_, place)
        item.texts.append(text)
        return text, self._event("response.content_part.added", {**place, "part": item.part(text)})

    def _extend(self, text: GrowingText, more: str) -> bytes:
        text.write(more)
        data = text.delta % (self._sequence, encode(more))
        self._sequence += 1
        return data

    def _close_reasoning(self) -> bytes:
        item, self._reasoning = self._reasoning, None
        return self._close(item, "completed") if item else b""

    def _close(self, item: OutputItem, status: str) -> bytes:
        data = list[bytes]()
        for text in item.texts:
            whole, (name, field) = text.whole(), TEXTS[text.type]
            data.append(self._event(f"{name}.done", {**text.place, field: whole, **LOGPROBS.get(text.type, {})}))
            if "content_index" in text.place:
                part = item.part(text, whole)
                data.append(self._event("response.content_part.done", {**text.place, "part": part}))
        item.done = msgspec.Raw(encode(item.shown(status, is_encrypted=self._kept.is_encrypted)))
        data.append(self._event("response.output_item.done", {"output_index": item.index, "item": item.done}))
        return b"".join(data)


def usage_of(usage: Usage, cost_nano: int | None) -> dict[str, Any]:
    details = usage.completion_details or {}
    shown: dict[str, Any] = {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},  # the SDK declares it
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": details.get("reasoning_tokens", 0)},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    return shown if cost_nano is None else {**shown, "cost": msgspec.Raw(format_dollars(cost_nano).encode())}


class StreamedResponse(StreamRelay):
    """A stream. After a fault it ends with `response.failed`."""

    def __init__(self, exchange: Exchange, answers: Answers, head: ReplyHead, meter: UsageMeter, kept: Kept) -> None:
        super().__init__(exchange, answers, head, meter)
        self._events: ResponseEvents = ResponseEvents(head.completion_id, head.created, head.class_id, kept)
        answers.errors = ErrorShape(error_object, self._events.failed)

    def _take_text(self, text: str) -> None:
        if text:
            self._unsent.append((self._events.texts([text]), text))

    def take_texts(self, texts: list[str]) -> bool:
        if self._grounded is not None:
            return super().take_texts(texts)
        return self._send(self._events.texts(texts), texts[0] if len(texts) == 1 else "".join(texts))


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
        if self.head.grounding.fence_ids:
            self.events.replace_text(self.message.content or "")
        self.events.annotations(self.message.annotations or ())
        assert result.finish_reason
        self.events.finish(result.finish_reason)
        response = self.events.whole(result.usage, self.head.shown_cost_nano(result.usage))
        self.answers.send_json(encode(response), self.head.headers)

    def _calls(self) -> list[ToolCallDelta]:
        self._take_calls(self.normalizer.finish())
        return self.deltas

    def _take_calls(self, deltas: list[ToolCallDelta]) -> None:
        self.deltas += deltas
        for delta in deltas:
            self.events.call(delta)
