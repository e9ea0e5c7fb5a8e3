"""What an audit found: what was sent and searched, and what is where it must not be, grouped by place.

A report, as text or as JSON, never has content.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from importlib.metadata import version
from typing import Any

from cadenza import parts
from cadenza.config import Settings
from cadenza.parts.retention.case import DELETED
from cadenza.parts.retention.cases import kept_by_design
from cadenza.parts.retention.places import SQLITE_FILES, SQLITE_TABLES
from cadenza.parts.retention.search import CanaryHit, PlaceSearch
from cadenza.store.contents import POSTGRES_PAGES, POSTGRES_TABLES, POSTGRES_VIEWS, POSTGRES_WAL
from cadenza.store.schema import metadata

TABLES = frozenset(metadata.tables)
TABLE_PLACES = (SQLITE_TABLES, POSTGRES_TABLES)
POSTGRES_FILES = (POSTGRES_WAL, POSTGRES_PAGES)
STORE_FILES = (SQLITE_FILES, POSTGRES_VIEWS, *POSTGRES_FILES)
NAMED_MAX = 3
VERDICTS = {
    "clean": "Nothing that was sent was found where it must not be.",
    "found": "Content was found where it must not be.",
    "inconclusive": "The search did not find what is stored by design, so it shows nothing.",
}
BLIND_SPOTS = [
    "what a provider, a proxy in front of the service or a backup of the machine keeps",
    "the memory of processes, core files of the machine, and swap: a request that is served is in it",
    "what is written after the audit has ended",
    "processes that end before they are searched: their environment, arguments and deleted files",
    "extended attributes of files",
    "data in brotli, Zstandard or LZ4, encrypted data, and raw deflate in the middle of a file",
    "fragments of a canary of fewer than 12 characters, and fragments of passwords, keys and cookies",
]
TITLES = {
    "not_searched": "Not searched",
    "not_covered": "Not covered",
    "cannot_see": "Cannot see",
    "stored": "Stored by design, and found only where it belongs",
    "remains": "Deleted, and in files of Postgres until it reuses them",
    "missing": "MISSING: stored by design, and the search did not find it",
}


class Findings:
    """What was sent, searched and found so far."""

    def __init__(self) -> None:
        self._kept_by_design = kept_by_design()
        self.notes: list[str] = []  # what of the installation the audit does not cover
        self.received: Mapping[str, int] = {}  # how many requests each built-in server got, by its name
        self.sent: dict[str, int | None] = {}  # the status of each case: 0 without a reply, None if it is no request
        self.kept: dict[str, set[str]] = {}  # where canaries are stored by design
        self.required: set[str] = set()  # canaries that the search must find there
        self.searches: list[PlaceSearch] = []

    def add_sent(self, name: str, status: int | None) -> None:
        self.sent[name] = status
        if kept := self._kept_by_design.get(name):
            self.kept[name] = kept
            if DELETED not in kept and (status is None or 200 <= status < 400):
                self.required.add(name)

    def result(self, settings: Settings) -> dict[str, Any]:
        """Everything, for JSON."""
        sizes, skipped, found = dict[str, int](), dict[str, list[str]](), dict[str, list[dict[str, Any]]]()
        stored, remains = dict[str, set[str]](), dict[str, set[str]]()
        for search in self.searches:
            sizes[search.place] = sizes.get(search.place, 0) + search.size_bytes
            if search.skipped:
                skipped[search.place] = search.skipped
            for hit, count in search.hits.items():
                kept = self.kept.get(hit.canary, set())
                if not _belongs(search.place, hit, kept):
                    found.setdefault(search.place, []).append({**hit._asdict(), "count": count})
                else:
                    (remains if DELETED in kept else stored).setdefault(hit.canary, set()).add(search.place)
        missing = sorted(self.required - stored.keys())
        source, stores = settings.source, (settings.store.url, settings.shared_state.url)
        about = {
            "Program": f"cadenza {version('cadenza')}, Python {platform.python_version()}, {platform.platform()}",
            "Config": f"{source}, sha256 {sha256(source.read_bytes()).hexdigest()[:16]}…" if source else "built-in",
            "Parts": ", ".join(part.name for part in parts.having("cases")),
            "Stores": ", ".join(url.partition(":")[0] for url in stores),  # their addresses may have a password
        }
        verdict = "found" if found else "inconclusive" if missing else "clean"
        sent = {"verdict": verdict, "about": about, "sent": self.sent, "received": self.received, "searched": sizes}
        unseen = {"not_searched": skipped, "not_covered": self.notes, "cannot_see": BLIND_SPOTS}
        return {**sent, **unseen, "stored": stored, "remains": remains, "missing": missing, "found": found}


def to_text(result: dict[str, Any]) -> Iterator[str]:
    """The result, for a terminal."""
    yield from (f"{name:<9} {value}" for name, value in result["about"].items())
    statuses = list(result["sent"].values())
    answered, without = sum(200 <= (status or 0) < 400 for status in statuses), sum(not status for status in statuses)
    refused = len(statuses) - answered - without
    yield f"Sent      {len(statuses)} canaries: {answered} answered, {refused} refused or failed, {without} no reply"
    yield f"Received  {', '.join(f'{count} by the {name}' for name, count in result['received'].items())}"
    yield from _section("Searched", (f"{size:>12,} bytes  {place}" for place, size in result["searched"].items()))
    for key, title in TITLES.items():
        lines = result[key]
        both = lines.items() if isinstance(lines, dict) else ()
        yield from _section(title, [f"{name}: {'; '.join(sorted(found))}" for name, found in both] or list(lines))
    for place, found in result["found"].items():
        yield from _section(f"FOUND in {place}", _group(found))
    yield f"\n{VERDICTS[result['verdict']]}"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    if lines := list(lines):
        yield from (title, *(f"  {line}" for line in lines))


def _group(found: list[dict[str, Any]]) -> Iterator[str]:
    """One line for each file or column and form, with the first canaries."""
    groups = dict[str, list[dict[str, Any]]]()
    for one in found:
        groups.setdefault(f"{one['where']}, {one['form']}".removeprefix(", "), []).append(one)
    for name, those in groups.items():
        more = f"; and {len(those) - NAMED_MAX} more" if len(those) > NAMED_MAX else ""
        canaries = "; ".join(one["canary"] for one in those[:NAMED_MAX])
        yield f"{name}, {sum(one['count'] for one in those)} times: {canaries}{more}"


def _belongs(place: str, hit: CanaryHit, kept: set[str]) -> bool:
    """Whether a canary that is stored in `kept` may be here. A file of the store has all of its tables."""
    if place in TABLE_PLACES:
        return hit.where.removeprefix("public.").partition(".")[0] in kept
    is_in_files = place in STORE_FILES and bool(kept & TABLES)
    return is_in_files or place in kept or (place in POSTGRES_FILES and DELETED in kept)
