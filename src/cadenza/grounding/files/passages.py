"""Splits a document into passages, and orders them by how much they are worth showing. Runs in the child only.

A passage is long enough to make sense and short enough to rank. It ends at a paragraph if it can, else at a line, else
at a sentence, else at a space. It never spans sections, so that it has one label. No text is lost or repeated, except
blanks around a passage.

A document that fits into its share of the tokens stays in its own order. Of any other, the beginning comes first, then
the passages that fit the question, then their neighbours, then the rest spread evenly over the document. Only as many
passages are counted and returned as there are tokens for all documents together.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain

from cadenza.grounding.files.messages import TokenBudget
from cadenza.grounding.files.ranking import rank, words_of
from cadenza.grounding.files.records import Passage, RankedDocument, RankedPassage, Section
from cadenza.grounding.files.shown import heading

PASSAGE_CHARS = 1200  # about 300 tokens of English
BREAKS = tuple(re.compile(pattern) for pattern in (r"\n\s*\n", r"\n", r"[.!?。！？]\s*", r"\s"))
PASSAGE_CHARS_MIN = 240
MARK_TOKENS = 8  # between two passages: a mark of omission and blank lines
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


def split_sections(sections: Iterable[Section]) -> Iterator[Passage]:
    for section in sections:
        for text in split_exactly(section.text):
            yield Passage(section.label, text.strip())


def split_exactly(text: str, chars_max: int = PASSAGE_CHARS) -> Iterator[str]:
    """The passages with the blanks around them. Joined they are the text, except for passages of blanks only."""
    start, end = 0, len(text)
    while start < end:
        stop = end if end - start <= chars_max else _break(text, start, chars_max)
        piece = text[start:stop]
        if not piece.isspace():
            yield piece
        start = stop


def _break(text: str, start: int, chars_max: int) -> int:
    """Where the passage that begins at `start` ends: at the last break of the best kind in its second half."""
    window = text[start : start + chars_max]
    for kind in BREAKS:
        ends = [match.end() for match in kind.finditer(window, chars_max // 2)]
        if ends:
            return start + ends[-1]
    return start + chars_max


def rank_document(
    title: str, sections: Sequence[Section], question: str, budget: TokenBudget, count: Callable[[str], int]
) -> RankedDocument:
    """`count` counts the tokens of a text. It is not called if the number of bytes decides."""
    chars_max = min(PASSAGE_CHARS, max(PASSAGE_CHARS_MIN, budget.share_tokens // 2))  # at least a few passages fit
    passages = [(place, text) for place, one in enumerate(sections) for text in split_exactly(one.text, chars_max)]
    headings = [heading(section.label) for section in sections]

    def bytes_of(index: int) -> int:
        place, text = passages[index]
        return len(headings[place].encode()) + len(text.encode()) + MARK_BYTES

    @cache
    def tokens_of(index: int) -> int:
        place, text = passages[index]
        return count(headings[place]) + count(text) + MARK_TOKENS

    order: Iterable[int] = range(len(passages))
    is_alone = budget.tokens == budget.share_tokens
    if is_alone and (tokens := sum(map(bytes_of, order))) <= budget.tokens:
        sizes: Callable[[int], int] = bytes_of
    else:
        sizes, tokens = tokens_of, _sum_up_to(map(tokens_of, order), budget.tokens)
        if tokens > budget.share_tokens:
            order = best_first([text for _, text in passages], question)
    counts = Counter(place for place, _ in passages)
    return RankedDocument(
        title=title,
        labels=[section.label for section in sections],
        passage_counts=[counts[place] for place in range(len(sections))],
        passages=[RankedPassage(index, *passages[index], sizes(index)) for index in _take(order, sizes, budget.tokens)],
        tokens=tokens,
        is_whole=tokens <= budget.tokens,
    )


def _sum_up_to(numbers: Iterable[int], most: int) -> int:
    """The sum, or the first partial sum above `most`: counting tokens takes time."""
    total = 0
    for number in numbers:
        total += number
        if total > most:
            break
    return total


def _take(order: Iterable[int], sizes: Callable[[int], int], tokens_max: int) -> Iterator[int]:
    """Passages in this order until the tokens are used up; at least one."""
    total = 0
    for index in order:
        size = sizes(index)
        total += size
        if total > tokens_max and total > size:
            return
        yield index


def best_first(texts: Sequence[str], question: str) -> Iterator[int]:
    """The indexes of all texts, each once, those most worth showing first."""
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
    """All numbers below `count`, in an order in which the first few are always spread evenly (reversed bits)."""
    bits = max(count - 1, 0).bit_length()
    for number in range(1 << bits if count else 0):
        place = int(f"{number:0{bits}b}"[::-1], 2) if bits else 0
        if place < count:
            yield place
