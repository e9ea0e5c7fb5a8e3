"""What the model sees of the documents of a request. Runs in the service: it is fast, and counts no tokens.

Every document has an equal share of the tokens. A document that needs less leaves the rest to the others, so a short
one is shown whole beside a long one. Where some documents have words of the question, the others show little. Passages
are shown in the order of the document:

[page 3]        a heading for each section with a label
[…]             where passages or rows are left out
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from cadenza.core.content import Content
from cadenza.parts.grounding.files.records import RankedDocument, RankedPassage

OMITTED = "[…]"
LEAST_TOKENS = 2_000  # of a document, if there is room
SHOWN_CHARS_MAX = 300
ROWS_SAID_MAX = 3  # tables whose rows are counted in a long list
NUMBER = re.compile(r"\d{1,9}")


class DocumentText(Content, msgspec.Struct, frozen=True):
    """What the model sees of a file, by its name, or of a web page, by its title.

    `shown` names it by labels; `tokens` is an upper bound.
    """

    text: str
    is_cut: bool
    shown: str
    tokens: int
    lacks_rows: bool = False  # a table is not whole, so a figure over its rows is partial
    name: str = ""


def share_out(documents: Sequence[RankedDocument], tokens_max: int) -> list[DocumentText]:
    """What is shown of each document, in the same order."""
    shown, left = dict[int, DocumentText](), tokens_max
    has_match = not all(document.is_sample for document in documents)
    wanted = [
        min(document.wanted_tokens, LEAST_TOKENS) if document.is_sample and has_match else document.wanted_tokens
        for document in documents
    ]
    smallest_first = sorted(range(len(documents)), key=lambda index: wanted[index])
    for done, index in enumerate(smallest_first):
        shown[index] = show(documents[index], min(wanted[index], left // (len(documents) - done)))
        left -= shown[index].tokens
    return [shown[index] for index in range(len(documents))]


def show(document: RankedDocument, tokens_max: int) -> DocumentText:
    taken, left = list[RankedPassage](), tokens_max
    for passage in document.passages:
        if passage.tokens <= left:
            taken.append(passage)
            left -= passage.tokens
        elif not taken:
            return _show_beginning(document, passage, tokens_max)
    is_cut = len(taken) < sum(document.passage_counts)
    lacks_rows = is_cut and sum(passage.is_row for passage in taken) < sum(document.row_counts)
    return DocumentText(render(document, taken), is_cut, describe(document, taken), tokens_max - left, lacks_rows)


def _show_beginning(document: RankedDocument, passage: RankedPassage, tokens_max: int) -> DocumentText:
    """As much of the first passage as surely fits: a text has no more tokens than bytes."""
    label = document.labels[passage.section]
    text = f"{heading(label)}{passage.text}".encode()[: max(tokens_max, 0)].decode(errors="ignore")
    return DocumentText(
        text, is_cut=True, shown=f"the beginning of {label}" if label else "the beginning", tokens=tokens_max
    )


def heading(label: str) -> str:
    return f"[{label}]\n" if label else ""


def render(document: RankedDocument, passages: Iterable[RankedPassage]) -> str:
    """The passages in the order of the document."""
    parts, section, following = list[str](), -1, 0
    for passage in sorted(passages, key=lambda passage: passage.number):
        if passage.section != section:
            parts.append(f"\n\n{OMITTED}" * (passage.number != following))
            section = passage.section
            parts.append(f"\n\n{heading(document.labels[section])}")
            parts.append(passage.text.lstrip("\n"))
        elif passage.number == following:
            parts.append(passage.text)
        else:
            parts.append(f"{OMITTED}\n" if passage.is_row else f"\n\n{OMITTED}\n\n")
            parts.append(passage.text)
        following = passage.number + 1
    if following < sum(document.passage_counts):
        parts.append(f"\n\n{OMITTED}")
    return "".join(parts).strip("\n")


class _Kind(Content, msgspec.Struct):
    """The sections of one kind, such as pages: how many there are, and which are shown in full or in part."""

    count: int = 0
    # The place in the document, and what follows the kind in the label:
    full: list[tuple[int, str]] = []
    part: list[tuple[int, str]] = []


def describe(document: RankedDocument, passages: Sequence[RankedPassage]) -> str:
    """What is shown, by labels: "pages 1, 17-19 of 300; parts of pages 3, 40", "205 of 1,233 rows"."""
    taken, taken_rows = [0] * len(document.labels), [0] * len(document.labels)
    for passage in passages:
        taken[passage.section] += 1
        taken_rows[passage.section] += passage.is_row
    kinds, rows = dict[str, _Kind](), list[str]()
    for place, (label, count) in enumerate(zip(document.labels, document.passage_counts, strict=True)):
        kind, _, name = label.partition(" ")
        sections = kinds.setdefault(kind, _Kind())
        sections.count += 1
        if taken[place] == count:
            sections.full.append((place, name))
        elif taken_rows[place]:
            of_section = f" of {label}" if label else ""
            rows.append(f"{taken_rows[place]:,} of {document.row_counts[place]:,} rows{of_section}")
        elif taken[place]:
            sections.part.append((place, name))
    if taken == document.passage_counts:
        return _describe_all(kinds)
    if "" in kinds:  # there is nothing to name
        shown, there = sum(taken) - sum(taken_rows), sum(document.passage_counts) - sum(document.row_counts)
        passages_said = [f"{shown} of {there} passages"] if there > len(rows) or not rows else []
        return _joined([*rows, *passages_said])
    said = _joined([*rows, *(_describe_kind(kind, sections) for kind, sections in kinds.items())])
    return said if len(said) <= SHOWN_CHARS_MAX else _joined([*rows[:ROWS_SAID_MAX], _describe_counts(kinds)])


def describe_size(labels: Sequence[str], rows: int) -> str:
    """How many pages, sheets, slides and rows a document has: "3 sheets, 1,233 rows"."""
    kinds = Counter(label.partition(" ")[0] for label in labels)
    counts = [(kind, kinds[kind]) for kind in ("page", "sheet", "slide")] + [("row", rows)]
    return ", ".join(f"{count:,} {_plural(kind, count)}" for kind, count in counts if count)


def _joined(said: Iterable[str]) -> str:
    return "; ".join(filter(None, said))


def _describe_all(kinds: dict[str, _Kind]) -> str:
    if len(kinds) == 1:
        [(kind, sections)] = kinds.items()
        if kind and sections.count > 1:
            return f"all {sections.count} {_plural(kind, sections.count)}"
    return "all of it"


def _describe_kind(kind: str, sections: _Kind) -> str:
    full = f"{_plural(kind, len(sections.full))} {_ranges(sections.full)} of {sections.count}" if sections.full else ""
    part = f"parts of {_plural(kind, len(sections.part))} {_ranges(sections.part)}" if sections.part else ""
    return _joined((full, part if full else f"{part} of {sections.count}" if part else ""))


def _describe_counts(kinds: dict[str, _Kind]) -> str:
    said = list[str]()
    for kind, sections in kinds.items():
        of_all = f"of {sections.count} {_plural(kind, sections.count)}"
        if sections.full:
            said.append(f"{len(sections.full)} {of_all}")
        if sections.part:
            said.append(
                f"parts of {len(sections.part)} more" if sections.full else f"parts of {len(sections.part)} {of_all}"
            )
    return "; ".join(said)


def _plural(kind: str, count: int) -> str:
    return kind if count == 1 or kind.endswith("s") else f"{kind}s"


def _ranges(sections: Sequence[tuple[int, str]]) -> str:
    """Numbers that follow each other are joined: 17-19. Names are listed."""
    said, start, before = list[str](), "", (-2, "")
    for place, name in sections:
        if place == before[0] + 1 and NUMBER.fullmatch(name) and NUMBER.fullmatch(before[1]):
            said[-1] = f"{start}-{name}"
        else:
            start = name
            said.append(name)
        before = place, name
    return ", ".join(said)
