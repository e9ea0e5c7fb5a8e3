"""Accounts. No record has the hash of the password: `get_with_password`, `get_password` and `has_password` read it."""

from typing import Literal

import msgspec
from sqlalchemy import BigInteger, bindparam, case, cast, exists, insert, select, update

from cadenza.core.records import Owner
from cadenza.store import schema
from cadenza.store.rows import Rows
from cadenza.store.statements import Statement, total
from cadenza.store.store import Row, Store, Transaction, change_row
from cadenza.store.tables import epochs

Theme = Literal["system", "light", "dark"]
AccountState = Literal["active", "suspended", "erased"]


class Account(msgspec.Struct, frozen=True):
    """The owner of keys and credit. It can spend its balance less what is held.

    A reserve with a spare part does not count as held: its process gives it back when another one needs it.
    """

    id: str
    email: str
    preferred_class: str
    balance_nano: int
    held_nano: int
    created_at: int
    is_operator: bool = False
    suspended_at: int | None = None
    verified_at: int | None = None
    theme: Theme = "system"
    uses_search: bool = True
    uses_memory: bool = True
    low_balance_nano: int = 1_000_000_000
    low_noticed_at: int | None = None
    debt_nano: int = 0  # paid by ended holds and later credit, before anything else
    granted_nano: int = 0  # the part of the balance that was not paid for, and is spent first
    shows_cost: bool = False  # replies say what they cost
    erased_at: int | None = None  # it is suspended since then, too

    @property
    def owner(self) -> Owner:
        return Owner(self.id, self.email)

    @property
    def state(self) -> AccountState:
        if self.erased_at is not None:
            return "erased"
        return "active" if self.suspended_at is None else "suspended"


class AccountsFound(msgspec.Struct, frozen=True):
    """Which accounts there are, found without reading them all."""

    has_any: bool
    has_others: bool  # besides the one that was named
    has_operator: bool


class Preferences(msgspec.Struct, frozen=True):
    """What the owner of an account chooses."""

    preferred_class: str
    theme: Theme
    uses_search: bool
    uses_memory: bool
    shows_cost: bool = False


_SPARE = select(cast(total(schema.reserves.c.amount_nano), BigInteger)).where(
    schema.reserves.c.account_id == schema.accounts.c.id, schema.reserves.c.has_spare
)
HELD = (schema.accounts.c.held_nano - _SPARE.correlate(schema.accounts).scalar_subquery()).label("held_nano")
HAS_REQUESTS = exists().where(schema.usage_days.c.account_id == schema.accounts.c.id)
ROWS = Rows(Account, schema.accounts, held_nano=HELD)
COLUMNS, read_account = ROWS.columns, ROWS.read
INSERT = Statement(insert(schema.accounts), *Account.__struct_fields__, "password_hash")
BY_EMAIL = Statement(select(*COLUMNS).where(schema.accounts.c.email == bindparam("email")))
WITH_PASSWORD = Statement(
    select(schema.accounts.c.password_hash, *COLUMNS).where(schema.accounts.c.email == bindparam("email"))
)
_OF_ID = schema.accounts.c.id == bindparam("account")
BY_ID = Statement(select(*COLUMNS).where(_OF_ID))
LOCK = Statement(select(schema.accounts.c.id).where(_OF_ID).with_for_update(key_share=True))
PASSWORD = Statement(select(schema.accounts.c.password_hash).where(_OF_ID))
LOCK_PASSWORD = Statement(select(schema.accounts.c.password_hash).where(_OF_ID).with_for_update())
_ANY = select(schema.accounts.c.id)
_OTHERS = _ANY.where(schema.accounts.c.email != bindparam("email"))
FOUND = Statement(select(_ANY.exists(), _OTHERS.exists(), _ANY.where(schema.accounts.c.is_operator).exists()))
OPERATORS = Statement(select(schema.accounts.c.id).where(schema.accounts.c.is_operator).with_for_update())
OLDEST_FIRST = Statement(select(*COLUMNS).order_by(schema.accounts.c.created_at, schema.accounts.c.id))
_ACTIVE = schema.accounts.c.suspended_at.is_(None)
ACTIVE_IDS = Statement(select(schema.accounts.c.id).where(_ACTIVE).limit(bindparam("count")))
NOTICE_BELOW = Statement(
    update(schema.accounts)
    .where(schema.accounts.c.id == bindparam("account"))
    .values(
        low_balance_nano=bindparam("below"),
        low_noticed_at=case(
            (schema.accounts.c.balance_nano < bindparam("below"), schema.accounts.c.low_noticed_at), else_=None
        ),
    )
)


def add(tx: Transaction, account: Account, password_hash: str) -> None:
    tx.change(INSERT, {**msgspec.structs.asdict(account), "password_hash": password_hash})


def find_by_email(tx: Transaction, email: str) -> Account | None:
    return _account(tx.row(BY_EMAIL, {"email": email}))


async def get_by_email(store: Store, email: str) -> Account | None:
    return _account(await store.row(BY_EMAIL, {"email": email}))


async def get_with_password(store: Store, email: str) -> tuple[Account, str] | None:
    row = await store.row(WITH_PASSWORD, {"email": email})
    return None if row is None else (read_account(row[1:]), row[0])


def find(tx: Transaction, account_id: str) -> Account | None:
    return _account(tx.row(BY_ID, {"account": account_id}))


async def get(store: Store, account_id: str) -> Account | None:
    return _account(await store.row(BY_ID, {"account": account_id}))


async def get_password(store: Store, account_id: str) -> str | None:
    row = await store.row(PASSWORD, {"account": account_id})
    return None if row is None else str(row[0])


def has_password(tx: Transaction, account_id: str, password_hash: str) -> bool:
    """Whether this is the hash. It cannot change before the transaction ends."""
    return tx.row(LOCK_PASSWORD, {"account": account_id}) == (password_hash,)


def change(tx: Transaction, account_id: str, **values: str | int | None) -> None:
    """Set columns of an account, other than its money. StoreRefused if another account has the new address."""
    change_row(tx, schema.accounts, account_id, **values)


def lock_operators(tx: Transaction) -> set[str]:
    """The ids of all operators. They are locked until the transaction ends."""
    return {row[0] for row in tx.rows(OPERATORS, {})}


def lock_first_operator(tx: Transaction) -> bool:
    """Whether there is an operator. Other calls of this function wait until the transaction ends."""
    tx.row(epochs.LOCK, {"of": epochs.CHANGES})
    return bool(lock_operators(tx))


async def list_all(store: Store) -> list[Account]:
    return [read_account(row) for row in await store.report(OLDEST_FIRST, {})]


async def find_any(store: Store, besides: str) -> AccountsFound:
    [found] = await store.rows(FOUND, {"email": besides})
    return AccountsFound(*map(bool, found))


async def list_active_ids(store: Store, count: int) -> list[str]:
    """The ids of as many accounts at most, in no order."""
    return [id_ for (id_,) in await store.rows(ACTIVE_IDS, {"count": count})]


def notice_below(tx: Transaction, account_id: str, below_nano: int) -> None:
    """Set the balance below which the owner gets a notice."""
    tx.change(NOTICE_BELOW, {"account": account_id, "below": below_nano})


def _account(row: Row | None) -> Account | None:
    return None if row is None else read_account(row)


def lock_account(tx: Transaction, account_id: str) -> None:
    """Lock the account: no other transaction changes its money, caps or web key before this one ends."""
    tx.row(LOCK, {"account": account_id})
