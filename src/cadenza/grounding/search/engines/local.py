"""The engine that answers from documents on this machine: `cadenza index FOLDER` makes its index.

It is asked for every message, so it must find out when its documents have nothing to say. A passage counts only if it
has enough of what the question is about: the share of the question's words in it, where a rare word weighs more, and a
word that is nowhere in the index counts against. Without an index there are no hits.
"""

import asyncio
import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from urllib.parse import quote

import msgspec

from cadenza.core.content import Content
from cadenza.grounding.files.ranking import STOP_WORDS, words_of
from cadenza.grounding.index.local_index import (
    FoundPassage,
    IndexReader,
    IndexUnusable,
    Term,
    index_exists,
    open_reader,
)
from cadenza.grounding.search.records import EngineFailed, Hit
from cadenza.grounding.search.words import LIVE_WORDS, SOFT_WORDS, TASK_WORDS, WEAK_WORDS

LOCAL = "local:"
TITLE_CHARS_MAX = 120
MORE_PASSAGES = 20
QUESTION_CHARS_MAX = 4000
PARTS_MAX = 3
PART_WORDS_MIN = 2
EMPTY_WORDS = STOP_WORDS | WEAK_WORDS | TASK_WORDS | frozenset(string.ascii_lowercase)
LANGUAGES = "arabic|chinese|danish|dutch|english|finnish|french|german|italian|japanese|norwegian|polish|portuguese"
PHRASES = re.compile(  # these words say nothing only together
    rf"\bgood (?:morning|afternoon|evening|night|day)\b|\bin(?:to)? (?:{LANGUAGES}|russian|spanish|swedish|turkish)\b",
    re.IGNORECASE,
)
ENDINGS = "csv|docx?|eml|html?|json|md|pdf|pptx?|rst|rtf|tsv|txt|xlsx?|xml|ya?ml"
FILE_NAME = re.compile(rf"(?<![\w.-])([\w.-]*\w)\.(?:{ENDINGS})\b", re.IGNORECASE)
CLAUSE_OPENERS = "who|whom|what|when|where|which|why|how|can|do|does|is|are"
NEXT_PART = re.compile(rf"[?!;\n]+|\.\s|[,.] (?:and|or|but) |\b(?:and|or) (?=(?:{CLAUSE_OPENERS})\b)", re.IGNORECASE)


