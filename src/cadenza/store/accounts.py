"""Accounts. Only `get_with_password` reads a password's hash, and no record carries it."""

import msgspec
from sqlalchemy import bindparam, func, insert, select

from cadenza.store import schema
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store, Transaction


class Account(msgspec.Struct, frozen=True):
    """The owner of keys and credit. It can spend its balance less what is held."""

    id: str
    email: str
    preferred_class: str
    balance_nano: int
    held_nano: int
    created_at: int
    is_operator: bool = False
    suspended_at: int | None = None
    verified_at: int | None = None
    theme: str = "system"
    uses_search: bool = True
    uses_memory: bool = True
    low_balance_nano: int = 1_000_000_000
    low_noticed_at: int | None = None


COLUMNS = [schema.accounts.c[name] for name in Account.__struct_fields__]
INSERT = Statement(insert(schema.accounts), *Account.__struct_fields__, "password_hash")
BY_EMAIL = Statement(select(*COLUMNS).where(schema.accounts.c.email == bindparam("email")))
WITH_PASSWORD = Statement(
    select(schema.accounts.c.password_hash, *COLUMNS).where(schema.accounts.c.email == bindparam("email"))
)
OLDEST_FIRST = Statement(select(*COLUMNS).order_by(schema.accounts.c.created_at, schema.accounts.c.id))
COUNT = Statement(select(func.count()).select_from(schema.accounts))


def add(tx: Transaction, account: Account, password_hash: str) -> None:
    tx.change(INSERT, {**msgspec.structs.asdict(account), "password_hash": password_hash})


def find_by_email(tx: Transaction, email: str) -> Account | None:
    return _account(tx.row(BY_EMAIL, {"email": email}))


async def get_by_email(store: Store, email: str) -> Account | None:
    return _account(await store.row(BY_EMAIL, {"email": email}))


async def get_with_password(store: Store, email: str) -> tuple[Account, str] | None:
    row = await store.row(WITH_PASSWORD, {"email": email})
    return None if row is None else (Account(*row[1:]), row[0])


async def list_all(store: Store) -> list[Account]:
    return [Account(*row) for row in await store.rows(OLDEST_FIRST, {})]


async def count(store: Store) -> int:
    [(found,)] = await store.rows(COUNT, {})
    return int(found)


def _account(row: Row | None) -> Account | None:
    return None if row is None else Account(*row)
