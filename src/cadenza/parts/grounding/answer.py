"""What is done to an answer to a request with reference material: repeated fence tags are removed, citations found.

A small model may repeat a tag. Only tags with an id of this request are removed; anything else that looks like one
stays. An answer may end inside a tag, at its limit of tokens: if the id is complete, this tag is removed too.

Citations are found at the end of an answer, in its text: markers such as [1], [2, 3] and 【1†page】. Those in code and
the index of an array cite nothing. Positions are in characters. A very long answer, or one with thousands of markers,
is searched only as far as takes milliseconds.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from cadenza.core.grounding import Source

ID_BYTES = 8
ID_CHARS = 2 * ID_BYTES
TAG_NAME = "reference"
TAG_CHARS_MAX = 4096
STARTS = (f"<{TAG_NAME} ", f"</{TAG_NAME} ")
ATTRIBUTES_CHARS_MAX = 4000  # so that a tag is no longer than TAG_CHARS_MAX
TAG = re.compile(rf"\n?</?{TAG_NAME} ([0-9a-f]{{{ID_CHARS}}})(?: [^<>\n]{{0,{ATTRIBUTES_CHARS_MAX}}})?>")
CUT_TAG = re.compile(rf"\n?</?{TAG_NAME} [0-9a-f]{{{ID_CHARS}}}(?: .*)?")  # at the end of an answer
PIECE_CHARS_MAX = 200_000  # of one piece are searched: 12 ms if all are brackets

ANNOTATIONS_MAX = 100
ANSWER_CHARS_MAX = 500_000  # are searched: 35 ms if all are brackets
STEPS_MAX = 10_000  # markers and backticks of one answer: 2 µs each
FENCE_BACKTICKS = 3
WORD_CHARS_MAX = 33
NUMBER = r"\^?[0-9]{1,4}"
LISTED = rf"{NUMBER}(?: ?[,;–-] ?{NUMBER}){{0,9}}"
STEP = re.compile(rf"`+|\[{LISTED}\]|【{LISTED}(?:†[^\n`\[【】]{{0,40}})?】")
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


class FencedAnswer:
    """An answer to a request with such fences and sources, as it comes."""

    def __init__(self, fence_ids: Sequence[str], sources: Sequence[Source]) -> None:
        self._tags = TagRemover(fence_ids)
        self._sources = sources
        self._sent = list[str]()

    def take(self, text: str) -> str:
        """The text that can be sent now."""
        return self._kept(self._tags.take(text))

    def end(self) -> str:
        """The text that was kept."""
        return self._kept(self._tags.end())

    def annotations(self) -> list[dict[str, Any]]:
        return find_citations("".join(self._sent), self._sources)

    def _kept(self, text: str) -> str:
        if text and self._sources:
            self._sent.append(text)
        return text


def find_citations(answer: str, sources: Sequence[Source]) -> list[dict[str, Any]]:
    """The sources that an answer cites, or all of them, at its end, if it cites none."""
    if not sources:
        return []
    cited = (
        _annotation(sources[number - 1], mark.start(), mark.end())
        for mark in find_marks(answer)
        for number in _numbers(mark[0], len(sources))
    )
    end = len(answer)
    return [*islice(cited, ANNOTATIONS_MAX)] or [_annotation(one, end, end) for one in sources[:ANNOTATIONS_MAX]]


def find_marks(answer: str) -> list[re.Match[str]]:
    """The citation markers. Those in inline code count only if the line ends before the code does: it was none."""
    marks, in_code = list[re.Match[str]](), list[re.Match[str]]()
    code = 0  # backticks that opened the code, 0 outside of code
    read_to = index_end = -1  # where the last step ended, and the last index of an array
    for step in islice(STEP.finditer(answer, 0, ANSWER_CHARS_MAX), STEPS_MAX):
        if 0 < code < FENCE_BACKTICKS and answer.find("\n", read_to, step.start()) >= 0:
            marks += in_code
            in_code, code = [], 0
        read_to, text = step.end(), step[0]
        if text[0] == "`":
            if not code:
                code = len(text)
            elif len(text) == code or len(text) > code >= FENCE_BACKTICKS:
                in_code, code = [], 0
        elif text[1] != "^" and (step.start() == index_end or _follows_array(answer, step.start())):
            index_end = step.end()
        elif code < FENCE_BACKTICKS:
            (in_code if code else marks).append(step)
    return marks + in_code


def _follows_array(text: str, place: int) -> bool:
    """Whether the word before a bracket is the name of a variable: `a[1]`, `row_2[1]`, `itemList[1]`."""
    owner, _, name = _last_word(text[max(place - WORD_CHARS_MAX, 0) : place]).rpartition(".")
    return text[place] == "[" and (owner in ("self", "this") or VARIABLE.fullmatch(name) is not None)


def _last_word(text: str) -> str:
    start = len(text)
    while start and (text[start - 1].isalnum() or text[start - 1] in "._$"):
        start -= 1
    return text[start:]


def _numbers(marker: str, count: int) -> dict[int, None]:
    """The sources that a marker names, each once, in its order."""
    found = NUMBERS.findall(marker.partition("†")[0])
    ranges = [(int(first), int(last or first)) for first, last in found]
    if any(first == 0 for first, _ in ranges):  # [0, 1] is an interval
        return {}
    return dict.fromkeys(number for first, last in ranges for number in range(first, min(last, count) + 1))


def _annotation(source: Source, start: int, end: int) -> dict[str, Any]:
    citation = {"url": source.url, "title": source.title, "start_index": start, "end_index": end}
    return {"type": "url_citation", "url_citation": citation}
