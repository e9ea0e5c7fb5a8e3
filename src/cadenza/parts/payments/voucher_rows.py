"""Vouchers: codes that give credit once. The store has the digest of a code, and the prefix that may be shown."""

from typing import Annotated, Literal

import msgspec
from sqlalchemy import bindparam, insert, or_, select, update

from cadenza.control.account.accounts import NOTE_CHARS_MAX
from cadenza.control.money.credit import CREDIT_DAYS_MAX
from cadenza.control.money.idempotency import Reference
from cadenza.core.config_keys import amount, one_line, whole
from cadenza.core.orders import Shown
from cadenza.store import schema
from cadenza.store.rows import Rows
from cadenza.store.schema import vouchers
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

AMOUNT_MAX = 1_000_000
COUNT_MAX = 1_000
EXPIRY_DAYS_MAX = 3650
VoucherState = Literal["unused", "redeemed", "expired"]


# fmt: off
class VoucherTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What is ordered of each voucher, and stored."""

    amount_nano: Annotated[int, amount(AMOUNT_MAX), Shown("Amount of each, in dollars"), "Dollars, like 5.00."]
    credit_days: Annotated[int | None, whole(1, CREDIT_DAYS_MAX), Shown("Days until their credit expires", "credit-expires", "DAYS", "never"), "After how many days the rest of the credit expires, once it is redeemed."] = None
    note: Annotated[str, one_line(NOTE_CHARS_MAX), Shown("Note, for operators only", metavar="TEXT"), "What they are for. Only operators see it."] = ""


class VoucherOrder(VoucherTerms, frozen=True, kw_only=True):
    """The vouchers to make. Without days they do not expire, and without `credit_days` their credit does not either.

    A reference makes it idempotent.
    """

    count: Annotated[int, whole(1, COUNT_MAX), Shown("How many"), "How many vouchers to make."] = 1
    expires_days: Annotated[int | None, whole(1, EXPIRY_DAYS_MAX), Shown("Days until codes expire", "expires", "DAYS", "never"), "After how many days they expire."] = None
    reference: Reference = ""
# fmt: on


class Voucher(VoucherTerms, frozen=True, kw_only=True):
    """A voucher without its code. Revoking an unused one makes it expire at once."""

    id: str
    prefix: str
    created_at: int
    expires_at: int | None = None
    redeemed_at: int | None = None
    redeemed_by: str | None = None  # the id of an account

    def state(self, now_ms: int) -> VoucherState:
        if self.redeemed_at is not None:
            return "redeemed"
        return "expired" if self.expires_at is not None and self.expires_at <= now_ms else "unused"


class ListedVoucher(Voucher, frozen=True, kw_only=True):
    """A voucher, and the address of the account that redeemed it."""

    email: str | None


ROWS = Rows(Voucher, vouchers)
LISTED = Rows(ListedVoucher, vouchers, email=schema.accounts.c.email)
COLUMNS = ROWS.columns
INSERT = Statement(insert(vouchers), *Voucher.__struct_fields__, "digest")
BY_DIGEST = Statement(select(*COLUMNS).where(vouchers.c.digest == bindparam("code")))
BY_ID_OR_PREFIX = Statement(
    select(*COLUMNS)
    .where(or_(vouchers.c.id == bindparam("text"), vouchers.c.prefix == bindparam("text")))
    .order_by(vouchers.c.created_at, vouchers.c.id)
    .limit(20)
)
_IS_USABLE = (
    vouchers.c.redeemed_at.is_(None),
    or_(vouchers.c.expires_at.is_(None), vouchers.c.expires_at > bindparam("now")),
)
REDEEM = Statement(
    update(vouchers)
    .where(vouchers.c.digest == bindparam("code"), *_IS_USABLE)
    .values(redeemed_at=bindparam("now"), redeemed_by=bindparam("account"))
    .returning(*COLUMNS)
)
REVOKE = Statement(
    update(vouchers).where(vouchers.c.id == bindparam("voucher"), *_IS_USABLE).values(expires_at=bindparam("now"))
)
_LIST = select(*LISTED.columns).outerjoin_from(
    vouchers, schema.accounts, vouchers.c.redeemed_by == schema.accounts.c.id
)
LIST = Statement(_LIST.order_by(vouchers.c.created_at, vouchers.c.id))
NEWEST = Statement(_LIST.order_by(vouchers.c.created_at.desc(), vouchers.c.id.desc()).limit(bindparam("count")))


def add_all(tx: Transaction, made: list[tuple[bytes, Voucher]]) -> None:
    """Add vouchers, each with the digest of its code."""
    assert all(one.amount_nano > 0 and one.redeemed_at is None for _, one in made)
    tx.change_each(INSERT, [{**msgspec.structs.asdict(one), "digest": digest} for digest, one in made])


def redeem(tx: Transaction, digest: bytes, account_id: str, now_ms: int) -> Voucher | None:
    """Mark a voucher as redeemed; None if it is unknown, used or expired. Of several at once, one succeeds."""
    row = tx.row(REDEEM, {"code": digest, "account": account_id, "now": now_ms})
    return None if row is None else ROWS.read(row)


def find(tx: Transaction, digest: bytes) -> Voucher | None:
    row = tx.row(BY_DIGEST, {"code": digest})
    return None if row is None else ROWS.read(row)


def find_by_id_or_prefix(tx: Transaction, text: str) -> list[Voucher]:
    return [ROWS.read(row) for row in tx.rows(BY_ID_OR_PREFIX, {"text": text})]


def revoke(tx: Transaction, voucher_id: str, now_ms: int) -> bool:
    """Let an unused voucher expire. False if it was used or had expired."""
    return tx.change(REVOKE, {"voucher": voucher_id, "now": now_ms}) == 1


async def list_all(store: Store) -> list[ListedVoucher]:
    """Oldest first."""
    return [LISTED.read(row) for row in await store.report(LIST, {})]


async def list_newest(store: Store, count: int) -> list[ListedVoucher]:
    """Newest first, and at most this many."""
    return [LISTED.read(row) for row in await store.report(NEWEST, {"count": count})]
