"""The engine that answers from documents on this machine: `cadenza index FOLDER` makes its index.

It is asked for every message, so it must know when it has nothing to say: a passage counts only if it has
enough of what the question is about. That is the share of the question's words in the passage, where a rare word
weighs more, and a word that is nowhere in the index counts against. Without an index there are no hits.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from urllib.parse import quote

import msgspec

from cadenza.grounding.index.index_file import index_exists
from cadenza.grounding.index.local_index import Found, IndexReader, IndexUnusable, Term, open_reader
from cadenza.grounding.search.engines.local_topics import Topic, find_topics
from cadenza.grounding.search.records import EngineFailed, Hit

LOCAL = "local:"
TITLE_CHARS_MAX = 120
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
        topics = list(find_topics(query))
        if not topics or not self.exists():
            return []
        async with self._turn:
            return await asyncio.to_thread(self._search, topics, count)

    async def close(self) -> None:
        """Nothing to do: each search closes what it opened."""

    def _search(self, topics: Sequence[Topic], count: int) -> list[Hit]:
        try:
            with open_reader(self._path, self._bounds.time_s) as index:
                found = _find(index, topics, self._bounds)
        except TimeoutError:
            raise EngineFailed("timeout") from None
        except IndexUnusable:
            if not self.exists():  # removed meanwhile
                return []
            raise EngineFailed("unusable") from None
        return [_hit(one) for one in _choose(found, count, self._bounds.per_file)]


def _find(index: IndexReader, topics: Sequence[Topic], bounds: LocalBounds) -> list[Found]:
    """The passages of the files that the question names, if there are such files; else those that fit its topics."""
    for topic in topics:
        if topic.files and (found := passages_of_files(index, topic, bounds)):
            return found
    return _merged([best_passages(index, topic, bounds) for topic in topics if not topic.files])


def passages_of_files(index: IndexReader, topic: Topic, bounds: LocalBounds) -> list[Found]:
    """The passages of the named files, those with the most words first."""
    terms = [term for term in index.terms(topic.words) if term.passages]
    if not terms:
        return []
    weights = _weights(terms, index.passages())
    names = tuple(f"{before}{name}" for name in topic.files for before in "/ ")
    found = [one for one in index.find(terms, terms, bounds.candidates) if f"/{one.path}".lower().endswith(names)]
    return sorted(found, key=lambda one: -sum(weights[stem] for stem in one.stems))


def best_passages(index: IndexReader, topic: Topic, bounds: LocalBounds) -> list[Found]:
    """The passages that have enough of the words, the best first."""
    terms = index.terms(topic.words)
    stems = {term.stem for term in terms}
    soft = [term for term in index.terms(topic.soft) if term.stem not in stems]
    weights = _weights([*terms, *soft], index.passages())
    enough = bounds.share_min * sum(weights[stem] for stem in stems)
    names = {term.stem for term in terms if not term.word.isdigit()}
    names_min = max(1, min(bounds.words_min, len(names)))
    wanted = _needed(terms, weights, enough)
    if not wanted:
        return []
    found = [
        one
        for one in index.find(wanted, [*terms, *soft], bounds.candidates)
        if sum(weights[stem] for stem in one.stems & stems) >= enough and len(one.stems & names) >= names_min
    ]
    # Equal ones stay in the order of BM25.
    return sorted(found, key=lambda one: -sum(weights[stem] for stem in one.stems))


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


def _merged(found: Sequence[Sequence[Found]]) -> list[Found]:
    """The passages for the whole question, then in turn those for each of its parts; each once."""
    if not found:
        return []
    whole, *parts = found
    in_turn = (one for row in zip_longest(*parts) for one in row if one)
    return list({(one.file_id, one.label, one.text): one for one in (*whole, *in_turn)}.values())


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
