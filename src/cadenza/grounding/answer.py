"""An answer to a request with reference material: without the tags of our fences, and with its citations.

A small model may repeat a tag. Only tags with an id of this request are removed; whatever else looks like one stays.
An answer may end inside a tag, at its limit of tokens: if the id is complete, this tag is removed too.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from cadenza.grounding.fence import ID_CHARS, TAG_NAME
from cadenza.grounding.search.citations import CitationFinder, find_citations
from cadenza.grounding.search.records import Cited

TAG_CHARS_MAX = 4096
STARTS = (f"<{TAG_NAME} ", f"</{TAG_NAME} ")
ATTRIBUTES_CHARS_MAX = 4000  # so that a tag is no longer than TAG_CHARS_MAX
TAG = re.compile(rf"\n?</?{TAG_NAME} ([0-9a-f]{{{ID_CHARS}}})(?: [^<>\n]{{0,{ATTRIBUTES_CHARS_MAX}}})?>")
CUT_TAG = re.compile(rf"\n?</?{TAG_NAME} [0-9a-f]{{{ID_CHARS}}}(?: .*)?")  # at the end of an answer
PIECE_CHARS_MAX = 200_000  # of one piece are searched: it holds up other requests for a few milliseconds


class TagRemover:
    """Takes an answer piece by piece. The end of a piece that may be the beginning of a tag is kept for the next.

    The line break before a tag goes too, so one at the end of a piece is kept. Where an answer is split makes no
    difference to what is removed.
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids
        self._kept = ""

    def take(self, text: str) -> str:
        """What can be sent."""
        text, self._kept = self._kept + text, ""
        if len(text) > PIECE_CHARS_MAX:
            return text
        begin = self._begin_of_tag(text)
        text, self._kept = text[:begin], text[begin:]
        if any(start in text for start in STARTS):
            text = TAG.sub(lambda found: "" if found[1] in self._ids else found[0], text)
        return text

    def end(self) -> str:
        """What was kept, unless it is a tag that was cut."""
        kept, self._kept = self._kept, ""
        return "" if CUT_TAG.fullmatch(kept) else kept

    def _begin_of_tag(self, text: str) -> int:
        """Where the end of the text begins that more text can make a tag of, with the line break before it."""
        begin = text.rfind("<")
        if begin < 0 or not self._may_be_tag(text[begin : begin + TAG_CHARS_MAX + 1]):
            begin = len(text)
        return begin - 1 if text.endswith("\n", 0, begin) else begin

    def _may_be_tag(self, text: str) -> bool:
        """Whether more text can make a tag of it."""
        if len(text) > TAG_CHARS_MAX or ">" in text or "\n" in text:
            return False
        for start in STARTS:
            if start.startswith(text):
                return True
            if text.startswith(start):
                begun = text[len(start) : len(start) + ID_CHARS]
                return any(id_.startswith(begun) for id_ in self._ids)
        return False


class GroundedStream:
    """An answer that streams."""

    def __init__(self, fence_ids: Sequence[str], sources: Sequence[Cited]) -> None:
        self._tags = TagRemover(fence_ids)
        self._sources = sources
        self._citations = CitationFinder() if sources else None

    def take(self, text: str) -> str:
        """What can be sent."""
        return self._found(self._tags.take(text))

    def end(self) -> str:
        """What was kept back."""
        return self._found(self._tags.end())

    def annotations(self) -> list[dict[str, Any]]:
        return self._citations.annotations(self._sources) if self._citations else []

    def _found(self, text: str) -> str:
        if text and self._citations:
            self._citations.take(text)
        return text


async def ground_whole(
    content: str, fence_ids: Sequence[str], sources: Sequence[Cited]
) -> tuple[str, list[dict[str, Any]]]:
    """An answer that came whole, and its annotations. Other requests can run in between."""
    remover, pieces = TagRemover(fence_ids), list[str]()
    for start in range(0, len(content), PIECE_CHARS_MAX // 4):
        pieces.append(remover.take(content[start : start + PIECE_CHARS_MAX // 4]))
        await asyncio.sleep(0)
    answer = "".join([*pieces, remover.end()])
    return answer, await find_citations(answer, sources) if sources else []
