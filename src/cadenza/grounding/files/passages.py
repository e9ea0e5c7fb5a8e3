"""Splits the sections of a document into passages: pieces that are long enough to make sense and short enough to rank.

A passage ends at a paragraph if it can, else at a line, else at a sentence, else at a space. It never spans sections,
so that it has one label. No text is lost or repeated, except blanks around a passage.
"""

import re
from collections.abc import Iterable, Iterator

from cadenza.grounding.files.records import Passage, Section

PASSAGE_CHARS = 1200  # about 300 tokens of English
BREAKS = tuple(re.compile(pattern) for pattern in (r"\n\s*\n", r"\n", r"[.!?。！？]\s*", r"\s"))


def split_sections(sections: Iterable[Section], chars_max: int = PASSAGE_CHARS) -> Iterator[Passage]:
    for section in sections:
        for text in split_text(section.text, chars_max):
            yield Passage(section.label, text)


def split_text(text: str, chars_max: int = PASSAGE_CHARS) -> Iterator[str]:
    return (piece.strip() for piece in split_exactly(text, chars_max))


def split_exactly(text: str, chars_max: int = PASSAGE_CHARS) -> Iterator[str]:
    """The passages with the blanks around them: together they are the text, but for passages that are all blank."""
    start, end = 0, len(text)
    while start < end:
        stop = end if end - start <= chars_max else _break(text, start, chars_max)
        piece = text[start:stop]
        if not piece.isspace():
            yield piece
        start = stop


def _break(text: str, start: int, chars_max: int) -> int:
    """Where the passage that begins at `start` ends: at the last break of the best kind that is far enough."""
    window = text[start : start + chars_max]
    for kind in BREAKS:
        ends = [match.end() for match in kind.finditer(window, chars_max // 2)]
        if ends:
            return start + ends[-1]
    return start + chars_max
