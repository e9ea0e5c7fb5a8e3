"""Recognises a message that continues the one before: "and in Spain?", "what about its price?", "who is its owner"."""

from collections.abc import Sequence

from cadenza.grounding.search.intent.word_set import word_set

FOLLOW_UP_WORDS_MAX = 10
OPENERS = """
    and, or, also, ok and, okay and, ok but, but, what about, how about, and what about, same for, then,
    und, oder, und was ist mit, was ist mit, wie ist es mit, et, et pour, qu'en est-il, y, y en, y qué tal
"""
OPENING_PHRASES = tuple(tuple(phrase.split()) for phrase in OPENERS.split(","))
POINTERS = word_set(
    """
    it its he she his her him they them their theirs there that those this these one ones er sie es sein seine ihr
    ihre dort il elle ils elles son sa ses su sus allí
    """
)
UNSPACED_OPENERS = ("那", "那么", "では", "じゃあ", "それ")
SHORT_WORDS = 3  # "since when?", "who scored?"
ASKING = word_set("who when where since until which seit wann wo wer depuis quand où qui desde cuándo dónde quién")
WHY = word_set("why how warum pourquoi")


def is_follow_up(words: Sequence[str]) -> bool:
    """`words` are those of the message, in lower case and without articles."""
    if not 0 < len(words) <= FOLLOW_UP_WORDS_MAX:
        return False
    if any(tuple(words[: len(opener)]) == opener for opener in OPENING_PHRASES) or words[0].startswith(
        UNSPACED_OPENERS
    ):
        return True
    return words[0] not in WHY and (points_back(words) or (len(words) <= SHORT_WORDS and words[0] in ASKING))


def points_back(words: Sequence[str]) -> bool:
    return not POINTERS.isdisjoint(words)
