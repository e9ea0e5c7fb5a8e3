"""The state of the schema, and bringing it to the newest revision. Alembic loads only when there is work for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from cadenza.store.store import Store, StoreUnavailable

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
)  # the files of migrations/versions, oldest first; a test compares them


class SchemaState(msgspec.Struct, frozen=True):
    """How the schema in the store compares with the one that this program needs."""

    state: Literal["current", "behind", "empty", "ahead"]
    revision: str | None
    head: str


async def schema_state(store: Store) -> SchemaState:
    head = REVISIONS[-1]
    revision = await store.revision()
    if revision is None:
        return SchemaState("empty", None, head)
    if revision == head:
        return SchemaState("current", revision, head)
    return SchemaState("behind" if revision in REVISIONS else "ahead", revision, head)


async def migrate(store: Store, on_backup: Callable[[Path], None] | None = None) -> str:
    """Bring the schema to the newest revision and return it. `on_backup` is told where the copy of the store is."""
    found = await schema_state(store)
    if found.state == "ahead":
        raise StoreUnavailable(
            f"The store's schema is at revision {found.revision}, which this program does not know "
            f"(it knows up to {found.head}):",
            "run the newer program that made it.",
        )
    if found.state != "current":
        backup = await store.upgrade(found.head)
        if backup and on_backup:
            on_backup(backup)
    return found.head
