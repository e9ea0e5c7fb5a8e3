"""Which passages of a document are worth showing, the best first. Runs in the child only.

A document that surely has room stays in its own order. Of any other, the beginning comes first, then the passages that
fit the question, then their neighbours, then the rest spread evenly over the document. Only as many passages are
counted and returned as there are tokens for all documents together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from cadenza.grounding.files.messages import Room
from cadenza.grounding.files.passages import PASSAGE_CHARS, split_exactly
from cadenza.grounding.files.ranking import rank, words_of
from cadenza.grounding.files.records import RankedDocument, RankedPassage, Section
from cadenza.grounding.files.shown import heading

PASSAGE_CHARS_MIN = 240
MARK_TOKENS = 8  # what may be between two passages: a mark of omission and blank lines
MARK_BYTES = 16  # the same
NEIGHBOURS = (1, -1, 2, -2)
# A question of these words alone is about the document as a whole: no passage fits it better than another.
ABOUT_ALL = frozenset(
    {
        *("attached", "attachment", "brief", "contents", "describe", "doc", "document", "explain", "file", "give"),
        *("key", "main", "overview", "page", "paper", "pdf", "point", "points", "read", "report", "sheet", "short"),
        *("slides", "sum", "summaries", "summarise", "summarize", "summary", "text", "tldr", "translate", "up"),
    }
)


def rank_document(
    title: str, sections: Sequence[Section], question: str, room: Room, count: Callable[[str], int]
) -> RankedDocument:
    """`count` counts the tokens of a text. It is not called if the number of bytes decides."""
    chars_max = min(PASSAGE_CHARS, max(PASSAGE_CHARS_MIN, room.share_tokens // 2))  # at least a few passages fit
    found = [(place, text) for place, section in enumerate(sections) for text in split_exactly(section.text, chars_max)]
    sizes = _Sizes([heading(section.label) for section in sections], found, count)
    order: Iterable[int] = _all(found)
    is_alone = room.tokens == room.share_tokens
    if is_alone and (total_bytes := sizes.total_bytes()) <= room.tokens:
        tokens, costs = total_bytes, sizes.bytes_of
    else:
        tokens, costs = sizes.total_tokens(room.tokens), sizes.tokens_of
        if tokens > room.share_tokens:
            order = best_first([text for _, text in found], question)
    counts = [0] * len(sections)
    for place, _ in found:
        counts[place] += 1
    return RankedDocument(
        title=title,
        labels=[section.label for section in sections],
        passage_counts=counts,
        passages=list(_take(found, order, costs, room.tokens)),
        tokens=tokens,
        is_whole=tokens <= room.tokens,
    )


def best_first(texts: Sequence[str], question: str) -> Iterator[int]:
    """The indexes of all texts, each once."""
    last = len(texts) - 1
    is_about_all = ABOUT_ALL.issuperset(words_of(question))
    fitting = [] if is_about_all else rank(texts, question)
    neighbours = (index + step for step in NEIGHBOURS for index in fitting if 0 <= index + step <= last)
    seen = set[int]()
    for index in chain([0], fitting or [last], neighbours, spread(len(texts))):
        if index not in seen:
            seen.add(index)
            yield index


def spread(count: int) -> Iterator[int]:
    """All numbers below `count`, so that the first few of them, however many, are spread evenly."""
    bits = max(count - 1, 0).bit_length()
    for number in range(1 << bits if count else 0):
        place = int(f"{number:0{bits}b}"[::-1], 2) if bits else 0
        if place < count:
            yield place


class _Sizes:
    """What each passage takes, with its heading and a mark of omission: in bytes, or in tokens, counted once."""

    def __init__(self, headings: Sequence[str], found: Sequence[tuple[int, str]], count: Callable[[str], int]) -> None:
        self._headings = headings
        self._found = found
        self._count = count
        self._counted: dict[int, int] = {}

    def bytes_of(self, index: int) -> int:
        section, text = self._found[index]
        return len(text.encode()) + len(self._headings[section].encode()) + MARK_BYTES

    def total_bytes(self) -> int:
        return sum(map(self.bytes_of, _all(self._found)))

    def tokens_of(self, index: int) -> int:
        tokens = self._counted.get(index)
        if tokens is None:
            section, text = self._found[index]
            tokens = self._counted[index] = self._count(self._headings[section]) + self._count(text) + MARK_TOKENS
        return tokens

    def total_tokens(self, enough: int) -> int:
        """Of all passages; once more than `enough` are counted, so many."""
        total = 0
        for index in _all(self._found):
            total += self.tokens_of(index)
            if total > enough:
                break
        return total


def _all(found: Sequence[object]) -> range:
    return range(len(found))


def _take(
    found: Sequence[tuple[int, str]], order: Iterable[int], costs: Callable[[int], int], tokens_max: int
) -> Iterator[RankedPassage]:
    """The passages in this order, until they take as many tokens as there are. One at least."""
    total = 0
    for index in order:
        section, text = found[index]
        tokens = costs(index)
        total += tokens
        if total > tokens_max and total > tokens:
            return
        yield RankedPassage(index, section, text, tokens)
