"""Finds the part of a message in which the person speaks: not the code, the quotes or the page that was pasted with it.

Of a long message only the beginning and the end are looked at: a question about a pasted text is before it or after it.
"""

import re
from collections.abc import Sequence

import msgspec

from cadenza.grounding.search.intent.urls import find_urls, without_urls
from cadenza.grounding.search.intent.word_set import word_set
from cadenza.grounding.search.pages.addresses import Network

WINDOW_CHARS = 3000  # at each end of a message
SHORT_CHARS = 700  # a message up to here is read whole
PART_CHARS = 300  # of each end of a longer one
FENCE = "```"
SENTENCE_END = re.compile(r"[.!?](?=\s)|[。！？\n]")
QUOTATION = re.compile(r"[\"“][^\"”\n]{12,}[\"”]|(?<!\w)'[^'\n]{12,}'(?!\w)")
CODE_SIGN = re.compile(r"\(\)|\);|=>|[{;]$|</|==", re.MULTILINE)
UNSPACED_QUESTION = re.compile(r"多少|什么|哪|几点|怎么|谁|吗|呢|何時|何で|誰|どこ|いつ|いくら|ですか|ますか")
QUESTION_MARKS = ("?", "？")
OPENINGS = word_set(
    """
    what whats what's who whos who's when whens when's where where's which why how how's whose is are do does did
    has have can could will would should any best was were tell give show list find search look google compare
    summarise summarize explain translate rewrite write make turn extract proofread check describe fix convert use
    here wer wann wo wie welche welcher welches warum wieso ist sind gibt hat kann erkläre fasse übersetze such
    suche qui que quoi quel quelle quels quelles quand où comment combien pourquoi est-ce résume traduis cherche
    explique qué quién quiénes cuándo dónde cómo cuánto cuánta cuál cuáles hay resume traduce busca explica
    """
)
FIRST_WORD = re.compile(r"[^\W\d_][^\s,:;.!?]*")


class Question(msgspec.Struct, frozen=True):
    """What the person says, without web addresses, the addresses in it, and whether code came with it."""

    text: str
    urls: tuple[str, ...]
    has_code: bool


def find_question(message: str, loopback: Sequence[Network] = ()) -> Question:
    """`loopback` are the networks of this machine that may be read: addresses in others are left out."""
    head, tail = _ends(message)
    spoken, has_code = _without_code(head)
    if tail:
        fences = tail.count(FENCE) or head.count(FENCE)  # an odd number: the tail begins inside code
        after, tail_has_code = _without_code(tail, begins_inside=fences % 2 == 1)
        spoken, has_code = f"{spoken}\n{after}", has_code or tail_has_code
    spoken = _without_quotes(spoken)
    text = without_urls(spoken).strip()
    if len(text) <= SHORT_CHARS:
        return Question(text, find_urls(spoken, loopback=loopback), has_code)
    return Question(_spoken_end(text), find_urls(spoken, PART_CHARS, loopback), has_code)


def is_question(text: str) -> bool:
    """Whether a text has a question mark or opens as questions and requests do."""
    if any(mark in text for mark in QUESTION_MARKS):
        return True
    if not text.isascii() and UNSPACED_QUESTION.search(text):
        return True
    first = FIRST_WORD.search(text)
    return first is not None and first.group().lower().replace("’", "'") in OPENINGS


def without_quotations(text: str) -> str:
    """A text without the sentences that it quotes: they are talked about, not said."""
    return QUOTATION.sub(" ", text) if '"' in text or "'" in text or "“" in text else text


def _ends(message: str) -> tuple[str, str]:
    if len(message) <= 2 * WINDOW_CHARS:
        return message, ""
    return message[:WINDOW_CHARS], message[-WINDOW_CHARS:]


def _without_code(text: str, *, begins_inside: bool = False) -> tuple[str, bool]:
    if FENCE not in text:
        return ("", True) if begins_inside else (text, CODE_SIGN.search(text) is not None)
    return "\n".join(text.split(FENCE)[begins_inside::2]), True


def _without_quotes(text: str) -> str:
    if ">" not in text:
        return text
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith(">"))


def _spoken_end(text: str) -> str:
    """The end of a long text that asks something: the first sentences or the last ones, or both if neither does."""
    head, tail = text[:PART_CHARS], text[-PART_CHARS:]
    first = _first_sentences(head.rsplit(None, 1)[0])  # without the word that was cut
    last = _last_sentences(tail.split(None, 1)[-1])
    if is_question(first):
        return f"{first}\n{last}" if last.endswith(QUESTION_MARKS) else first
    return last if is_question(last) else f"{first}\n{last}"


def _first_sentences(text: str) -> str:
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    return text[: ends[min(1, len(ends) - 1)]].strip() if ends else text


def _last_sentences(text: str) -> str:
    ends = [match.end() for match in SENTENCE_END.finditer(text) if text[match.end() :].strip()]
    return text[ends[-min(2, len(ends))] :].strip() if ends else text
