"""What a new store begins with: the tables of schema.py, the triggers that refuse changes, and the first rows.

A store that is there already is migrated instead, so a change of anything here needs a migration, too. A test compares
a migrated store of release 0.1.0 with a new one.
"""

from collections.abc import Iterator

from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable

from cadenza.store.schema import metadata

VERSION_TABLE = """
CREATE TABLE schema_version (
    revision TEXT NOT NULL, oldest_program TEXT NOT NULL,
    CONSTRAINT pk_schema_version PRIMARY KEY (revision)
)"""
FIRST_EPOCHS = "INSERT INTO epochs (name, number) VALUES ('classes', 0), ('changes', 0)"
NEVER = "TRUE"
# An event leaves the audit log if it is older than the row in `retention` says. The address and the details of an
# erased account may be taken out of its events; while it is erased, `erasing_email` has its former address.
IS_KEPT = """NOT (OLD.account_id IS NOT NULL AND OLD.at < COALESCE(
    (SELECT kept_from FROM retention WHERE name = 'audit_events'), 0))"""
DOES_NOT_ERASE = """NOT EXISTS (
    SELECT 1 FROM accounts
    WHERE erased_at IS NOT NULL AND (id = OLD.account_id OR OLD.actor IN (email, erasing_email))
    AND NEW.actor IN (OLD.actor, id) AND (NEW.detail = OLD.detail OR (NEW.detail = '' AND id = OLD.account_id))
    AND NEW.id = OLD.id AND NEW.at = OLD.at AND NEW.event = OLD.event AND NEW.subject = OLD.subject
    AND (NEW.account_id = OLD.account_id OR (NEW.account_id IS NULL AND OLD.account_id IS NULL)))"""
IS_CLOSED = "OLD.hash IS NOT NULL"
REFUSED = {  # which rows of a table no change of this kind may touch, and the message
    "entries": ("entries are append-only", {"UPDATE": NEVER, "DELETE": NEVER, "TRUNCATE": NEVER}),
    "audit_events": (
        "the audit log is append-only",
        {"UPDATE": DOES_NOT_ERASE, "DELETE": IS_KEPT, "TRUNCATE": NEVER},
    ),
    "class_versions": ("versions of classes are append-only", {"UPDATE": NEVER, "DELETE": NEVER, "TRUNCATE": NEVER}),
    "closed_months": ("a closed month does not change", {"UPDATE": IS_CLOSED, "DELETE": IS_CLOSED}),
    "closed_balances": ("a closed month does not change", {"UPDATE": NEVER, "DELETE": NEVER}),
}
SQLITE_TRIGGER = """
CREATE TRIGGER {name} BEFORE {change} ON {table} WHEN {when} BEGIN SELECT RAISE(ABORT, '{message}'); END"""
POSTGRES_FUNCTION = """
CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF {when} THEN RAISE EXCEPTION '{message}' USING ERRCODE = 'restrict_violation'; END IF;
    IF TG_OP = 'UPDATE' THEN RETURN NEW; END IF;
    RETURN OLD;
END $$"""
POSTGRES_TRIGGER = "CREATE TRIGGER {name} BEFORE {change} ON {table} FOR EACH {level} EXECUTE FUNCTION {name}()"
POSTGRES_DATE = """
CREATE FUNCTION date_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.created_at := TG_ARGV[0]::bigint; RETURN NEW; END $$"""  # for the trigger of store/month_end.py


def creation(dialect: Dialect, revision: str, oldest_program: str) -> Iterator[str]:
    """The statements, in the words of the database."""
    yield VERSION_TABLE
    yield f"INSERT INTO schema_version (revision, oldest_program) VALUES ('{revision}', '{oldest_program}')"  # noqa: S608 our own
    for table in metadata.sorted_tables:
        yield str(CreateTable(table).compile(dialect=dialect))
        for index in sorted(table.indexes, key=lambda one: str(one.name)):
            index.dialect_options[dialect.name]["where"] = index.dialect_options["sqlite"]["where"]
            yield str(CreateIndex(index).compile(dialect=dialect))
    for name, (message, changes) in REFUSED.items():
        for change, when in changes.items():
            yield from _triggers(dialect.name, name, change, when, message)
    if dialect.name == "postgresql":
        yield POSTGRES_DATE
    yield FIRST_EPOCHS


def _triggers(database: str, table: str, change: str, when: str, message: str) -> Iterator[str]:
    words = {"name": f"{table}_refuse_{change.lower()}", "change": change, "table": table, "message": message}
    if database == "postgresql":
        yield POSTGRES_FUNCTION.format(**words, when=when)
        yield POSTGRES_TRIGGER.format(**words, level="STATEMENT" if when == NEVER else "ROW")
    elif change != "TRUNCATE":
        yield SQLITE_TRIGGER.format(**words, when=when)
