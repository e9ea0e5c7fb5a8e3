"""The part of a message in which the person speaks, and the web addresses in it that the person wants read.

Code, quoted lines and pasted pages are left out. Of a long message only the beginning and the end are looked at: a
question about a pasted text is before it or after it. Addresses inside code are left out. So are those of this machine:
they are mostly part of a developer's text, unless the operator allows them to be read.
"""

import re
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from cadenza.core.content import Content
from cadenza.parts.grounding.search.pages.addresses import Network
from cadenza.parts.grounding.search.words import (
    FOLLOW_UP_OPENERS,
    OPENINGS,
    PRONOUNS,
    QUESTION_MARKS,
    QUESTION_WORDS,
    SINCE_WORDS,
    UNSPACED_FOLLOW_UP_OPENERS,
    UNSPACED_QUESTION,
    WHY_WORDS,
)

WINDOW_CHARS = 3000  # at each end of a message
SHORT_CHARS = 700  # a message up to here is read whole
PART_CHARS = 300  # of each end of a longer one
FENCE = "```"
SENTENCE_END = re.compile(r"[.!?](?=\s)|[。！？\n]")
QUOTATION = re.compile(r"[\"“][^\"”\n]{12,}[\"”]|(?<!\w)'[^'\n]{12,}'(?!\w)")
CODE_SIGN = re.compile(r"\(\)|\);|=>|[{;]$|</|==", re.MULTILINE)
FIRST_WORD = re.compile(r"[^\W\d_][^\s,:;.!?]*")
FOLLOW_UP_WORDS_MAX = 10
SHORT_WORDS = 3  # "since when?", "who scored?"
SHORT_QUESTION_WORDS = QUESTION_WORDS | SINCE_WORDS
DOMAIN = r"(?:[a-z0-9-]{1,63}\.){1,4}(?:com|org|net|io|ai|dev|edu|gov|info|eu|uk|de|fr|es|it|nl|ch|at|jp|cn|ca)/"
REST = r"[^\s<>\"`|\\^{}\u3000-\u303f\uff00-\uff0f]+"
URL = re.compile(rf"(?:https?://|(?<![\w.@/-])(?:www\.|{DOMAIN})){REST}", re.IGNORECASE)
URLS_MAX = 20
URL_CHARS_MAX = 2000
URL_CLOSING = {")": "(", "]": "["}
COMMANDS = ("curl ", "wget ", "git clone ", "fetch(", "pip install ", "docker ")
URL_TRAILING_MARKS = ".,;:!?'*_~…"
QUOTES = "\"'`"


class Question(Content, msgspec.Struct, frozen=True):
    """What the person says, without web addresses; the addresses; and whether the message has code."""

    text: str
    urls: tuple[str, ...]
    has_code: bool


def find_question(message: str, loopback: Sequence[Network] = ()) -> Question:
    """`loopback` are the networks of this machine that may be read: other addresses of it are left out."""
    head, tail = message, ""
    if len(message) > 2 * WINDOW_CHARS:
        head, tail = message[:WINDOW_CHARS], message[-WINDOW_CHARS:]
    spoken, has_code = _without_code(head)
    if tail:
        fences = tail.count(FENCE) or head.count(FENCE)  # an odd number: the tail begins inside code
        after, tail_has_code = _without_code(tail, begins_inside=fences % 2 == 1)
        spoken, has_code = f"{spoken}\n{after}", has_code or tail_has_code
    spoken = _without_quotes(spoken)
    text = (URL.sub(" ", spoken) if _may_have_urls(spoken) else spoken).strip()
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
    """A text without the sentences that it quotes."""
    return QUOTATION.sub(" ", text) if '"' in text or "'" in text or "“" in text else text


def _without_code(text: str, *, begins_inside: bool = False) -> tuple[str, bool]:
    if FENCE not in text:
        return ("", True) if begins_inside else (text, CODE_SIGN.search(text) is not None)
    return "\n".join(text.split(FENCE)[begins_inside::2]), True


def _without_quotes(text: str) -> str:
    if ">" not in text:
        return text
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith(">"))


def _spoken_end(text: str) -> str:
    """The sentences of a long text that ask: the first or the last ones, or both if neither do."""
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


def is_follow_up(words: Sequence[str]) -> bool:
    """Whether a message continues the one before: "and in Spain?", "what about its price?". See `split_words`."""
    if not 0 < len(words) <= FOLLOW_UP_WORDS_MAX:
        return False
    if any(tuple(words[: len(opener)]) == opener for opener in FOLLOW_UP_OPENERS):
        return True
    if words[0].startswith(UNSPACED_FOLLOW_UP_OPENERS):
        return True
    is_short = len(words) <= SHORT_WORDS and words[0] in SHORT_QUESTION_WORDS
    return words[0] not in WHY_WORDS and (points_back(words) or is_short)


def points_back(words: Sequence[str]) -> bool:
    return not PRONOUNS.isdisjoint(words)


def find_urls(text: str, edge_chars: int | None = None, loopback: Sequence[Network] = ()) -> tuple[str, ...]:
    """The addresses in a text, or only those within `edge_chars` of its beginning or its end.

    `loopback` are the networks of this machine that may be read.
    """
    if not _may_have_urls(text):
        return ()
    found = dict[str, None]()
    for match in URL.finditer(text):
        if edge_chars is not None and edge_chars <= match.start() and match.end() <= len(text) - edge_chars:
            continue
        if not _is_in_code(text, match.start()) and (url := _cleaned(match.group(), loopback)) is not None:
            found[url] = None
            if len(found) == URLS_MAX:
                break
    return tuple(found)


def _may_have_urls(text: str) -> bool:
    return "/" in text or "www." in text.lower()


def _is_in_code(text: str, start: int) -> bool:
    """Whether a command, an assignment or a call stands before the address on its line."""
    before = text[max(start - 200, 0) : start].rpartition("\n")[2]
    if before.endswith("`") or (before[-1:] in QUOTES and before[-2:-1] in "(=[{:" and before[-2:-1]):
        return True
    return any(command in before for command in COMMANDS)


def _cleaned(raw: str, loopback: Sequence[Network]) -> str | None:
    if len(raw) > URL_CHARS_MAX:
        return None
    url = _without_trailing_marks(raw)
    if not url.lower().startswith(("http://", "https://")):
        url = f"https://{url}"
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or "@" in parts.netloc or not _may_be_read(host, loopback):
        return None
    return url


def _may_be_read(host: str, loopback: Sequence[Network]) -> bool:
    """Whether it is not this machine, or an address of it within these networks."""
    if not (host in ("localhost", "::1") or host.startswith("127.")):
        return True
    try:
        addresses = [ip_address(one) for one in (("127.0.0.1", "::1") if host == "localhost" else (host,))]
    except ValueError:  # it only begins like an address
        return False
    return any(address in network for address in addresses for network in loopback)


def _without_trailing_marks(url: str) -> str:
    """Without the punctuation of the sentence. A closing bracket stays if the address has the opening one."""
    unopened = {closing: url.count(closing) - url.count(opening) for closing, opening in URL_CLOSING.items()}
    end = len(url)
    while end and (url[end - 1] in URL_TRAILING_MARKS or unopened.get(url[end - 1], 0) > 0):
        if url[end - 1] in unopened:
            unopened[url[end - 1]] -= 1
        end -= 1
    return url[:end]
