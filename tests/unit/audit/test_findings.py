"""What an audit makes of what it finds."""

from cadenza.audit.api_senders import answered, broken, refused
from cadenza.audit.findings import AuditVerdict, Findings
from cadenza.audit.other_senders import by_commands, by_design, by_index, by_search, on_pages
from cadenza.audit.report import page, summary
from cadenza.audit.search import NeedleHit, Searched
from cadenza.audit.servers import POSTGRES_TABLES, POSTGRES_WAL
from cadenza.audit.stage import Kept, Sender

NOTE = next(sender for sender in by_design() if sender.name == "a note")
DELETED_NOTE = next(sender for sender in by_design() if sender.name == "a note that was deleted")


def a_hit(sender: Sender, where: str, place: str = "SQLite tables, every value") -> Searched:
    return Searched(place, 100, [NeedleHit(sender.name, "plain", place, where, 0)], [])


def findings_of(sender: Sender, kind: Kept | None, *searched: Searched) -> Findings:
    findings = Findings()
    findings.add_sent(sender, 200)
    findings.add(kind, searched)
    return findings


def test_what_is_stored_by_design_is_no_finding() -> None:
    """A note is expected in the table of notes and in the files of the store."""
    files = a_hit(NOTE, "cadenza.db", "SQLite database file")
    findings = findings_of(NOTE, Kept.STORE, a_hit(NOTE, "notes.text"), files)
    assert findings.verdict is AuditVerdict.CLEAN
    assert findings.kept == {"a note": {"SQLite tables, every value", "SQLite database file"}}


def test_what_is_stored_elsewhere_is_a_finding() -> None:
    """A note in another table, or in the log, is found; the report names the place."""
    for kind, where in ((Kept.STORE, "acts.detail"), (Kept.LOG, "serve-1.log"), (None, "a.tmp")):
        findings = findings_of(NOTE, Kept.STORE, a_hit(NOTE, "notes.text"))
        findings.add(kind, [a_hit(NOTE, where)])
        assert findings.verdict is AuditVerdict.FOUND
        assert f"- a note (plain): SQLite tables, every value, {where}" in page(findings).splitlines()
        assert any(where in line for line in summary(findings))


def test_a_search_that_misses_what_is_there_shows_nothing() -> None:
    """If a stored note is not found, the audit is inconclusive."""
    findings = findings_of(NOTE, Kept.STORE)
    assert findings.verdict is AuditVerdict.INCONCLUSIVE
    assert findings.blind == ["a note"]


def test_deleted_rows_in_files_of_postgres() -> None:
    """What was deleted may remain in the write-ahead log of Postgres, but in no table."""
    in_log = findings_of(DELETED_NOTE, Kept.STORE, a_hit(DELETED_NOTE, "pg_wal/1", POSTGRES_WAL))
    assert (in_log.verdict, in_log.remains) == (AuditVerdict.CLEAN, {DELETED_NOTE.name: {POSTGRES_WAL}})
    in_table = findings_of(DELETED_NOTE, Kept.STORE, a_hit(DELETED_NOTE, "notes.text", POSTGRES_TABLES))
    assert in_table.verdict is AuditVerdict.FOUND


def test_every_place_has_a_name_of_its_own() -> None:
    """No two senders have the same name, and what a sender stores by design names its tables."""
    tables = (answered(), refused(), broken(), on_pages(), by_design(), by_search(), by_index(), by_commands())
    senders = [sender for table in tables for sender in table]
    assert len({sender.name for sender in senders}) == len(senders)
    assert [one.name for one in senders if Kept.STORE in one.kept and not one.tables] == []
