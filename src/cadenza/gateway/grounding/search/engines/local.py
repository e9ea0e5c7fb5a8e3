"""The engine that answers from documents on this machine: `cadenza index FOLDER` makes its index.

It is asked for nearly every question, so it must know when it has nothing to say: a passage counts only if it has
enough of what the question is about. That is the share of the question's words in the passage, where a rare word
weighs more, and a word that is nowhere in the index counts against. Without an index there are no hits.
"""

import asyncio
import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from cadenza.documents.ranking import STOP_WORDS, words_of
from cadenza.gateway.grounding.search.records import EngineFailed, Hit
from cadenza.store.index_file import index_exists
from cadenza.store.local_index import Found, IndexReader, IndexUnusable, Term, open_reader

LOCAL = "local:"
QUESTION_CHARS_MAX = 4000
TITLE_CHARS_MAX = 120
# Words of questions that do not tell what a question is about. They neither count for a passage nor against it.
WEAK_WORDS = """
    again all also always am anybody anyone anything aren ask before being best better bit both bring call called came
    cannot come comes couldn describe didn doesn don else ever every everybody everyone everything explain few find
    first get gets getting give go goes going good got happen happens hasn haven hello help helpful hey hi information
    isn just keep kind know last let like list ll long look lot lots made make makes many may maybe mean means might
    minus more most much must name need needs never new next nice now often ok okay old one ones only other out over own
    per plus possible put quick quickly re really said same say says see should shouldn show since some somebody someone
    something still such sure take takes thank thanks thing things think times today tomorrow too try under until up use
    used using ve very want wants wasn way well whether while whom whose without won work works wouldn yes yesterday yet
"""
GREETING = re.compile(r"\bgood (morning|afternoon|evening|night|day)\b", re.IGNORECASE)
EMPTY_WORDS = STOP_WORDS | frozenset(WEAK_WORDS.split()) | frozenset(string.ascii_lowercase)

MORE_PASSAGES = 20


class LocalBounds(msgspec.Struct, frozen=True):
    """When a passage counts, and what one search may cost.

    `share_min` and `words_min` were chosen by the experiment in docs/grounding/local-search.md.
    """

    share_min: float = 0.6
    words_min: int = 2  # besides numbers; all of them, if the question has fewer
    time_s: float = 1.0
    candidates: int = 50  # passages that are looked at
    at_once: int = 2  # searches
    per_file: int = 2  # hits, while there are others


class LocalEngine:
    """Searches the index at `path`. Each search opens it anew, so it sees every change at once."""

    name = "local"

    def __init__(self, path: Path, bounds: LocalBounds | None = None) -> None:
        self._path = path
        self._bounds = bounds or LocalBounds()
        self._turn = asyncio.Semaphore(self._bounds.at_once)

    def exists(self) -> bool:
        return index_exists(self._path)

    async def search(self, query: str, count: int) -> list[Hit]:
        words = topic_words(query)
        if not words or not self.exists():
            return []
        async with self._turn:
            return await asyncio.to_thread(self._search, words, count)

    async def close(self) -> None:
        """Nothing to do: each search closes what it opened."""

    def _search(self, words: Sequence[str], count: int) -> list[Hit]:
        try:
            with open_reader(self._path, self._bounds.time_s) as index:
                found = best_passages(index, words, self._bounds)
        except TimeoutError:
            raise EngineFailed("timeout") from None
        except IndexUnusable:
            if not self.exists():  # removed meanwhile
                return []
            raise EngineFailed("unusable") from None
        return [_hit(one) for one in _choose(found, count, self._bounds.per_file)]


def topic_words(query: str) -> list[str]:
    """The words that tell what the question is about."""
    text = unicodedata.normalize("NFC", query[:QUESTION_CHARS_MAX])
    return [word for word in words_of(GREETING.sub(" ", text)) if word not in EMPTY_WORDS]


def best_passages(index: IndexReader, words: Sequence[str], bounds: LocalBounds) -> list[Found]:
    """The passages that have enough of the words, the best first."""
    terms = index.terms(words)
    weights = _weights(terms, index.passages())
    enough = bounds.share_min * sum(weights.values())
    names = {term.stem for term in terms if not term.word.isdigit()}
    names_min = max(1, min(bounds.words_min, len(names)))
    wanted = _needed(terms, weights, enough)
    if not wanted:
        return []
    shares = {one: sum(weights[stem] for stem in one.stems) for one in index.find(wanted, terms, bounds.candidates)}
    found = [one for one, share in shares.items() if share >= enough and len(one.stems & names) >= names_min]
    return sorted(found, key=lambda one: -shares[one])  # equal ones stay in the order of BM25


def _weights(terms: Sequence[Term], passages: int) -> dict[str, float]:
    """The inverse document frequency of each stem, as if the index had a few passages more.

    In a small index a word that occurs nowhere would otherwise outweigh all the words that do.
    """
    count = passages + MORE_PASSAGES
    return {term.stem: math.log(1 + (count - term.passages + 0.5) / (term.passages + 0.5)) for term in terms}


def _needed(terms: Sequence[Term], weights: dict[str, float], enough: float) -> list[Term]:
    """The rarest words: a passage with none of them cannot have enough. None if all known words are not enough."""
    known = sorted((term for term in terms if term.passages), key=lambda term: term.passages)
    left = sum(weights[term.stem] for term in known)
    needed = list[Term]()
    for term in known:
        if left < enough:
            break
        needed.append(term)
        left -= weights[term.stem]
    return needed


def _choose(found: Sequence[Found], count: int, per_file: int) -> list[Found]:
    """The best passages; those beyond `per_file` of one file come last."""
    seen = Counter[int]()
    first, rest = list[Found](), list[Found]()
    for one in found:
        seen[one.file_id] += 1
        (first if seen[one.file_id] <= per_file else rest).append(one)
    return [*first, *rest][:count]


def _hit(found: Found) -> Hit:
    """The title says which file it is, and so does the address, if the folder is not published elsewhere."""
    name = f"{found.folder}/{found.path}"
    title = name if len(name) <= TITLE_CHARS_MAX else f"…{name[1 - TITLE_CHARS_MAX :]}"
    url = f"{found.base_url}{quote(found.path)}" if found.base_url else f"{LOCAL}{quote(name)}"
    return Hit(url + "".join(_fragment(found.label)), ", ".join(filter(None, (title, found.label))), text=found.text)


def _fragment(label: str) -> Iterator[str]:
    """Where in the file: "page 3" becomes #page=3, which viewers of PDF files understand."""
    kind, _, value = label.partition(" ")
    if kind:
        yield f"#{quote(kind, safe='')}={quote(value, safe='')}" if value else f"#{quote(kind, safe='')}"
