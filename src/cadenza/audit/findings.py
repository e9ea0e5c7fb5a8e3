"""Collects what an audit sends and finds, and tells what is stored by design from what must not be there."""

from collections.abc import Iterable
from enum import Enum

import msgspec

from cadenza.audit.search import NeedleHit, Searched
from cadenza.audit.stage import Kept, Sender
from cadenza.store.schema import metadata

TABLES = frozenset(metadata.tables)


class AuditVerdict(Enum):
    """What an audit came to. It is inconclusive if the search missed what is known to be there."""

    CLEAN = "clean"
    FOUND = "found"
    INCONCLUSIVE = "inconclusive"


class SentNeedle(msgspec.Struct, frozen=True):
    """A needle that was sent, and the status of the reply: 0 if there was none, None if it was not a request."""

    name: str
    status: int | None


class SearchedPlace(msgspec.Struct, frozen=True):
    """A place that was searched: how much of it, and what could not be searched, and why."""

    place: str
    size_bytes: int
    skipped: list[str]


class Expectation(msgspec.Struct, frozen=True):
    """Where a needle is stored by design, and in which tables of the store."""

    kept: frozenset[Kept]
    tables: frozenset[str] = frozenset()
    must_be_found: bool = True


class Findings:
    """What was sent, searched and found so far."""

    def __init__(self) -> None:
        self.notes: list[str] = []  # what of the installation the audit does not cover
        self.facts: dict[str, str] = {}  # about the program, the machine and the config
        self.reached: dict[str, int] = {}  # how many requests reached what is built in, by its name
        self.sent: list[SentNeedle] = []
        self.searched: list[SearchedPlace] = []
        self.hits: list[NeedleHit] = []  # where they must not be
        self.kept: dict[str, set[str]] = {}  # the places of what is stored by design, by the needle's name
        self._expected: dict[str, Expectation] = {}
        self._missed: list[str] = []

    def expect(self, name: str, expectation: Expectation) -> None:
        self._expected[name] = expectation

    def forget_expectations(self) -> None:
        """From now on, nothing may be found: what was stored by design is erased. What was found before counts."""
        self._missed, self._expected = self.blind, {}

    def add_sent(self, sender: Sender, status: int | None) -> None:
        self.sent.append(SentNeedle(sender.name, status))
        if sender.kept:
            was_stored = status is None or status < 400
            self.expect(sender.name, Expectation(sender.kept, sender.tables, was_stored))

    def add(self, kind: Kept | None, results: Iterable[Searched]) -> None:
        """Add what was searched of a kind of place."""
        for result in results:
            self.searched.append(SearchedPlace(result.place, result.size_bytes, result.skipped))
            for hit in result.hits:
                if self._is_expected(kind, hit):
                    self.kept.setdefault(hit.needle, set()).add(hit.place)
                else:
                    self.hits.append(hit)

    @property
    def verdict(self) -> "AuditVerdict":
        if self.blind:
            return AuditVerdict.INCONCLUSIVE
        return AuditVerdict.FOUND if self.hits else AuditVerdict.CLEAN

    @property
    def blind(self) -> list[str]:
        """Stored needles that were not found: the search does not see what is there."""
        expected = (name for name, one in self._expected.items() if one.must_be_found)
        return self._missed + [name for name in expected if name not in self.kept]

    def _is_expected(self, kind: Kept | None, hit: NeedleHit) -> bool:
        found = self._expected.get(hit.needle)
        if found is None or kind not in found.kept:
            return False
        table = hit.where.partition(".")[0]
        return table in found.tables or table not in TABLES  # a file of the store has all of them
