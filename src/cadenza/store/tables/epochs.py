"""Epochs: numbers that grow when every running process must read something again."""

from sqlalchemy import bindparam, select, update

from cadenza.store import schema
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

CLASSES = "classes"  # classes, routes, providers, characters, prices and limits: everything in the config file
CHANGES = "changes"  # keys, accounts and classes: everything that a process may keep of them
CURRENT = Statement(select(schema.epochs.c.number).where(schema.epochs.c.name == bindparam("of")))
BEGIN_NEXT = Statement(
    update(schema.epochs).where(schema.epochs.c.name == bindparam("of")).values(number=schema.epochs.c.number + 1)
)


async def current(store: Store, name: str) -> int:
    row = await store.row(CURRENT, {"of": name})
    assert row
    return int(row[0])


def begin_next(tx: Transaction, name: str) -> int:
    tx.change(BEGIN_NEXT, {"of": name})
    row = tx.row(CURRENT, {"of": name})
    assert row
    return int(row[0])
