"""The second factors of an account: authenticator app, recovery codes and passkeys. A code is accepted once."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import bindparam, delete, func, insert, or_, select, update

from cadenza.store.schema import passkeys, recovery_codes, totp
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store, Transaction, change_row


class Totp(msgspec.Struct, frozen=True):
    """The secret of an authenticator app, encrypted, and the last time step whose code was accepted."""

    account_id: str
    secret: bytes
    last_step: int
    confirmed_at: int | None


class Passkey(msgspec.Struct, frozen=True):
    """A passkey of an account. Its private part never leaves the authenticator."""

    id: bytes
    account_id: str
    name: str
    public_key: bytes
    sign_count: int
    created_at: int
    last_used_at: int | None = None


class Factors(msgspec.Struct, frozen=True):
    """Which second factors an account has."""

    has_totp: bool
    passkeys: int
    recovery_codes: int

    @property
    def is_any(self) -> bool:
        return self.has_totp or self.passkeys > 0


_OF_ACCOUNT = totp.c.account_id == bindparam("account")
_CODES_OF_ACCOUNT = recovery_codes.c.account_id == bindparam("account")
_PASSKEYS_OF_ACCOUNT = passkeys.c.account_id == bindparam("account")
_PASSKEY_OF_ID = passkeys.c.id == bindparam("passkey")
COUNT_TOTP = (
    select(func.count()).select_from(totp).where(_OF_ACCOUNT, totp.c.confirmed_at.is_not(None)).scalar_subquery()
)
COUNT_PASSKEYS = select(func.count()).select_from(passkeys).where(_PASSKEYS_OF_ACCOUNT).scalar_subquery()
COUNT_CODES = select(func.count()).select_from(recovery_codes).where(_CODES_OF_ACCOUNT).scalar_subquery()
FACTORS = Statement(select(COUNT_TOTP, COUNT_PASSKEYS, COUNT_CODES))
INSERT_TOTP = Statement(insert(totp), *Totp.__struct_fields__)
FIND_TOTP = Statement(select(*(totp.c[name] for name in Totp.__struct_fields__)).where(_OF_ACCOUNT))
REMOVE_TOTP = Statement(delete(totp).where(_OF_ACCOUNT))
USE_STEP = Statement(
    update(totp)
    .where(_OF_ACCOUNT, totp.c.last_step < bindparam("step"))
    .values(last_step=bindparam("step"), confirmed_at=func.coalesce(totp.c.confirmed_at, bindparam("now")))
)
INSERT_CODE = Statement(insert(recovery_codes), "account_id", "digest")
USE_CODE = Statement(delete(recovery_codes).where(_CODES_OF_ACCOUNT, recovery_codes.c.digest == bindparam("code")))
REMOVE_CODES = Statement(delete(recovery_codes).where(_CODES_OF_ACCOUNT))
PASSKEY_COLUMNS = [passkeys.c[name] for name in Passkey.__struct_fields__]
INSERT_PASSKEY = Statement(insert(passkeys), *Passkey.__struct_fields__)
FIND_PASSKEY = Statement(select(*PASSKEY_COLUMNS).where(_PASSKEY_OF_ID))
LIST_PASSKEYS = Statement(
    select(*PASSKEY_COLUMNS).where(_PASSKEYS_OF_ACCOUNT).order_by(passkeys.c.created_at, passkeys.c.id)
)
USE_PASSKEY = Statement(
    update(passkeys)
    .where(_PASSKEY_OF_ID, or_(passkeys.c.last_used_at.is_(None), passkeys.c.last_used_at < bindparam("asked_at")))
    .values(last_used_at=bindparam("now"), sign_count=bindparam("count"))
)
REMOVE_PASSKEY = Statement(delete(passkeys).where(_PASSKEYS_OF_ACCOUNT, _PASSKEY_OF_ID))
REMOVE_PASSKEYS = Statement(delete(passkeys).where(_PASSKEYS_OF_ACCOUNT))


async def get_factors(store: Store, account_id: str) -> Factors:
    return _factors(await store.row(FACTORS, {"account": account_id}))


def find_factors(tx: Transaction, account_id: str) -> Factors:
    return _factors(tx.row(FACTORS, {"account": account_id}))


def find_totp(tx: Transaction, account_id: str) -> Totp | None:
    row = tx.row(FIND_TOTP, {"account": account_id})
    return None if row is None else Totp(*row)


def replace_totp(tx: Transaction, account_id: str, secret: bytes) -> None:
    """Replace the secret. The new one is confirmed when its first code is used."""
    tx.change(REMOVE_TOTP, {"account": account_id})
    tx.change(INSERT_TOTP, msgspec.structs.asdict(Totp(account_id, secret, 0, None)))


def replace_secret(tx: Transaction, account_id: str, secret: bytes) -> None:
    """Store the same secret in another form. The old one is overwritten."""
    tx.overwrite_deleted()
    change_row(tx, totp, account_id, secret=secret)


def remove_totp(tx: Transaction, account_id: str) -> bool:
    return tx.change(REMOVE_TOTP, {"account": account_id}) == 1


def use_step(tx: Transaction, account_id: str, step: int, now_ms: int) -> bool:
    """Accept the code of a time step. False if it or a later one was accepted before."""
    return tx.change(USE_STEP, {"account": account_id, "step": step, "now": now_ms}) == 1


def replace_codes(tx: Transaction, account_id: str, digests: Sequence[bytes]) -> None:
    tx.change(REMOVE_CODES, {"account": account_id})
    tx.change_each(INSERT_CODE, [{"account_id": account_id, "digest": digest} for digest in digests])


def use_code(tx: Transaction, account_id: str, digest: bytes) -> bool:
    return tx.change(USE_CODE, {"account": account_id, "code": digest}) == 1


def remove_codes(tx: Transaction, account_id: str) -> None:
    tx.change(REMOVE_CODES, {"account": account_id})


def add_passkey(tx: Transaction, passkey: Passkey) -> None:
    tx.change(INSERT_PASSKEY, msgspec.structs.asdict(passkey))


async def get_passkey(store: Store, passkey_id: bytes) -> Passkey | None:
    row = await store.row(FIND_PASSKEY, {"passkey": passkey_id})
    return None if row is None else Passkey(*row)


async def list_passkeys(store: Store, account_id: str) -> list[Passkey]:
    return [Passkey(*row) for row in await store.rows(LIST_PASSKEYS, {"account": account_id})]


def use_passkey(tx: Transaction, passkey: Passkey, asked_at: int, sign_count: int, now_ms: int) -> bool:
    """Record a use. False if the challenge of `asked_at` is not newer than the last use: it was answered before."""
    values = {"passkey": passkey.id, "asked_at": asked_at, "now": now_ms, "count": sign_count}
    return tx.change(USE_PASSKEY, values) == 1


def remove_passkey(tx: Transaction, account_id: str, passkey_id: bytes) -> bool:
    return tx.change(REMOVE_PASSKEY, {"account": account_id, "passkey": passkey_id}) == 1


def remove_passkeys(tx: Transaction, account_id: str) -> int:
    return tx.change(REMOVE_PASSKEYS, {"account": account_id})


def _factors(row: Row | None) -> Factors:
    assert row
    return Factors(row[0] > 0, row[1], row[2])
