"""What is done to an answer to a request with reference material: repeated fence tags are removed, citations found.

A small model may repeat a tag. Only tags with an id of this request are removed; anything else that looks like one
stays. An answer may end inside a tag, at its limit of tokens: if the id is complete, this tag is removed too.

Citations are found while the answer streams. Each character is read once; only an unfinished marker and the last word
are kept. Positions are in characters. No piece holds up other requests for long: a regular expression skips what does
not matter, and the rest of a very long piece, or of an answer with thousands of brackets in long pieces, is not
searched.

    state  | "[" or "【"     | backticks             | line break | other characters
    text   | begins a marker | 1-2: inline, 3: fence | skipped    | skipped
    marker | begins another  | as in text            | as in text | belong to it, end it ("]", "】") or drop it
    inline | begins a marker | the same number: text | text       | skipped
    fence  | skipped         | 3 or more: text       | skipped    | skipped

A bracket that cannot begin a marker is skipped everywhere. Markers in inline code count only if the line ends before
the code does: then it was not code.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from cadenza.grounding.material import ID_CHARS, TAG_NAME
from cadenza.grounding.search.records import Source

TAG_CHARS_MAX = 4096
STARTS = (f"<{TAG_NAME} ", f"</{TAG_NAME} ")
ATTRIBUTES_CHARS_MAX = 4000  # so that a tag is no longer than TAG_CHARS_MAX
TAG = re.compile(rf"\n?</?{TAG_NAME} ([0-9a-f]{{{ID_CHARS}}})(?: [^<>\n]{{0,{ATTRIBUTES_CHARS_MAX}}})?>")
CUT_TAG = re.compile(rf"\n?</?{TAG_NAME} [0-9a-f]{{{ID_CHARS}}}(?: .*)?")  # at the end of an answer
PIECE_CHARS_MAX = 200_000  # of one piece are searched: 12 ms if all are brackets

ANNOTATIONS_MAX = 100
MARKS_MAX = 1000  # kept of one answer; the numbers of some may be beyond the sources
MARKER_CHARS_MAX = 40
FENCE_BACKTICKS = 3
WORD_CHARS_MAX = 33
SLICE_CHARS = 512
FREE_STEPS = 16  # of each piece: no ordinary one has more
STEPS_MAX = 4_000  # beyond these, of one answer: 2 to 5 µs each
CLOSING = {"[": "]", "【": "】"}
MAY_BE_MARKER = r"(?![^0-9 ,;^–\-\]】])"  # after a bracket
STOP_IN_TEXT = re.compile(rf"[`\[【](?:(?<=`)|{MAY_BE_MARKER})")
STOP_IN_INLINE = re.compile(rf"[`\n\[【](?:(?<=[`\n])|{MAY_BE_MARKER})")
STOP_IN_FENCE = re.compile("`")
BACKTICKS = re.compile("`*")
MARKER_CHAR = re.compile(r"[0-9 ,;^–-]")
MARKER = re.compile(r"\^?[0-9]{1,4}(?: ?[,;–-] ?\^?[0-9]{1,4})*(?:†.*)?")
NUMBERS = re.compile(r"([0-9]{1,4})(?: ?[–-] ?([0-9]{1,4}))?")
ARRAYS = "(?i:arrays?|arr|args|argv|data|items|list|lst|matrix|vec|rows?|values|results?)"
VARIABLE = re.compile(rf"[a-z][0-9]*|[a-z]{{2,}}[A-Z][a-z]\w*|\w*[_$]\w*|{ARRAYS}", re.ASCII)  # x2, itemList, row_2


class TagRemover:
    """Removes tags from an answer piece by piece. The end of a piece that may begin a tag is kept for the next.

    The line break before a tag is removed too, so one at the end of a piece is kept. The result does not depend on
    where an answer is split.
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids
        self._kept = ""

    def take(self, text: str) -> str:
        """The text that can be sent now."""
        text, self._kept = self._kept + text, ""
        if len(text) > PIECE_CHARS_MAX:
            return text
        begin = self._begin_of_tag(text)
        text, self._kept = text[:begin], text[begin:]
        if any(start in text for start in STARTS):
            text = TAG.sub(lambda found: "" if found[1] in self._ids else found[0], text)
        return text

    def end(self) -> str:
        """The text that was kept, unless it is a tag cut off by the end of the answer."""
        kept, self._kept = self._kept, ""
        return "" if CUT_TAG.fullmatch(kept) else kept

    def _begin_of_tag(self, text: str) -> int:
        """The start of an unfinished tag at the end of the text, with the line break before it; else its length."""
        begin = text.rfind("<")
        if begin < 0 or not self._may_be_tag(text[begin : begin + TAG_CHARS_MAX + 1]):
            begin = len(text)
        return begin - 1 if text.endswith("\n", 0, begin) else begin

    def _may_be_tag(self, text: str) -> bool:
        """Whether this is the beginning of a tag of this request."""
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
    """The answer of a stream."""

    def __init__(self, fence_ids: Sequence[str], sources: Sequence[Source]) -> None:
        self._tags = TagRemover(fence_ids)
        self._sources = sources
        self._citations = CitationFinder() if sources else None

    def take(self, text: str) -> str:
        """The text that can be sent now."""
        return self._found(self._tags.take(text))

    def end(self) -> str:
        """The text that was kept."""
        return self._found(self._tags.end())

    def annotations(self) -> list[dict[str, Any]]:
        return self._citations.annotations(self._sources) if self._citations else []

    def _found(self, text: str) -> str:
        if text and self._citations:
            self._citations.take(text)
        return text


