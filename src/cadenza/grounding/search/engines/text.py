"""Plain text from what clients and engines send: without tags, entities and characters that cannot be seen."""

import html
import re

QUERY_CHARACTERS_MAX = 400  # the most that Brave and Tavily take
QUERY_WORDS_MAX = 50  # the most that Brave takes
QUERY_CHARACTERS_READ = 4000
EXCESS = 4  # so many times the wanted length is read: tags and entities take room
JOINERS = "\u200c\u200d"  # they are part of Persian words and of emoji

# The input is short, so that no pattern takes long.
_HIDDEN = re.compile(r"<!--.*?(?:-->|$)|<(script|style)\b.*?(?:</\1\s*>|$)", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"</?[a-zA-Z!?][^<>]*(?:>|$)")


def plain_text(markup: str, characters_max: int) -> str:
    """The text of a title or a snippet. It is cut at the end of a word, and marked if it was cut."""
    text = markup[: characters_max * EXCESS]
    text = _without_tags(html.unescape(_without_tags(text)))
    return _cut(" ".join(printable(text).split()), characters_max)


def fit_query(query: str) -> str:
    """The query as engines take it: one line of at most 50 words and 400 characters."""
    words = printable(query[:QUERY_CHARACTERS_READ]).split()[:QUERY_WORDS_MAX]
    text = " ".join(words)
    return text if len(text) <= QUERY_CHARACTERS_MAX else _whole_words(text, QUERY_CHARACTERS_MAX)


def printable(text: str) -> str:
    """Without control, format and surrogate characters. White space of any kind becomes a space."""
    kept = (character for character in text if character.isprintable() or character.isspace() or character in JOINERS)
    return "".join(" " if character.isspace() else character for character in kept)


def _without_tags(text: str) -> str:
    return _TAG.sub("", _HIDDEN.sub(" ", text))


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else f"{_whole_words(text, characters_max - 1)}…"


def _whole_words(text: str, characters_max: int) -> str:
    """The beginning of a text that is longer. A single word that is too long is cut itself."""
    return text[: characters_max + 1].rpartition(" ")[0] or text[:characters_max]
