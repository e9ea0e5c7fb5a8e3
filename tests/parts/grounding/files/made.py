"""Documents for tests: pages of words, and what the child makes of them."""

import random
from collections.abc import Sequence

from cadenza.core.tokens import Tokenizer
from cadenza.parts.grounding.files.messages import TokenBudget
from cadenza.parts.grounding.files.passages import rank_document
from cadenza.parts.grounding.files.questions import AskedOfFiles
from cadenza.parts.grounding.files.records import RankedDocument, Section

TOKENIZER = Tokenizer()
WORDS = [
    *("harbour", "ship", "crew", "cargo", "wind", "sail", "route", "letter"),
    *("captain", "price", "barrel", "anchor", "storm", "island", "map", "coast"),
]


def sentence(words: int, seed: int) -> str:
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(words)).capitalize() + "."


def pages(count: int, words: int = 120) -> list[Section]:
    """Each of about one passage."""
    return [Section(f"page {number}", sentence(words, number)) for number in range(1, count + 1)]


def ranked(sections: Sequence[Section], question: str, tokens_max: int, documents: int = 1) -> RankedDocument:
    return rank_document(
        "", sections, AskedOfFiles(question), TokenBudget(tokens_max, tokens_max // documents), TOKENIZER.count
    )
