"""Whether a message needs the web. What the person says about searching decides, then the score of the words.

Pure, and bounded: only the beginning and the end of a long message are looked at. How well it does is in
docs/grounding/when-it-searches.md.
"""

from collections.abc import Iterable, Sequence
from datetime import date
from functools import partial
from itertools import chain

import msgspec

from cadenza.core.content import Content
from cadenza.parts.grounding.search.intent.question import find_question, is_follow_up
from cadenza.parts.grounding.search.intent.scorer import score
from cadenza.parts.grounding.search.pages.addresses import Network
from cadenza.parts.grounding.search.words import (
    SEARCH_REFUSALS,
    SEARCH_REQUESTS,
    UNSPACED_SEARCH_REFUSALS,
    UNSPACED_SEARCH_REQUESTS,
    split_words,
)

LOOK_BACK = 4  # messages before the last one that a follow-up may refer to


class Decision(Content, msgspec.Struct, frozen=True):
    """Whether to search, and why: "none" (no words), "forbidden", "url", "asked", "follow_up" or "score".

    `urls` are the addresses that the person wants read; those of a follow-up are in an earlier message.
    """

    needs_web: bool
    reason: str
    urls: tuple[str, ...] = ()


def decide(texts: Sequence[str], today: date, loopback: Sequence[Network] = ()) -> Decision:
    """`texts` are the last user messages, oldest first; the last one is the question.

    Addresses of this machine count only within the networks of `loopback`.
    """
    find = partial(find_question, loopback=loopback)
    question = find(texts[-1] if texts else "")
    words = split_words(question.text)
    if _says(question.text, words, SEARCH_REFUSALS, UNSPACED_SEARCH_REFUSALS):
        return Decision(needs_web=False, reason="forbidden")
    if question.urls:
        return Decision(needs_web=True, reason="url", urls=question.urls)
    if not words:
        return Decision(needs_web=False, reason="none")
    if _says(question.text, words, SEARCH_REQUESTS, UNSPACED_SEARCH_REQUESTS):
        return Decision(needs_web=True, reason="asked")
    earlier = texts[-2 : -2 - LOOK_BACK : -1]
    needs_web = score(chain([question], map(find, earlier)), today) > 0
    urls = next((one.urls for one in map(find, earlier) if one.urls), ()) if needs_web and is_follow_up(words) else ()
    return Decision(needs_web, "follow_up" if urls else "score", urls)


def _says(text: str, words: Sequence[str], phrases: Iterable[str], unspaced: Iterable[str]) -> bool:
    """Whether the text, whose words these are, has one of the phrases."""
    joined = f" {' '.join(words)} "
    if any(phrase in joined for phrase in phrases):
        return True
    return not text.isascii() and any(phrase in text for phrase in unspaced)
