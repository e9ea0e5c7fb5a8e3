"""Whether a message needs the web: rules over the words of the last user message, in a fixed order, each with a name.

Pure, and linear in the message. What the person says about searching comes first, then tasks that need no facts (code,
a given text, maths, fiction), then facts that change. docs/grounding/when-it-searches.md has the rules and how well
they do.
"""

from collections.abc import Sequence
from datetime import date

import msgspec

from cadenza.gateway.grounding.search.intent.follow_ups import is_follow_up
from cadenza.gateway.grounding.search.intent.phrases import find_kinds, split_words
from cadenza.gateway.grounding.search.intent.question import (
    asking_clause,
    find_question,
    is_question,
    without_quotations,
)
from cadenza.gateway.grounding.search.intent.rules import RULES, Message, find_years

LOOK_BACK = 4  # messages before the last one that a follow-up may refer to
NEED_WEB = frozenset(("asked", "url", "recency", "changing", "version", "named"))
NO_FACTS = frozenset(("forbidden", "code", "text", "translation", "maths", "creative", "chat", "assistant", "personal"))


class Decision(msgspec.Struct, frozen=True):
    """What was decided, and the rule that decided it.

    `is_question` is true for every question of fact, even if it needs no web: documents of one's own may answer it.
    `urls` are the addresses to read; those of a follow-up are in the message that it refers to.
    """

    needs_web: bool
    reason: str
    is_question: bool = False
    urls: tuple[str, ...] = ()


def decide(asked: Sequence[str], today: date) -> Decision:
    """`asked` are the last user messages, oldest first; the last one is the question."""
    if not asked:
        return Decision(needs_web=False, reason="none")
    decision, words = _decide_alone(asked[-1], today)
    if decision.reason not in ("none", "settled") or not is_follow_up(words):
        return decision
    for earlier in reversed(asked[-1 - LOOK_BACK : -1]):
        before, words = _decide_alone(earlier, today)
        if before.needs_web:
            return Decision(needs_web=True, reason="follow_up", is_question=True, urls=before.urls)
        if before.reason != "none" or not is_follow_up(words):
            break
    return decision


def _decide_alone(asked: str, today: date) -> tuple[Decision, list[str]]:
    question = find_question(asked)
    text = without_quotations(question.text)
    words = split_words(text)
    clause = asking_clause(text)
    opening = words if clause is text else split_words(clause)
    message = Message(
        text, words, opening, find_kinds(text, words), is_question(text), question.has_code, find_years(text), today
    )
    reason = next((name for name, applies in RULES if applies(message)), "none")
    if question.urls and reason != "forbidden":
        reason = "url"
    needs_web = reason in NEED_WEB
    asks_fact = needs_web or (message.asks and reason not in NO_FACTS)
    return Decision(needs_web, reason, asks_fact, question.urls if needs_web else ()), words
