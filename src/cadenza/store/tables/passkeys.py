"""Passkeys, by the credential id that the authenticator chose."""

import msgspec
from sqlalchemy import bindparam, delete, insert, or_, select, update

from cadenza.store.schema import passkeys
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store, Transaction


class Passkey(msgspec.Struct, frozen=True):
    """A passkey of an account. Its private part never leaves the authenticator."""

    id: bytes
    account_id: str
    name: str
    public_key: bytes
    sign_count: int
    created_at: int
    last_used_at: int | None = None


COLUMNS = [passkeys.c[name] for name in Passkey.__struct_fields__]
_OF_ACCOUNT = passkeys.c.account_id == bindparam("account")
_OF_ID = passkeys.c.id == bindparam("passkey")
INSERT = Statement(insert(passkeys), *Passkey.__struct_fields__)
FIND = Statement(select(*COLUMNS).where(_OF_ID))
LIST = Statement(select(*COLUMNS).where(_OF_ACCOUNT).order_by(passkeys.c.created_at, passkeys.c.id))
USE = Statement(
    update(passkeys)
    .where(_OF_ID, or_(passkeys.c.last_used_at.is_(None), passkeys.c.last_used_at < bindparam("asked_at")))
    .values(last_used_at=bindparam("now"), sign_count=bindparam("count"))
)
RENAME = Statement(update(passkeys).where(_OF_ACCOUNT, _OF_ID).values(name=bindparam("new_name")))
REMOVE = Statement(delete(passkeys).where(_OF_ACCOUNT, _OF_ID))
REMOVE_ALL = Statement(delete(passkeys).where(_OF_ACCOUNT))


def add(tx: Transaction, passkey: Passkey) -> None:
    tx.change(INSERT, msgspec.structs.asdict(passkey))


async def get(store: Store, passkey_id: bytes) -> Passkey | None:
    return _passkey(await store.row(FIND, {"passkey": passkey_id}))


async def list_for_account(store: Store, account_id: str) -> list[Passkey]:
    return [Passkey(*row) for row in await store.rows(LIST, {"account": account_id})]


def use(tx: Transaction, passkey: Passkey, asked_at: int, sign_count: int, now_ms: int) -> bool:
    """Note a use. False if the challenge of `asked_at` is not newer than the last use: it was answered before."""
    values = {"passkey": passkey.id, "asked_at": asked_at, "now": now_ms, "count": sign_count}
    return tx.change(USE, values) == 1


def rename(tx: Transaction, account_id: str, passkey_id: bytes, name: str) -> bool:
    return tx.change(RENAME, {"account": account_id, "passkey": passkey_id, "new_name": name}) == 1


def remove(tx: Transaction, account_id: str, passkey_id: bytes) -> bool:
    return tx.change(REMOVE, {"account": account_id, "passkey": passkey_id}) == 1


def remove_all(tx: Transaction, account_id: str) -> int:
    return tx.change(REMOVE_ALL, {"account": account_id})


def _passkey(row: Row | None) -> Passkey | None:
    return None if row is None else Passkey(*row)
