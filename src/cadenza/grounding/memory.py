"""Memory: picks the notes of an account that fit a question, within a limit of tokens. One indexed read.

If all notes fit, all are given; otherwise the best by rank, and then the newest as long as there is room. Notes are
content: neither they nor the question are logged or kept.
"""

import asyncio

from cadenza.core.tokens import estimate_tokens
from cadenza.grounding.files.ranking import rank
from cadenza.store.store import Store
from cadenza.store.tables import notes

NOTE_OVERHEAD_TOKENS = 4  # of the list item
INLINE_CHARS = 4 * 1024  # more text is ranked off the event loop
QUESTION_CHARS_MAX = 4000  # used for ranking


async def recall(store: Store, account_id: str, question: str, tokens_max: int) -> list[str]:
    """The notes to give with a question: all of them, oldest first, or the best first."""
    texts = await notes.texts_of(store, account_id)
    # A text has no more tokens than bytes.
    if sum(len(text.encode()) + NOTE_OVERHEAD_TOKENS for text in texts) <= tokens_max:
        return texts
    if sum(map(len, texts)) <= INLINE_CHARS:
        return _pick(texts, question, tokens_max)
    return await asyncio.to_thread(_pick, texts, question, tokens_max)


def _pick(texts: list[str], question: str, tokens_max: int) -> list[str]:
    """All notes or, if they do not fit, by rank and then by age. Of notes of equal rank, the newer comes first."""
    newest_first = texts[::-1]
    costs = [estimate_tokens(note) + NOTE_OVERHEAD_TOKENS for note in newest_first]
    if sum(costs) <= tokens_max:
        return texts
    ranked = rank(newest_first, question[:QUESTION_CHARS_MAX])
    picked, left_tokens = list[str](), tokens_max
    for index in dict.fromkeys([*ranked, *range(len(texts))]):
        if costs[index] <= left_tokens:
            picked.append(newest_first[index])
            left_tokens -= costs[index]
    return picked