async def ground_whole(
    content: str, fence_ids: Sequence[str], sources: Sequence[Source]
) -> tuple[str, list[dict[str, Any]]]:
    """The answer of a reply that is not a stream, and its annotations. Other requests can run in between."""
    remover, pieces = TagRemover(fence_ids), list[str]()
    for start in range(0, len(content), PIECE_CHARS_MAX // 4):
        pieces.append(remover.take(content[start : start + PIECE_CHARS_MAX // 4]))
        await asyncio.sleep(0)
    answer = "".join([*pieces, remover.end()])
    return answer, await find_citations(answer, sources) if sources else []


class Mark(msgspec.Struct, frozen=True):
    """A citation marker in the answer, and the first and last number of each range in it."""

    ranges: tuple[tuple[int, int], ...]
    start: int
    end: int


class CitationFinder:
    """Takes an answer piece by piece. The result does not depend on where it is split."""

    def __init__(self) -> None:
        self._length = 0  # of the answer so far
        self._steps_left = STEPS_MAX
        self._marks: list[Mark] = []
        self._doubtful: list[Mark] = []  # in inline code, if it is closed on its line
        self._code = 0  # backticks that opened the code, 0 outside of code
        self._run = 0  # backticks just before
        self._marker = ""  # the part of a marker so far, with its bracket
        self._is_index = False  # whether this marker is the index of an array
        self._index_end = -1  # where the last index ended
        self._before = ""  # the last characters of the piece before

    def take(self, text: str) -> None:
        searched = text[:PIECE_CHARS_MAX]
        place, steps, steps_max = 0, 0, FREE_STEPS + self._steps_left
        while place < len(searched) and steps < steps_max:
            place = self._read(searched, place)
            steps += 1
        if steps > FREE_STEPS:
            self._steps_left -= steps - FREE_STEPS
        if place < len(text):
            self._marker = ""  # what follows it is not searched
        self._length += len(text)
        self._before = (self._before + text[-WORD_CHARS_MAX:])[-WORD_CHARS_MAX:]

    def annotations(self, sources: Sequence[Source]) -> list[dict[str, Any]]:
        """The sources that the answer cites, or all of them, at the end of the answer, if it cites none."""
        found = list[dict[str, Any]]()
        is_code_closed = 0 < self._code == self._run
        for mark in self._marks if is_code_closed else self._marks + self._doubtful:
            for number in _numbers(mark, len(sources)):
                if len(found) == ANNOTATIONS_MAX:
                    return found
                found.append(_annotation(sources[number - 1], mark.start, mark.end))
        return found or [_annotation(source, self._length, self._length) for source in sources[:ANNOTATIONS_MAX]]

    def _read(self, text: str, place: int) -> int:
        """Read from a place to the next one that changes the state."""
        if self._run:
            if text[place] == "`":
                return self._add_backticks(text, place)
            self._end_run()
        if self._marker:
            if self._extend(text[place], self._length + place + 1):
                return place + 1
            self._marker = ""
        stop = self._stops().search(text, place)
        return len(text) if stop is None else self._stop_at(text, stop.start())

    def _stops(self) -> re.Pattern[str]:
        if self._code >= FENCE_BACKTICKS:
            return STOP_IN_FENCE
        return STOP_IN_INLINE if self._code else STOP_IN_TEXT

    def _stop_at(self, text: str, place: int) -> int:
        if text[place] == "`":
            return self._add_backticks(text, place)
        if text[place] == "\n":
            self._marks += self._doubtful
            self._doubtful = []
            self._code = 0
        else:
            self._marker = text[place]
            self._is_index = self._length + place == self._index_end or self._follows_array(text, place)
        return place + 1

    def _add_backticks(self, text: str, place: int) -> int:
        found = BACKTICKS.match(text, place)
        assert found
        self._run += found.end() - place
        return found.end()

    def _end_run(self) -> None:
        run, self._run = self._run, 0
        if not self._code:
            self._code = run
        elif run == self._code or (run > self._code >= FENCE_BACKTICKS):
            self._code = 0
            self._doubtful = []

    def _extend(self, char: str, end: int) -> bool:
        """Add a character to the marker. False if it cannot be part of one."""
        if char == CLOSING[self._marker[0]]:
            self._end_marker(end)
            return True
        has_note = self._marker[0] == "【" and ("†" in self._marker or (char == "†" and len(self._marker) > 1))
        if len(self._marker) >= MARKER_CHARS_MAX or char in "\n`[【" or not (has_note or MARKER_CHAR.match(char)):
            return False
        self._marker += char
        return True

    def _end_marker(self, end: int) -> None:
        start = end - len(self._marker) - 1
        content, self._marker = self._marker[1:], ""
        if self._is_index and not content.startswith("^"):
            self._index_end = end
        elif MARKER.fullmatch(content) and len(self._marks) + len(self._doubtful) < MARKS_MAX:
            found = NUMBERS.findall(content.partition("†")[0])
            ranges = tuple((int(first), int(last or first)) for first, last in found)
            (self._doubtful if self._code else self._marks).append(Mark(ranges, start, end))

    def _follows_array(self, text: str, place: int) -> bool:
        """Whether the word before a bracket is the name of a variable: `a[1]`, `row_2[1]`, `itemList[1]`."""
        before = text[max(place - WORD_CHARS_MAX, 0) : place]
        if len(before) < WORD_CHARS_MAX:
            before = (self._before + before)[-WORD_CHARS_MAX:]
        owner, _, name = _last_word(before).rpartition(".")
        return text[place] == "[" and (owner in ("self", "this") or VARIABLE.fullmatch(name) is not None)


def _last_word(text: str) -> str:
    start = len(text)
    while start and (text[start - 1].isalnum() or text[start - 1] in "._$"):
        start -= 1
    return text[start:]


def _numbers(mark: Mark, count: int) -> dict[int, None]:
    """The sources that a marker names, each once, in its order."""
    if any(first == 0 for first, _ in mark.ranges):  # [0, 1] is an interval
        return {}
    return dict.fromkeys(number for first, last in mark.ranges for number in range(first, min(last, count) + 1))


def _annotation(source: Source, start: int, end: int) -> dict[str, Any]:
    citation = {"url": source.url, "title": source.title, "start_index": start, "end_index": end}
    return {"type": "url_citation", "url_citation": citation}


async def find_citations(content: str, sources: Sequence[Source]) -> list[dict[str, Any]]:
    """The annotations of a complete answer. Other requests can run between its slices."""
    finder = CitationFinder()
    for start in range(0, len(content), SLICE_CHARS):
        finder.take(content[start : start + SLICE_CHARS])
        await asyncio.sleep(0)
    return finder.annotations(sources)
