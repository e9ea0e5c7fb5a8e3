"""The words of a message, as the other modules compare them: in lower case, without articles."""

import re

WORD = re.compile(r"[^\W_]+(?:['’.\-][^\W_]+)*")
ARTICLES = frozenset(("the", "a", "an", "please", "pls", "plz", "quick", "quickly", "bitte", "mal"))


def split_words(text: str) -> list[str]:
    """The words of a message in lower case, without articles and without the ending of "what's"."""
    found = WORD.findall(text.lower().replace("’", "'"))
    return [word.removesuffix("'s") for word in found if word not in ARTICLES]
