"""Whether a message needs the web. What the person says about searching decides, then the score of the words.

Pure, and bounded: only the beginning and the end of a long message are looked at. How well it does is in
docs/grounding/when-it-searches.md.
"""

from collections.abc import Iterable, Sequence
from datetime import date
from functools import partial
from itertools import chain

import msgspec

from cadenza.grounding.search.intent.follow_ups import is_follow_up
from cadenza.grounding.search.intent.question import Question, find_question
from cadenza.grounding.search.intent.said import asks_to_search, forbids_search
from cadenza.grounding.search.intent.scorer import score
from cadenza.grounding.search.intent.words import split_words
from cadenza.grounding.search.pages.addresses import Network

LOOK_BACK = 4  # messages before the last one that a follow-up may refer to


class Decision(msgspec.Struct, frozen=True):
    """What was decided, and why: "none" (no words), "forbidden", "url", "asked", "follow_up" or "score".

    `urls` are the addresses that the person wants read; those of a follow-up are in a message before.
    """

    needs_web: bool
    reason: str
    urls: tuple[str, ...] = ()


def decide(asked: Sequence[str], today: date, loopback: Sequence[Network] = ()) -> Decision:
    """`asked` are the last user messages, oldest first; the last one is the question.

    Addresses of this machine count only within the networks of `loopback`.
    """
    find = partial(find_question, loopback=loopback)
    question = find(asked[-1] if asked else "")
    words = split_words(question.text)
    if forbids_search(question.text, words):
        return Decision(needs_web=False, reason="forbidden")
    if question.urls:
        return Decision(needs_web=True, reason="url", urls=question.urls)
    if not words:
        return Decision(needs_web=False, reason="none")
    if asks_to_search(question.text, words):
        return Decision(needs_web=True, reason="asked")
    earlier = asked[-2 : -2 - LOOK_BACK : -1]
    needs_web = score(chain([question], map(find, earlier)), today) > 0
    urls = _first_urls(map(find, earlier)) if needs_web and is_follow_up(words) else ()
    return Decision(needs_web, "follow_up" if urls else "score", urls)


def _first_urls(questions: Iterable[Question]) -> tuple[str, ...]:
    return next((question.urls for question in questions if question.urls), ())
