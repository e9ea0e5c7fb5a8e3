"""Epochs: counters that tell processes when to read something again.

A transaction that changes what other processes may have cached increments the epoch of it. A process that sees a new
number drops its cache.
"""

from sqlalchemy import ScalarSelect, bindparam, literal_column, select, update

from cadenza.store import schema
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

CLASSES = "classes"  # classes, routes, providers, characters, prices and limits: everything in the config file
CHANGES = "changes"  # keys, accounts and classes: everything that a process may cache of them
_NAMED = schema.epochs.c.name == bindparam("of")
CURRENT = Statement(select(schema.epochs.c.number).where(_NAMED))
LOCK = Statement(select(schema.epochs.c.number).where(_NAMED).with_for_update())
_INCREMENT = update(schema.epochs).where(_NAMED).values(number=schema.epochs.c.number + 1)
INCREMENT = Statement(_INCREMENT.returning(schema.epochs.c.number))


def number_of(name: str) -> "ScalarSelect[int]":
    """The number of an epoch, as a part of another query."""
    of_name = schema.epochs.c.name == literal_column(f"'{name}'")
    return select(schema.epochs.c.number).where(of_name).scalar_subquery()


async def current(store: Store, name: str) -> int:
    row = await store.row(CURRENT, {"of": name})
    assert row
    return int(row[0])


def begin_next(tx: Transaction, name: str) -> int:
    row = tx.row(INCREMENT, {"of": name})
    assert row
    return int(row[0])
