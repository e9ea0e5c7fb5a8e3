"""Sets of words, written as one text."""


def word_set(listed: str) -> frozenset[str]:
    return frozenset(listed.split())
