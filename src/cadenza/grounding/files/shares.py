"""Divides the tokens among the documents of a request. Runs in the service: it is fast, and counts nothing.

Every document has an equal share. A document that needs less leaves the rest to the others, so a short one is shown
whole beside a long one.
"""

from collections.abc import Sequence

import msgspec

from cadenza.grounding.files.records import RankedDocument, RankedPassage
from cadenza.grounding.files.shown import describe, heading, render


class Shown(msgspec.Struct, frozen=True):
    """What the model sees of a document. `shown` says so by labels, `tokens` is the most that the text can have."""

    text: str
    is_cut: bool
    shown: str
    tokens: int


def share_out(documents: Sequence[RankedDocument], tokens_max: int) -> list[Shown]:
    """What is shown of each, in the same order."""
    shown, left = dict[int, Shown](), tokens_max
    smallest_first = sorted(range(len(documents)), key=lambda index: documents[index].tokens)
    for done, index in enumerate(smallest_first):
        shown[index] = show(documents[index], left // (len(documents) - done))
        left -= shown[index].tokens
    return [shown[index] for index in range(len(documents))]


def show(document: RankedDocument, tokens_max: int) -> Shown:
    taken, left = list[RankedPassage](), tokens_max
    for passage in document.passages:
        if passage.tokens <= left:
            taken.append(passage)
            left -= passage.tokens
        elif not taken:
            return _show_beginning(document, passage, tokens_max)
    is_cut = len(taken) < sum(document.passage_counts)
    return Shown(render(document, taken), is_cut, describe(document, taken), tokens_max - left)


def _show_beginning(document: RankedDocument, passage: RankedPassage, tokens_max: int) -> Shown:
    """As much of the first passage as is sure to have room: a text has no more tokens than bytes."""
    label = document.labels[passage.section]
    text = f"{heading(label)}{passage.text}".encode()[: max(tokens_max, 0)].decode(errors="ignore")
    return Shown(text, is_cut=True, shown=f"the beginning of {label}" if label else "the beginning", tokens=tokens_max)
