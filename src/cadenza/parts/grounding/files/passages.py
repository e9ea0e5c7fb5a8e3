"""Splits a document into passages, and orders them by how much they are worth showing. Runs in the child only.

A passage is long enough to make sense and short enough to rank. It ends at a paragraph if it can, else at a line, else
at a sentence, else at a space. It never spans sections, so that it has one label. A row of a table is a passage of its
own. No text is lost or repeated, except blanks around a passage.

A small document stays whole, in its own order. Of any other, the beginning comes first, then the passages that fit the
question, then their neighbours, then the rest spread evenly over the document; the head of a table comes before any of
its rows. `wanted_tokens` is how much of that the question needs:

    it asks for the whole, or for a figure over all rows    as much as there is room for
    no word of it is in the document                        SAMPLE_TOKENS
    otherwise                                               the passages that fit about as well as the best one and
                                                            their neighbours, LEAST_TOKENS to SAMPLE_TOKENS
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain

import msgspec

from cadenza.core.content import Content
from cadenza.core.grounding import FileSize
from cadenza.parts.grounding.files.messages import TokenBudget
from cadenza.parts.grounding.files.questions import AskedOfFiles, identifiers, is_small_talk
from cadenza.parts.grounding.files.ranking import scored, with_variants
from cadenza.parts.grounding.files.records import RankedDocument, RankedPassage, Section
from cadenza.parts.grounding.files.shown import LEAST_TOKENS, describe_size, heading
from cadenza.parts.grounding.files.tables import TableText, find_tables

PASSAGE_CHARS = 1200  # about 300 tokens of English
BREAKS = tuple(re.compile(pattern) for pattern in (r"\n\s*\n", r"\n", r"[.!?。！？]\s*", r"\s"))
PASSAGE_CHARS_MIN = 240
MARK_TOKENS = 8  # between two passages: a mark of omission and blank lines
ROW_MARK_TOKENS = 4
MARK_BYTES = 16  # the same
NEIGHBOURS = (1, -1, 2, -2)
NEAR = NEIGHBOURS[:2]  # wanted with a passage that fits
SMALL_TOKENS = 4_000  # a document of this size is shown whole; several documents share it
LEAST_ROWS_TOKENS = 500  # rows are precise
SAMPLE_TOKENS = 16_000
NAMED_ROWS_MAX = 500  # rows with a number or name of the question
MOST_OF_IT = 1.5  # a document that is no longer than this times what is wanted of it is shown whole
FITS_SHARE = 0.5  # of the best score: such a passage fits about as well


class DocumentPiece(Content, msgspec.Struct, frozen=True):
    """A passage, a row of a table, or the head of one: the place of its section, and its text."""

    section: int
    text: str
    head: int = -1  # of a row: the number of the head of its table

    @property
    def is_row(self) -> bool:
        return self.head >= 0


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


def split_pieces(sections: Sequence[Section], chars_max: int) -> list[DocumentPiece]:
    """All pieces, in their order."""
    pieces = list[DocumentPiece]()
    for place, section in enumerate(sections):
        for part in find_tables(section.text):
            if isinstance(part, TableText):
                head = len(pieces)
                pieces += [DocumentPiece(place, part.head), *(DocumentPiece(place, row, head) for row in part.rows)]
            else:
                pieces += [DocumentPiece(place, text) for text in split_exactly(part, chars_max)]
    return pieces


def rank_document(
    title: str, sections: Sequence[Section], asked: AskedOfFiles, budget: TokenBudget, count: Callable[[str], int]
) -> RankedDocument:
    """`count` counts the tokens of a text. It is not called if the number of bytes decides."""
    chars_max = min(PASSAGE_CHARS, max(PASSAGE_CHARS_MIN, budget.share_tokens // 2))  # at least a few passages fit
    pieces = split_pieces(sections, chars_max)
    headings = [heading(section.label) for section in sections]

    def bytes_of(index: int) -> int:
        piece = pieces[index]
        return len(headings[piece.section].encode()) + len(piece.text.encode()) + MARK_BYTES

    @cache
    def tokens_of(index: int) -> int:
        piece = pieces[index]
        if piece.is_row:
            return count(piece.text) + ROW_MARK_TOKENS
        return count(headings[piece.section]) + count(piece.text) + MARK_TOKENS

    documents = max(budget.tokens // max(budget.share_tokens, 1), 1)
    small, sample = (max(tokens // documents, LEAST_TOKENS) for tokens in (SMALL_TOKENS, SAMPLE_TOKENS))
    ranking = Ranking(pieces, asked)
    is_about_whole = budget.is_filled or ranking.is_about_whole
    whole = budget.tokens if is_about_whole else min(small, budget.tokens)  # a document of this size is shown whole
    in_order = range(len(pieces))
    sizes: Callable[[int], int] = bytes_of
    tokens = sum(map(bytes_of, in_order)) if documents == 1 else whole + 1
    if tokens > whole:
        sizes, tokens = tokens_of, _sum_up_to(map(tokens_of, in_order), whole)
    if tokens > whole and not is_about_whole:
        wanted = ranking.wanted_tokens(tokens_of, sample)
        whole = min(int(wanted * MOST_OF_IT), budget.tokens)
        tokens = _sum_up_to(map(tokens_of, in_order), whole)
        wanted = tokens if tokens <= whole else min(wanted, budget.tokens)
    else:
        wanted = min(tokens, whole)
    order = in_order if tokens <= min(whole, budget.share_tokens) else ranking.best_first()
    counts = Counter(piece.section for piece in pieces)
    rows = Counter(piece.section for piece in pieces if piece.is_row)
    shown = [(index, pieces[index]) for index in _take(order, sizes, wanted)]
    return RankedDocument(
        title=title,
        labels=[section.label for section in sections],
        passage_counts=[counts[place] for place in range(len(sections))],
        row_counts=[rows[place] for place in range(len(sections))],
        passages=[RankedPassage(index, one.section, one.text, sizes(index), one.is_row) for index, one in shown],
        tokens=tokens,
        wanted_tokens=wanted,
        is_whole=tokens <= whole,
        is_sample=ranking.is_sample and tokens > whole,
    )


def measure_document(sections: Sequence[Section], count: Callable[[str], int]) -> FileSize:
    """How large it is, and the fewest tokens that a question takes of it."""
    pieces = split_pieces(sections, PASSAGE_CHARS)
    rows = sum(piece.is_row for piece in pieces)
    tokens = sum(count(section.text) for section in sections)
    least = LEAST_ROWS_TOKENS if rows > len(pieces) // 2 else LEAST_TOKENS
    return FileSize(
        describe_size([section.label for section in sections], rows),
        tokens,
        tokens if tokens <= SMALL_TOKENS else least,
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


class Ranking:
    """The pieces of a document in the order of a question, and how many of them it needs."""

    def __init__(self, pieces: Sequence[DocumentPiece], asked: AskedOfFiles) -> None:
        self._pieces = pieces
        self._asked = asked
        self._is_small_talk = is_small_talk(asked.text)
        self._words = [] if asked.names_nothing or self._is_small_talk else asked.words

    @cached_property
    def _found(self) -> list[tuple[int, float]]:
        """The pieces with a word of the question, each with its score, the best first."""
        return scored([piece.text for piece in self._pieces], with_variants(self._words))

    @property
    def is_sample(self) -> bool:
        """Whether no piece has a word of the question."""
        return not self._found

    @cached_property
    def is_about_whole(self) -> bool:
        """Whether it asks for the whole or, in a table, for a figure over more than a few rows that it names."""
        rows = [piece.text for piece in self._pieces if piece.is_row]
        if rows and (self._asked.is_over_rows or self._asked.is_about_whole):
            return not 0 < len(scored(rows, identifiers(with_variants(self._words)))) <= NAMED_ROWS_MAX
        return self._asked.is_about_whole

    def best_first(self) -> Iterator[int]:
        """All pieces, each once, those most worth showing first."""
        seen = set[int]()
        last = len(self._pieces) - 1
        fitting = [index for index, _ in self._found]
        near = self._near(fitting, NEIGHBOURS)
        for index in chain([0], self._core(), fitting or [last], near, spread(len(self._pieces))):
            for one in (self._pieces[index].head, index):
                if one >= 0 and one not in seen:
                    seen.add(one)
                    yield one

    def wanted_tokens(self, sizes: Callable[[int], int], most: int) -> int:
        if self._is_small_talk:
            return LEAST_TOKENS
        if self.is_sample:
            return most
        wanted = list(dict.fromkeys(chain([0], self._core())))
        has_passages = any(not self._pieces[index].is_row for index in wanted[1:])
        least = LEAST_TOKENS if has_passages else LEAST_ROWS_TOKENS
        return max(least, min(_sum_up_to(map(sizes, wanted), most), most))

    def _core(self) -> Iterator[int]:
        """The passages that fit about as well as the best one, then their neighbours."""
        best = self._found[0][1] if self._found else 0.0
        fitting = [index for index, score in self._found if score >= FITS_SHARE * best]
        return chain(fitting, self._near(fitting, NEAR))

    def _near(self, places: Sequence[int], steps: Sequence[int]) -> Iterator[int]:
        """The neighbours of passages. A row has none: it makes sense by itself."""
        last = len(self._pieces) - 1
        passages = [index for index in places if not self._pieces[index].is_row]
        return (index + step for step in steps for index in passages if 0 <= index + step <= last)


def spread(count: int) -> Iterator[int]:
    """All numbers below `count`, in an order in which the first few are always spread evenly (reversed bits)."""
    bits = max(count - 1, 0).bit_length()
    for number in range(1 << bits if count else 0):
        place = int(f"{number:0{bits}b}"[::-1], 2) if bits else 0
        if place < count:
            yield place