class Topic(Content, msgspec.Struct, frozen=True):
    """What a question, or a part of it, is about. A passage must have most of `words`; `soft` words only rank it.

    `files` are the files that the question names, in lower case: then only their passages count, ranked by `words`.
    """

    words: tuple[str, ...]
    soft: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether it is about today's weather or news, which no document has.

        Not if most words are others, or if the question is about a document, a rule or the like.
        """
        live = sum(word in LIVE_WORDS for word in self.words)
        return not self.soft and live * 2 >= len(self.words)


class LocalBounds(msgspec.Struct, frozen=True):
    """When a passage counts, and the limits of one search.

    `share_min` and `words_min` were chosen by the experiment in docs/grounding/local-search.md.
    """

    share_min: float = 0.6
    words_min: int = 2  # besides numbers; all of them, if the question has fewer
    time_s: float = 1.0
    candidates: int = 50  # passages that are looked at
    at_once: int = 2  # searches
    per_file: int = 2  # hits, while there are others


class LocalEngine:
    """Searches the index at `path`. Each search opens it again, so it sees every change."""

    name = "local"

    def __init__(self, path: Path, bounds: LocalBounds | None = None) -> None:
        self._path = path
        self._bounds = bounds or LocalBounds()
        self._turn = asyncio.Semaphore(self._bounds.at_once)

    async def search(self, query: str, count: int) -> list[Hit]:
        topics = list(find_topics(query))
        if not topics or not index_exists(self._path):
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
            if not index_exists(self._path):  # removed meanwhile
                return []
            raise EngineFailed("unusable") from None
        return [_hit(one) for one in _choose(found, count, self._bounds.per_file)]


def _find(index: IndexReader, topics: Sequence[Topic], bounds: LocalBounds) -> list[FoundPassage]:
    """The passages of the files that the question names, if the index has them; else those that fit its topics."""
    for topic in topics:
        if topic.files and (found := passages_of_files(index, topic, bounds)):
            return found
    return _merged([best_passages(index, topic, bounds) for topic in topics if not topic.files])


def passages_of_files(index: IndexReader, topic: Topic, bounds: LocalBounds) -> list[FoundPassage]:
    """The passages of the named files, those with the most words first."""
    terms = [term for term in index.terms(topic.words) if term.passages]
    if not terms:
        return []
    weights = _weights(terms, index.passages())
    names = tuple(f"{before}{name}" for name in topic.files for before in "/ ")
    found = [one for one in index.find(terms, terms, bounds.candidates) if f"/{one.path}".lower().endswith(names)]
    return sorted(found, key=lambda one: -sum(weights[stem] for stem in one.stems))


def best_passages(index: IndexReader, topic: Topic, bounds: LocalBounds) -> list[FoundPassage]:
    """The passages with enough of the words, the best first."""
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
    """The inverse document frequency of each stem, smoothed by some more passages.

    In a small index, a word that occurs nowhere would otherwise outweigh all others.
    """
    count = passages + MORE_PASSAGES
    return {term.stem: math.log(1 + (count - term.passages + 0.5) / (term.passages + 0.5)) for term in terms}


def _needed(terms: Sequence[Term], weights: dict[str, float], enough: float) -> list[Term]:
    """The rarest words: a passage with none of them cannot have enough. None if even all words are not enough."""
    known = sorted((term for term in terms if term.passages), key=lambda term: term.passages)
    left = sum(weights[term.stem] for term in known)
    needed = list[Term]()
    for term in known:
        if left < enough:
            break
        needed.append(term)
        left -= weights[term.stem]
    return needed


def _merged(found: Sequence[Sequence[FoundPassage]]) -> list[FoundPassage]:
    """The passages for the whole question, then those for its parts, alternating; each once."""
    if not found:
        return []
    whole, *parts = found
    in_turn = (one for row in zip_longest(*parts) for one in row if one)
    return list({(one.file_id, one.label, one.text): one for one in (*whole, *in_turn)}.values())


def _choose(found: Sequence[FoundPassage], count: int, per_file: int) -> list[FoundPassage]:
    """The best passages; those beyond `per_file` of one file come last."""
    seen = Counter[int]()
    first, rest = list[FoundPassage](), list[FoundPassage]()
    for one in found:
        seen[one.file_id] += 1
        (first if seen[one.file_id] <= per_file else rest).append(one)
    return [*first, *rest][:count]


def _hit(found: FoundPassage) -> Hit:
    """The title is the path of the file; so is the address, unless the folder is published at a URL."""
    name = f"{found.folder}/{found.path}"
    title = name if len(name) <= TITLE_CHARS_MAX else f"…{name[1 - TITLE_CHARS_MAX :]}"
    url = f"{found.base_url}{quote(found.path)}" if found.base_url else f"{LOCAL}{quote(name)}"
    place = "=".join(quote(word, safe="") for word in found.label.split(" ", 1) if word)
    fragment = f"#{place}" if place else ""  # "page 3" becomes #page=3, which PDF viewers understand
    return Hit(url + fragment, ", ".join(filter(None, (title, found.label))), text=found.text)


def find_topics(query: str) -> Iterator[Topic]:
    """The topic of the question and, if it has a few parts, those of its parts: their answers may be in several files.

    A topic with the files that the question names comes first.
    """
    text = PHRASES.sub(" ", unicodedata.normalize("NFC", query[:QUESTION_CHARS_MAX]))
    files = tuple(dict.fromkeys(found[0].lower() for found in FILE_NAME.finditer(text)))
    names = " ".join(FILE_NAME.findall(text))
    text = FILE_NAME.sub(r"\1", text)  # the endings are not in the index
    whole = _topic(text)
    if files:
        yield Topic(tuple(dict.fromkeys((*words_of(names), *whole.words, *whole.soft))), files=files)
    if not whole.words or (whole.is_live and not files):
        return
    yield whole
    parts = [part for part in map(_topic, NEXT_PART.split(text)) if part.words]
    if 1 < len(parts) <= PARTS_MAX:
        yield from (part for part in parts if len(part.words) >= PART_WORDS_MIN)


def _topic(text: str) -> Topic:
    """If there are only soft words, they are the topic."""
    words = [word for word in words_of(text) if word not in EMPTY_WORDS]
    topic = tuple(word for word in words if word not in SOFT_WORDS)
    return Topic(topic, tuple(word for word in words if word in SOFT_WORDS)) if topic else Topic(tuple(words))
