"""Accounts. A password's hash leaves by one door only, `find_with_password`, so that no record carries it along."""

from typing import Any

import msgspec
from sqlalchemy import Row, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from cadenza.store.schema import accounts

COLUMNS = (
    accounts.c.id,
    accounts.c.email,
    accounts.c.preferred_class,
    accounts.c.balance_nano,
    accounts.c.held_nano,
    accounts.c.created_at,
)


class Account(msgspec.Struct, frozen=True):
    """Who owns keys and credit. What can be spent is the balance less what is held."""

    id: str
    email: str
    preferred_class: str
    balance_nano: int
    held_nano: int
    created_at: int


async def insert(conn: AsyncConnection, account: Account, password_hash: str) -> None:
    await conn.execute(accounts.insert().values(**msgspec.structs.asdict(account), password_hash=password_hash))


async def find_by_email(conn: AsyncConnection, email: str) -> Account | None:
    row = (await conn.execute(select(*COLUMNS).where(accounts.c.email == email))).one_or_none()
    return None if row is None else _account(row)


async def find_with_password(conn: AsyncConnection, email: str) -> tuple[Account, str] | None:
    query = select(*COLUMNS, accounts.c.password_hash).where(accounts.c.email == email)
    row = (await conn.execute(query)).one_or_none()
    return None if row is None else (_account(row), row.password_hash)


async def list_all(conn: AsyncConnection) -> list[Account]:
    rows = await conn.execute(select(*COLUMNS).order_by(accounts.c.created_at, accounts.c.id))
    return [_account(row) for row in rows]


async def count(conn: AsyncConnection) -> int:
    return (await conn.execute(select(func.count()).select_from(accounts))).scalar_one()


def _account(row: Row[*tuple[Any, ...]]) -> Account:
    return Account(
        id=row.id,
        email=row.email,
        preferred_class=row.preferred_class,
        balance_nano=row.balance_nano,
        held_nano=row.held_nano,
        created_at=row.created_at,
    )
