"""Access tokens, by their digest. Each request reads its token from the store, so a revoked one fails at once."""

import msgspec
from sqlalchemy import bindparam, func, insert, or_, select, update

from cadenza.store.schema import access_tokens, accounts
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction, change_row
from cadenza.store.tables.accounts import COLUMNS as ACCOUNT_COLUMNS
from cadenza.store.tables.accounts import Account, read_account
from cadenza.store.tables.keys import KeyState


class AccessToken(msgspec.Struct, frozen=True):
    """A token without its secret. `scopes` are separated by spaces."""

    id: str
    account_id: str
    name: str
    prefix: str
    scopes: str
    created_at: int
    expires_at: int
    revoked_at: int | None = None
    last_used_at: int | None = None

    def state_at(self, now_ms: int) -> KeyState:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if now_ms >= self.expires_at else "active"


COLUMNS = [access_tokens.c[name] for name in AccessToken.__struct_fields__]
_OF_ACCOUNT = access_tokens.c.account_id == bindparam("account")
INSERT = Statement(insert(access_tokens), *AccessToken.__struct_fields__, "digest")
FIND = Statement(
    select(*COLUMNS, *ACCOUNT_COLUMNS)
    .join_from(access_tokens, accounts)
    .where(access_tokens.c.digest == bindparam("digest"))
)
LIST = Statement(
    select(*COLUMNS).where(_OF_ACCOUNT).order_by(access_tokens.c.created_at.desc(), access_tokens.c.id.desc())
)
BY_PREFIX_OR_ID = Statement(
    select(*COLUMNS).where(or_(access_tokens.c.id == bindparam("text"), access_tokens.c.prefix == bindparam("text")))
)
COUNT = Statement(
    select(func.count()).where(
        _OF_ACCOUNT, access_tokens.c.revoked_at.is_(None), access_tokens.c.expires_at > bindparam("now")
    )
)
TOUCH = Statement(
    update(access_tokens).where(access_tokens.c.id == bindparam("token")).values(last_used_at=bindparam("now"))
)


def add(tx: Transaction, token: AccessToken, digest: bytes) -> None:
    tx.change(INSERT, {**msgspec.structs.asdict(token), "digest": digest})


async def find(store: Store, digest: bytes) -> tuple[AccessToken, Account] | None:
    row = await store.row(FIND, {"digest": digest})
    return None if row is None else (AccessToken(*row[: len(COLUMNS)]), read_account(row[len(COLUMNS) :]))


async def list_for_account(store: Store, account_id: str) -> list[AccessToken]:
    """Newest first."""
    return [AccessToken(*row) for row in await store.rows(LIST, {"account": account_id})]


def find_by_prefix_or_id(tx: Transaction, text: str) -> list[AccessToken]:
    return [AccessToken(*row) for row in tx.rows(BY_PREFIX_OR_ID, {"text": text})]


def count_active(tx: Transaction, account_id: str, now_ms: int) -> int:
    row = tx.row(COUNT, {"account": account_id, "now": now_ms})
    return int(row[0]) if row else 0


def revoke(tx: Transaction, token_id: str, now_ms: int) -> None:
    change_row(tx, access_tokens, token_id, revoked_at=now_ms)


async def touch(store: Store, token_id: str, now_ms: int) -> None:
    await store.transact(lambda tx: tx.change(TOUCH, {"token": token_id, "now": now_ms}), is_single=True)
