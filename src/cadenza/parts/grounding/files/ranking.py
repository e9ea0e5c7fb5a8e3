"""Ranks texts by how well they fit a question: BM25, by the full-text index of SQLite, in memory.

Words are compared by their stems, without accents and without regard to case. Chinese, Japanese and Korean have no
spaces between words, so each of their characters counts as a word. Nothing is kept, and nothing is written to a disk.
"""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import pairwise

from cadenza.parts.grounding.word_set import word_set

TOKENIZER = "porter unicode61 remove_diacritics 2"
WORDS_MAX = 64  # of a question: half of them from its beginning, half from its end
WORD = re.compile(r"[^\W_]+")
LAST_DIGITS = re.compile(r"\d{3,}$")
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")
STOP_WORDS = word_set("""
    a about an and any are as at be been but by can could did do does for from had has have how i if in into is it
    its me my no not of on or our please so tell than that the their them then there these they this those to us was
    we were what when where which who why will with would you your
    """)


def spaced(text: str) -> str:
    """The text with blanks around every Chinese, Japanese or Korean character."""
    return UNSPACED.sub(r" \g<0> ", text) if UNSPACED.search(text) else text


def words_of(question: str) -> list[str]:
    """The words of a question without stop words, each once; all of its words if it has only stop words."""
    words = list(dict.fromkeys(WORD.findall(spaced(question).lower())))
    words = [word for word in words if word not in STOP_WORDS] or words
    return words if len(words) <= WORDS_MAX else words[: WORDS_MAX // 2] + words[-WORDS_MAX // 2 :]


def with_variants(words: Sequence[str]) -> list[str]:
    """The words, those that follow each other as phrases, and other ways to write those with digits.

    `customer 45123` is also `customer45123`, and the reverse. A text with a phrase fits better than one with its words.
    """
    joined = [f"{word}{after}" for word, after in pairwise(words) if after.isdigit() and word.isalpha()]
    digits = [found[0] for word in words if (found := LAST_DIGITS.search(word)) and found[0] != word]
    phrases = [f"{word} {after}" for word, after in pairwise(words)]
    return list(dict.fromkeys([*words, *joined, *digits, *phrases]))


def match_expression(words: Sequence[str]) -> str:
    """A query of FTS5 for any of the words. Quotes keep it from reading a word as an operator."""
    return " OR ".join(f'"{word}"' for word in words)


def rank(texts: Sequence[str], question: str) -> list[int]:
    """The indexes of the texts that have a word of the question, the best match first."""
    return [index for index, _ in scored(texts, words_of(question))]


def scored(texts: Sequence[str], words: Sequence[str]) -> list[tuple[int, float]]:
    """The indexes of the texts that have one of the words, each with its score, the best first."""
    if not words or not texts:
        return []
    with closing(sqlite3.connect(":memory:")) as index:
        index.execute("pragma temp_store = memory")  # a large sort would use a file
        index.execute(f"create virtual table texts using fts5(text, content='', tokenize='{TOKENIZER}')")
        index.executemany("insert into texts(rowid, text) values (?, ?)", enumerate(_indexed(texts, words)))
        found = index.execute(
            "select rowid, -rank from texts where texts match ? order by rank, rowid", (match_expression(words),)
        )
        return found.fetchall()


def _indexed(texts: Sequence[str], words: Sequence[str]) -> Iterable[str]:
    """The texts with blanks around those characters that the question has: others need not be found."""
    characters = [word for word in words if UNSPACED.fullmatch(word)]
    if not characters:
        return texts
    asked = re.compile(f"[{''.join(characters)}]")
    return (asked.sub(r" \g<0> ", text) for text in texts)
