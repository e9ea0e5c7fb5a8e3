"""The move from SQLite to Postgres. It does not change its source, and no service may run on it."""

from cadenza.control.store.prepare import require_store
from cadenza.core.errors import ControlError
from cadenza.ledger import check
from cadenza.parts.postgres.transfer import transfer
from cadenza.store.address import Carried, MoveStore, open_store
from cadenza.store.migrate import migrate, schema_state
from cadenza.store.store import Store

MOVE_WAIT_S = 30.0  # for a busy database: a move is made once and should not fail for that


async def move_store(source_url: str, target_url: str) -> Carried:
    """Copy all rows and check both ledgers. Idempotent: a target that has the rows is left as it is."""
    source, target = open_store(source_url, MOVE_WAIT_S), open_store(target_url, MOVE_WAIT_S)
    try:
        assert source.path, "a SQLite store has a file"
        await require_store(source)
        await _require_known(source)
        await _require_sound(source, "source")
        await _make_schema(target)
        carried = await transfer(source.path, target_url)
        await _require_sound(target, "target")
    finally:
        await source.close()
        await target.close()
    return carried


async def _require_known(source: Store) -> None:
    """A newer schema may have columns that this program does not know and would lose."""
    if (found := await schema_state(source)).state != "current":
        raise ControlError(
            f"The source has the schema of a newer release, {found.revision}: run this command with that release."
        )


async def _make_schema(target: Store) -> None:
    """Only in an empty database: another installation is neither migrated nor filled."""
    found = await schema_state(target)
    found.refuse_unknown()
    if found.state == "empty":
        await migrate(target)
    elif found.state != "current":
        raise ControlError(
            f"The target has a schema of its own, at revision {found.revision}, and this program needs {found.head}. "
            "Give an empty database."
        )


async def _require_sound(store: Store, which: str) -> None:
    if findings := await check.find_violations(store):
        raise ControlError(
            f"The ledger of the {which} is not sound; findings: {len(findings)}. Run 'cadenza ledger check'."
        )


move: MoveStore = move_store
