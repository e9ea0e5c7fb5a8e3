"""Collects what an audit sends and finds, and tells what is stored by design from what must not be there."""

from collections.abc import Iterable
from enum import Enum

import msgspec

from cadenza.audit.search import NeedleHit, Searched
from cadenza.audit.servers import POSTGRES_PAGES, POSTGRES_WAL
from cadenza.audit.stage import Kept, Sender
from cadenza.store.schema import metadata

TABLES = frozenset(metadata.tables)
ANSWERED = range(200, 400)


class AuditVerdict(Enum):
    """The result of an audit. It is inconclusive if the search missed a needle that is stored by design."""

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
        self.reached: dict[str, int] = {}  # how many requests each built-in server got, by its name
        self.sent: list[SentNeedle] = []
        self.searched: list[SearchedPlace] = []
        self.hits: list[NeedleHit] = []  # where they must not be
        self.kept: dict[str, set[str]] = {}  # the places of what is stored by design, by the needle's name
        self.remains: dict[str, set[str]] = {}  # the same for what was deleted and is still in files of Postgres
        self._expected: dict[str, Expectation] = {}
        self._missed: list[str] = []

    def expect(self, name: str, expectation: Expectation) -> None:
        self._expected[name] = expectation

    def expect_erased(self) -> None:
        """From now on, what was stored by design is erased. What was found before counts."""
        self._missed = self.blind
        in_store = (name for name, one in self._expected.items() if Kept.STORE in one.kept)
        erased = Expectation(frozenset({Kept.REMAINS}), must_be_found=False)
        self._expected |= dict.fromkeys([*in_store], erased)

    def add_sent(self, sender: Sender, status: int | None) -> None:
        self.sent.append(SentNeedle(sender.name, status))
        if sender.kept:
            was_stored = status is None or status in ANSWERED
            is_there = was_stored and Kept.REMAINS not in sender.kept
            self.expect(sender.name, Expectation(sender.kept, sender.tables, is_there))

    def add(self, kind: Kept | None, results: Iterable[Searched]) -> None:
        """Add what was searched of a kind of place."""
        for result in results:
            self._count(result)
            kinds = {kind, Kept.REMAINS} if result.place in (POSTGRES_WAL, POSTGRES_PAGES) else {kind}
            for hit in result.hits:
                if not self._is_expected(kinds, hit):
                    self.hits.append(hit)
                elif Kept.REMAINS in self._expected[hit.needle].kept:
                    self.remains.setdefault(hit.needle, set()).add(hit.place)
                else:
                    self.kept.setdefault(hit.needle, set()).add(hit.place)

    def _count(self, result: Searched) -> None:
        """Count a place. One that was searched before, of a service that was killed since, is listed once."""
        for number, before in enumerate(self.searched):
            if before.place == result.place:
                skipped = list(dict.fromkeys([*before.skipped, *result.skipped]))
                self.searched[number] = SearchedPlace(before.place, before.size_bytes + result.size_bytes, skipped)
                return
        self.searched.append(SearchedPlace(result.place, result.size_bytes, result.skipped))

    @property
    def verdict(self) -> AuditVerdict:
        if self.hits:
            return AuditVerdict.FOUND
        return AuditVerdict.INCONCLUSIVE if self.blind else AuditVerdict.CLEAN

    @property
    def blind(self) -> list[str]:
        """Stored needles that were not found: the search does not see what is there."""
        expected = (name for name, one in self._expected.items() if one.must_be_found)
        return self._missed + [name for name in expected if name not in self.kept]

    def _is_expected(self, kinds: set[Kept | None], hit: NeedleHit) -> bool:
        found = self._expected.get(hit.needle)
        if found is None or not kinds & found.kept:
            return False
        table = hit.where.partition(".")[0]
        return table in found.tables or table not in TABLES  # a file of the store has all of them
