"""An answer to a request with reference material: one tag is left out of it, and it cites its sources as [1]."""

import re
from functools import partial
from typing import Any

from cadenza.core.grounding import Grounding, Source

TAG = "</reference 0123456789abcdef>"


class TaggedAnswer:
    """What may become the tag waits for the next text."""

    def __init__(self, sources: tuple[Source, ...]) -> None:
        self._sources = sources
        self._kept = self._sent = ""

    def take(self, text: str) -> str:
        text = (self._kept + text).replace(TAG, "")
        begin = next(at for at in range(len(text) + 1) if TAG.startswith(text[at:]))
        self._kept = text[begin:]
        self._sent += text[:begin]
        return text[:begin]

    def end(self) -> str:
        text, self._kept = self._kept, ""
        self._sent += text
        return text

    def annotations(self) -> list[dict[str, Any]]:
        cited = [(found, int(found[1])) for found in re.finditer(r"\[([12])\]", self._sent)]
        return [
            {
                "type": "url_citation",
                "url_citation": {
                    "url": self._sources[number - 1].url,
                    "title": self._sources[number - 1].title,
                    "start_index": found.start(),
                    "end_index": found.end(),
                },
            }
            for found, number in cited
            if number <= len(self._sources)
        ]


def cited(*sources: Source) -> Grounding:
    """What such an answer belongs to."""
    return Grounding(sources=sources, answer=partial(TaggedAnswer, sources))
