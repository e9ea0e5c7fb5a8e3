"""How lists of words are written in the source: between blanks."""


def word_set(listed: str) -> frozenset[str]:
    return frozenset(listed.split())
