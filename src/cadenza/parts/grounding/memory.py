"""Memory: picks the notes of an account that fit a question, within a limit of tokens. One indexed read.

A greeting or thanks gets no note. To any other message:

    a wish ("Answer in French", "Call me Ann") is added always
    a fact ("The cat is called Mina") is added if the message has a word of it, or is about the person who asks

If these do not fit into the tokens, the best by rank are given, and then the newest as long as there is room. Notes are
content: neither they nor the question are logged or kept.
"""

import asyncio
import re

from cadenza.core.tokens import estimate_tokens
from cadenza.parts.grounding import note_rows as notes
from cadenza.parts.grounding.files.questions import is_small_talk
from cadenza.parts.grounding.files.ranking import rank
from cadenza.store.store import Store

NOTE_OVERHEAD_TOKENS = 4  # of the list item
INLINE_CHARS = 4 * 1024  # more text is ranked off the event loop
QUESTION_CHARS_MAX = 4000  # used for ranking
# Words of a wish for how to answer.
WISH = re.compile(
    r"(?i)\b(?:always|never|prefer(?:red|ably|s)?|please|answer(?:s)?|repl(?:y|ies)|respond|responses?|write|speak|"
    r"use|avoid|explain|format|keep|call me|address me|my name is|i am called|"
    r"(?:don't|don’t|do not) (?:use|write|add|ask))\b"
)
# Words of a question about the person who asks.
ABOUT_ASKER = re.compile(
    r"(?i)\b(?:my|mine|myself|our|ours|(?:am|was|did|should|shall|could|may|must) (?:i|we)|"
    r"(?:what|where|when|who|which|why|whom) (?:do|can|will|would) (?:i|we)|(?:i|we) (?:should|could)|"
    r"(?:for|about|suit|suits|fit|fits|of) (?:me|us)|(?:know|remember) (?:about )?(?:me|us))\b"
)


async def recall(store: Store, account_id: str, question: str, tokens_max: int) -> list[str]:
    """The notes to give with a question: all that fit it, oldest first, or the best first."""
    if is_small_talk(question[:QUESTION_CHARS_MAX]):
        return []
    texts = await notes.texts_of(store, account_id)
    if sum(map(len, texts)) <= INLINE_CHARS:
        return _pick(texts, question[:QUESTION_CHARS_MAX], tokens_max)
    return await asyncio.to_thread(_pick, texts, question[:QUESTION_CHARS_MAX], tokens_max)


def _pick(texts: list[str], question: str, tokens_max: int) -> list[str]:
    """Those that fit or, if there is no room for all of them, by rank and then by age, the newer first."""
    fitting = texts if ABOUT_ASKER.search(question) else _fitting(texts, question)
    newest_first = fitting[::-1]
    costs = [estimate_tokens(note) + NOTE_OVERHEAD_TOKENS for note in newest_first]
    if sum(costs) <= tokens_max:
        return fitting
    picked, left_tokens = list[str](), tokens_max
    for index in dict.fromkeys([*rank(newest_first, question), *range(len(fitting))]):
        if costs[index] <= left_tokens:
            picked.append(newest_first[index])
            left_tokens -= costs[index]
    return picked


def _fitting(texts: list[str], question: str) -> list[str]:
    """Wishes, and facts with a word of the question."""
    found = set(rank(texts, question))
    return [note for index, note in enumerate(texts) if index in found or WISH.search(note)]
