"""Epochs: numbers by which every running process learns, on its very next request, what is to be read again."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from cadenza.store.schema import epochs

CLASSES = "classes"  # classes, routes, providers, characters, prices and limits: all that a config file says of them


async def current(conn: AsyncConnection, name: str) -> int:
    return int((await conn.execute(select(epochs.c.number).where(epochs.c.name == name))).scalar_one())


async def begin_next(conn: AsyncConnection, name: str) -> None:
    await conn.execute(epochs.update().where(epochs.c.name == name).values(number=epochs.c.number + 1))
