"""Access tokens, by their digest. Each request reads its token from the store, so a revoked one fails at once."""

import msgspec
from sqlalchemy import bindparam, func, insert, select, update

from cadenza.core.orders import copied
from cadenza.store.rows import Rows
from cadenza.store.schema import access_tokens, accounts
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store, Transaction, change_row
from cadenza.store.tables.accounts import COLUMNS as ACCOUNT_COLUMNS
from cadenza.store.tables.accounts import Account, read_account
from cadenza.store.tables.keys import KeyState, state_of


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row without the digest."""

    id: str
    account_id: str
    name: str
    prefix: str
    scopes: tuple[str, ...]
    created_at: int
    expires_at: int
    last_used_at: int | None = None
    revoked_at: int | None = None


class Token(TokenRow, frozen=True, kw_only=True):
    """A token without its secret."""

    state: KeyState = "active"


ROWS = Rows(TokenRow, access_tokens, {"scopes": lambda text: tuple(text.split())})
COLUMNS = ROWS.columns
_OF_ACCOUNT = access_tokens.c.account_id == bindparam("account")
INSERT = Statement(insert(access_tokens), *TokenRow.__struct_fields__, "digest")
FIND = Statement(
    select(*COLUMNS, *ACCOUNT_COLUMNS)
    .join_from(access_tokens, accounts)
    .where(access_tokens.c.digest == bindparam("digest"))
)
LIST = Statement(
    select(*COLUMNS).where(_OF_ACCOUNT).order_by(access_tokens.c.created_at.desc(), access_tokens.c.id.desc())
)
BY_ID, BY_PREFIX = (
    Statement(select(*COLUMNS).where(column == bindparam("text")))
    for column in (access_tokens.c.id, access_tokens.c.prefix)
)
_IS_ACTIVE = (_OF_ACCOUNT, access_tokens.c.revoked_at.is_(None), access_tokens.c.expires_at > bindparam("now"))
COUNT = Statement(select(func.count()).where(*_IS_ACTIVE))
REVOKE_ALL = Statement(update(access_tokens).where(*_IS_ACTIVE).values(revoked_at=bindparam("now")))


def add(tx: Transaction, token: Token, digest: bytes) -> None:
    values = msgspec.structs.asdict(copied(TokenRow, token))
    tx.change(INSERT, {**values, "scopes": " ".join(token.scopes), "digest": digest})


async def find(store: Store, digest: bytes, now_ms: int) -> tuple[Token, Account] | None:
    row = await store.row(FIND, {"digest": digest})
    return None if row is None else (_read(row[: len(COLUMNS)], now_ms), read_account(row[len(COLUMNS) :]))


async def list_for_account(store: Store, account_id: str, now_ms: int) -> list[Token]:
    """Newest first."""
    return [_read(row, now_ms) for row in await store.rows(LIST, {"account": account_id})]


def find_by_id(tx: Transaction, token_id: str, now_ms: int) -> list[Token]:
    return [_read(row, now_ms) for row in tx.rows(BY_ID, {"text": token_id})]


def find_by_prefix_or_id(tx: Transaction, text: str, now_ms: int) -> list[Token]:
    """A prefix is searched among all tokens, which takes long if there are many."""
    return find_by_id(tx, text, now_ms) or [_read(row, now_ms) for row in tx.rows(BY_PREFIX, {"text": text})]


def count_active(tx: Transaction, account_id: str, now_ms: int) -> int:
    row = tx.row(COUNT, {"account": account_id, "now": now_ms})
    return int(row[0]) if row else 0


def revoke(tx: Transaction, token_id: str, now_ms: int) -> None:
    change_row(tx, access_tokens, token_id, revoked_at=now_ms)


def revoke_all(tx: Transaction, account_id: str, now_ms: int) -> int:
    """Revoke the active tokens of an account. Return how many there were."""
    return tx.change(REVOKE_ALL, {"account": account_id, "now": now_ms})


async def touch(store: Store, token_id: str, now_ms: int) -> None:
    await store.transact(lambda tx: change_row(tx, access_tokens, token_id, last_used_at=now_ms), is_single=True)


def _read(row: Row, now_ms: int) -> Token:
    found = ROWS.read(row)
    return copied(Token, found, state=state_of(found.revoked_at, found.expires_at, now_ms))
