"""What an audit makes of what it finds."""

from pathlib import Path
from typing import Any

import pytest

from cadenza.config import load_settings
from cadenza.parts.retention.canaries import CanarySet
from cadenza.parts.retention.case import DELETED
from cadenza.parts.retention.cases import all_cases, kept_by_design
from cadenza.parts.retention.places import SQLITE_FILES, SQLITE_TABLES
from cadenza.parts.retention.report import BLIND_SPOTS, Findings, to_text
from cadenza.parts.retention.search import CanaryHit, PlaceSearch
from cadenza.store.contents import POSTGRES_LOG, POSTGRES_PAGES, POSTGRES_TABLES, POSTGRES_WAL
from cadenza.store.schema import metadata

NOTE, DELETED_NOTE, MESSAGE = "a note", "a note that was deleted", "chat, plain, whole: user message"
Hit = tuple[str, str, str]  # canary, place and where


def result_of(*hits: Hit, sent: tuple[str, ...] = ()) -> dict[str, Any]:
    findings = Findings()
    for name in sent or {canary for canary, *_ in hits}:
        findings.add_sent(name, 200)
    for canary, place, where in hits:
        search = PlaceSearch(CanarySet(), place)
        search.hits[CanaryHit(canary, "plain", where)] += 2
        findings.searches.append(search)
    return findings.result(load_settings(None, {}, Path(__file__).parent))


@pytest.mark.parametrize(
    ("canary", "place", "where", "belongs"),
    [
        (NOTE, SQLITE_TABLES, "notes.text", True),
        (NOTE, POSTGRES_TABLES, "public.notes.text", True),
        (NOTE, SQLITE_FILES, "cadenza.db", True),
        (NOTE, POSTGRES_PAGES, "base/1/2", True),
        (NOTE, SQLITE_TABLES, "keys.name", False),
        (NOTE, POSTGRES_TABLES, "public.keys.name", False),
        (NOTE, POSTGRES_LOG, "log/1", False),
        (NOTE, "log", "serve-1.log", False),
        (DELETED_NOTE, POSTGRES_WAL, "pg_wal/1", True),
        (DELETED_NOTE, POSTGRES_TABLES, "public.notes.text", False),
        (DELETED_NOTE, SQLITE_FILES, "cadenza.db", False),
        (MESSAGE, SQLITE_FILES, "cadenza.db", False),
    ],
)
def test_what_belongs_where_it_was_found(canary: str, place: str, where: str, belongs: bool) -> None:
    """A note may be in its table and the files of the store, a deleted one in files of Postgres, a message nowhere."""
    found = {} if belongs else {place: [{"canary": canary, "form": "plain", "where": where, "count": 2}]}
    assert result_of((canary, place, where))["found"] == found


def test_findings_are_grouped_by_place() -> None:
    """The text has a heading for each place, and a line for each file and form, with the first canaries and a count."""
    cases = [name for name in all_cases() if name.startswith("chat, plain, whole")]
    text = list(
        to_text(result_of(*((name, "log", "serve-1.log") for name in cases[:5]), (MESSAGE, "tmp folder", "a.gz")))
    )
    at = text.index("FOUND in log")
    assert text[at + 1] == f"  serve-1.log, plain, 10 times: {'; '.join(cases[:3])}; and 2 more"
    assert text[at + 2 : at + 4] == ["FOUND in tmp folder", f"  a.gz, plain, 2 times: {MESSAGE}"]
    assert text[-1] == "\nContent was found where it must not be."


def test_a_search_that_misses_what_is_there_shows_nothing() -> None:
    """If a stored note is not found, the audit is inconclusive, and says which."""
    result = result_of(sent=(NOTE, DELETED_NOTE, MESSAGE))
    assert (result["verdict"], result["missing"]) == ("inconclusive", [NOTE])
    refused = Findings()
    refused.add_sent(NOTE, 429)
    assert refused.result(load_settings(None, {}, Path(__file__).parent))["missing"] == []
    assert f"  {NOTE}" in list(to_text(result))


def test_the_report_lists_what_it_cannot_see() -> None:
    """Brotli, extended attributes, short fragments, later writes and short-lived processes are listed."""
    result = result_of((NOTE, SQLITE_TABLES, "notes.text"))
    assert result["verdict"] == "clean"
    assert result["cannot_see"] == BLIND_SPOTS
    assert all(f"  {one}" in list(to_text(result)) for one in BLIND_SPOTS)
    for word in ("brotli", "extended attributes", "12 characters", "after the audit", "processes that end"):
        assert any(word in one for one in BLIND_SPOTS)


def test_what_is_stored_by_design_names_cases_and_tables() -> None:
    """Each name is that of a case, and each place a table, another place or the mark of what was deleted."""
    others = {"the address of the account"}
    assert kept_by_design().keys() <= all_cases().keys() | others
    assert set().union(*kept_by_design().values()) <= {*metadata.tables, DELETED, "log", "traces"}
