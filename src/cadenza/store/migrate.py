"""The state of the schema, and its migration to the newest revision. Alembic is imported only when it is needed.

A store has two revisions. `schema_revision` has that of its schema. `alembic_version` has the oldest program that may
use it: a migration that only adds does not change it, so the release before can be started on the new schema.
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
OLDEST_PROGRAM = Statement(text("SELECT version_num FROM alembic_version"))
REVISION_TABLES = {  # the revision of the schema is in the first of these tables that exists
    REVISION_TABLE: Statement(text(f"SELECT version_num FROM {REVISION_TABLE}")),  # noqa: S608 our own name
    "alembic_version": OLDEST_PROGRAM,  # up to 0007 it was both
}

REVISIONS = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
    "0012",
    "0013",
    "0014",
    "0015",
    "0016",
    "0017",
    "0018",
    "0019",
    "0020",
    "0021",
)  # the files of migrations/versions, oldest first; a test compares them


class SchemaState(msgspec.Struct, frozen=True):
    """How the schema in the store compares with the one that this program needs.

    | state | the schema |
    |---|---|
    | `empty` | does not exist |
    | `behind` | must be migrated |
    | `current` | is that of this program |
    | `newer` | is that of a later program, and this one may use it |
    | `ahead` | is that of a later program, and this one must not use it |
    """

    state: Literal["current", "behind", "empty", "newer", "ahead"]
    revision: str | None
    head: str

    @property
    def is_usable(self) -> bool:
        return self.state in {"current", "newer"}


async def read_revision(store: Store) -> str | None:
    """The revision of the schema; None if there is no schema."""
    for table, statement in REVISION_TABLES.items():
        if await store.row(HAS_TABLE, {"name": table}) and (found := await store.row(statement, {})):
            return str(found[0])
    return None


async def schema_state(store: Store) -> SchemaState:
    head = REVISIONS[-1]
    revision = await read_revision(store)
    if revision is None:
        return SchemaState("empty", None, head)
    if revision == head:
        return SchemaState("current", revision, head)
    if revision in REVISIONS:
        return SchemaState("behind", revision, head)
    oldest = await store.row(OLDEST_PROGRAM, {})
    return SchemaState("newer" if oldest and oldest[0] in REVISIONS else "ahead", revision, head)


async def migrate(store: Store, on_backup: Callable[[Path], None] | None = None) -> str:
    """Bring the schema to the newest revision and return it. `on_backup` gets the path of the copy of the store.

    A newer schema is not changed. StoreUnavailable, without a change, while a process runs that would break.
    """
    found = await schema_state(store)
    if found.state == "ahead":
        raise _ahead(str(found.revision))
    if found.state == "newer":
        return str(found.revision)
    if found.state != "current":
        backup = await store.upgrade(found.head)
        if backup and on_backup:
            on_backup(backup)
    return found.head


def require_usable(tx: Transaction) -> None:
    """StoreUnavailable if the store was migrated, since this program opened it, to a schema that breaks it."""
    oldest = tx.row(OLDEST_PROGRAM, {})
    if oldest and oldest[0] not in REVISIONS:
        raise _ahead(oldest[0])


def _ahead(revision: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store's schema is at revision {revision}, which this program does not know "
        f"(it knows up to {REVISIONS[-1]}):",
        "run the newer program that made it.",
    )
