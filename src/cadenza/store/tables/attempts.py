"""Requests to providers that no metering row has, summed up by day, provider, model and kind: core/attempts.py."""

from collections.abc import Mapping

from sqlalchemy import text

from cadenza.core.attempts import AttemptKey, AttemptSums
from cadenza.store.statements import Statement
from cadenza.store.store import Store

COLUMNS = (*AttemptKey._fields, *AttemptSums._fields)
ADD = Statement(
    text(
        f"INSERT INTO upstream_attempts ({', '.join(COLUMNS)}) VALUES ({', '.join(f':{name}' for name in COLUMNS)})"  # noqa: S608 our own names
        f" ON CONFLICT ({', '.join(AttemptKey._fields)}) DO UPDATE SET "
        + ", ".join(f"{name} = upstream_attempts.{name} + excluded.{name}" for name in AttemptSums._fields)
    )
)


async def add(store: Store, counts: Mapping[AttemptKey, AttemptSums]) -> None:
    """Add to what the store has. Ordered by key, so that no two writers deadlock."""
    rows = [{**key._asdict(), **counts[key]._asdict()} for key in sorted(counts)]
    if rows:
        await store.transact(lambda tx: tx.change_each(ADD, rows), is_brief=True)
