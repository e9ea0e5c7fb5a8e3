"""The state of the schema, and its migration to the newest revision.

A store says in one row the revision of its schema, and the oldest program that may use it: a migration that only adds
does not change that, so the release before can be started on the new schema.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from sqlalchemy import text

from cadenza.store.statements import Statement
from cadenza.store.store import REVISION_TABLE, Store, StoreUnavailable, Transaction

HAS_TABLE = Statement(
    text("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name"),
    postgres=text("SELECT 1 WHERE to_regclass(:name) IS NOT NULL"),
)
VERSION = Statement(text(f"SELECT revision, oldest_program FROM {REVISION_TABLE}"))  # noqa: S608 our own name
FILES = Path(__file__).parent / "migrations" / "versions"
FIRST = "0001"  # of release 0.1.0, which has no migration
REVISIONS = (FIRST, *sorted(path.name.partition("_")[0] for path in FILES.glob("[0-9]*.py")))  # oldest first


class SchemaState(msgspec.Struct, frozen=True):
    """How the schema in the store compares with the one that this program needs.

    | state | the schema |
    |---|---|
    | `empty` | does not exist |
    | `behind` | must be migrated |
    | `current` | is that of this program |
    | `newer` | is that of a later program, and this one may use it |
    | `ahead` | is that of a later program, and this one must not use it |
    | `foreign` | was made by no release: before the first one, or by another program |
    """

    state: Literal["current", "behind", "empty", "newer", "ahead", "foreign"]
    revision: str | None
    head: str

    @property
    def is_usable(self) -> bool:
        return self.state in {"current", "newer"}

    def refuse_unknown(self) -> None:
        """StoreUnavailable if this program can neither use nor migrate the store."""
        if self.state == "ahead":
            raise _ahead(str(self.revision))
        if self.state == "foreign":
            raise StoreUnavailable(
                "The store has tables that no release of Cadenza made: it is from before 0.1.0, or of another program.",
                "Nothing was changed. Name a new file or an empty database in [store], or move this one away.",
            )


async def schema_state(store: Store) -> SchemaState:
    head = REVISIONS[-1]
    if not await store.row(HAS_TABLE, {"name": REVISION_TABLE}):
        is_foreign = await store.row(HAS_TABLE, {"name": "accounts"})
        return SchemaState("foreign" if is_foreign else "empty", None, head)
    row = await store.row(VERSION, {})
    assert row, "a new store has it"
    revision, oldest = row
    if revision in REVISIONS:
        return SchemaState("current" if revision == head else "behind", revision, head)
    return SchemaState("newer" if oldest in REVISIONS else "ahead", revision, head)


async def migrate(store: Store, on_backup: Callable[[Path], None] | None = None) -> str:
    """Bring the schema to the newest revision and return it. `on_backup` gets the path of the copy of the store.

    A newer schema is not changed. StoreUnavailable, without a change, while a process runs that would break.
    """
    found = await schema_state(store)
    found.refuse_unknown()
    if found.is_usable:
        return str(found.revision)
    backup = await store.upgrade()
    if backup and on_backup:
        on_backup(backup)
    return found.head


def require_usable(tx: Transaction) -> None:
    """StoreUnavailable if the store was migrated, since this program opened it, to a schema that breaks it."""
    row = tx.row(VERSION, {})
    if row and row[1] not in REVISIONS:
        raise _ahead(row[1])


def _ahead(revision: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store's schema is at revision {revision}, which this program does not know "
        f"(it knows up to {REVISIONS[-1]}):",
        "run the newer program that made it.",
    )
