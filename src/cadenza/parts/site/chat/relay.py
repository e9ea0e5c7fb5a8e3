"""Sends a reply to the chat page: its text as it arrives, and the HTML of its blocks once they are complete.

Events, each with a `type`: `start` (id, class, and the files that were read in part), `text`, `block` (html, and how
many UTF-16 units of the text it replaces), `reasoning`, `refusal`, `call`, `sources` (numbers, titles, addresses, and
whether they are cited), `finish` (reason) and `usage` (tokens, cost). [DONE] follows, or an error object. The upstream
is not read while blocks are being rendered (backpressure).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cadenza.core.chat import call_object
from cadenza.core.money import format_dollars
from cadenza.core.records import FinishReason, ReplyResult, Usage
from cadenza.core.tool_calls import ToolCallDelta
from cadenza.gateway.answers import Answers
from cadenza.gateway.meter import UsageMeter
from cadenza.gateway.relay import ReplyHead, StreamRelay
from cadenza.http.events import DONE, write_event
from cadenza.http.exchange import STREAMING, Exchange
from cadenza.parts.site.chat.markdown.process import MarkdownRenderer, RenderedText
from cadenza.upstreams.base import OpenReply, Piece

_ENCODE = msgspec.json.Encoder().encode


class ChatEvents:
    """Encodes the events of one reply."""

    content = b'data: {"type":"text","text":%b}\n\n'

    def __init__(self, head: ReplyHead) -> None:
        self._head = head

    def role(self) -> bytes:
        start = {"id": self._head.completion_id, "class": self._head.class_id}
        cut_files = self._head.grounding.cut_files
        return _event("start", start | {"read": cut_files} if cut_files else start)

    def call(self, delta: ToolCallDelta) -> bytes:
        return _event("call", {"call": call_object(delta)})

    def extras(self, extras: Mapping[str, Any]) -> bytes:
        """A refusal or reasoning, as text."""
        reasoning = extras.get("reasoning_content") or extras.get("reasoning") or ""
        refusal = extras.get("refusal") or ""
        return (_event("reasoning", {"text": reasoning}) if reasoning else b"") + (
            _event("refusal", {"text": refusal}) if refusal else b""
        )

    def block(self, rendered: RenderedText) -> bytes:
        units = len(rendered.source.encode("utf-16-le", "surrogatepass")) // 2
        return _event("block", {"html": rendered.html, "units": units})

    def annotations(self, annotations: Sequence[Mapping[str, Any]]) -> bytes:
        """The sources that the reply cites, each with its number; if it cites none, all that the model was given.

        An annotation that covers no characters stands for a source that is not cited.
        """
        is_cited = any(one["url_citation"]["start_index"] < one["url_citation"]["end_index"] for one in annotations)
        listed = {(one["url_citation"]["url"], one["url_citation"]["title"]) for one in annotations}
        sources = [
            {"number": number, "url": source.url, "title": source.title}
            for number, source in enumerate(self._head.grounding.sources, start=1)
            if (source.url, source.title) in listed
        ]
        return _event("sources", {"cited": is_cited, "sources": sources})

    def finish(self, reason: FinishReason) -> bytes:
        return _event("finish", {"reason": reason})

    def usage(self, usage: Usage, _cost_nano: int | None) -> bytes:
        cost = ChatCost(
            class_id=self._head.class_id,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            cost=format_dollars(self._head.price.charge(usage) + self._head.grounding.charged_nano),
        )
        return _event("usage", msgspec.to_builtins(cost)) + DONE


class ChatCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a reply cost, in dollars, and its tokens."""

    class_id: str = msgspec.field(name="class")
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: str


class ChatRelay(StreamRelay):
    """A reply to the chat page. Its text is also fed to the renderer."""

    def __init__(
        self,
        exchange: Exchange,
        answers: Answers,
        head: ReplyHead,
        meter: UsageMeter,
        markdown: MarkdownRenderer,
        account_id: str,
    ) -> None:
        super().__init__(exchange, answers, head, meter)
        self._markdown = markdown.stream(account_id)
        self._events: ChatEvents = ChatEvents(head)

    async def run(self, reply: OpenReply) -> ReplyResult:
        result = await super().run(reply)
        await self._render(is_end=True)
        return result

    def take_texts(self, texts: list[str]) -> bool:
        for text in texts:
            self.take(Piece(text))
        return self.flush()

    def _take_text(self, text: str) -> None:
        self._markdown.feed(text)
        super()._take_text(text)

    def flush(self) -> bool:
        return super().flush() and not self._markdown.is_due

    async def drain(self) -> None:
        await super().drain()
        await self._render()

    async def _render(self, *, is_end: bool = False) -> None:
        rendered = await self._markdown.render(is_end=is_end)
        if rendered and self._exchange.state is STREAMING:
            self._exchange.write(b"".join(map(self._events.block, rendered)))


def _event(type_: str, fields: Mapping[str, Any]) -> bytes:
    return write_event(_ENCODE({"type": type_, **fields}))
