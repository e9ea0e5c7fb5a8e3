"""Memory: picks the notes of an account that fit a question, within a limit of tokens. One indexed read.

All notes are given where they fit. Otherwise the best ones are, by rank, and then the newest ones as long as there is
room. Notes are content: neither they nor the question are logged or kept.
"""

import asyncio

from cadenza.core.tokens import estimate_tokens
from cadenza.grounding.files.ranking import rank
from cadenza.store.store import Store
from cadenza.store.tables import notes

NOTE_OVERHEAD_TOKENS = 4  # what sets a note apart from the next one
INLINE_CHARS = 4 * 1024  # more text is ranked off the event loop
QUESTION_CHARS_MAX = 4000  # that are ranked by


async def recall(store: Store, account_id: str, question: str, tokens_max: int) -> list[str]:
    """The texts of the notes to give with a question: oldest first if it is all of them, else the best first."""
    texts = await notes.texts_of(store, account_id)
    if sum(len(text.encode()) + NOTE_OVERHEAD_TOKENS for text in texts) <= tokens_max:  # a token is a byte or more
        return texts
    if sum(map(len, texts)) <= INLINE_CHARS:
        return _pick(texts, question, tokens_max)
    return await asyncio.to_thread(_pick, texts, question, tokens_max)


def _pick(texts: list[str], question: str, tokens_max: int) -> list[str]:
    """All notes or, where they do not fit, by rank and then by age. Of notes that rank alike, the newer comes first."""
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
