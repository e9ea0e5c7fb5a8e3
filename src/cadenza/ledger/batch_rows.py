"""Writes the rows of a batch of the ledger: one statement for each kind of row on SQLite, one for all on Postgres.

A reserve is changed only if it is as it was read. Otherwise nothing is written, and the batch is tried again. On
Postgres a batch is refused if the row of its process is fenced or gone, because another process sweeps it or has swept
it. The row is read after the accounts were locked; a sweep fences the process first, and then locks its accounts. On
SQLite a live process cannot be swept.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import and_, bindparam, delete, insert, text, update

from cadenza.store.schema import accounts, entries, reserves, usage
from cadenza.store.statements import Statement
from cadenza.store.store import StoreRefused, Transaction

Row = Mapping[str, Any]

ENTRY_COLUMNS = ("account_id", "kind", "amount_nano", "completion_id", "note", "created_at")
USAGE_COLUMNS = tuple(usage.c.keys())
ADD_ENTRY = Statement(insert(entries), *ENTRY_COLUMNS)
ADD_USAGE = Statement(insert(usage), *USAGE_COLUMNS)
ADD_RESERVE = Statement(insert(reserves), "account_id", "process", "amount_nano", "has_spare")
_AS_READ = (
    reserves.c.account_id == bindparam("account"),
    reserves.c.process == bindparam("of"),
    reserves.c.amount_nano == bindparam("before"),
)
CHANGE_RESERVE = Statement(
    update(reserves)
    .where(*_AS_READ)
    .values(
        amount_nano=bindparam("after"),
        has_spare=bindparam("spare"),
        is_asked=and_(reserves.c.is_asked, bindparam("spare")),  # until the spare part is given back
    )
)
DROP_RESERVE = Statement(delete(reserves).where(*_AS_READ))
MOVE = Statement(
    update(accounts)
    .where(accounts.c.id == bindparam("account"))
    .values(
        balance_nano=accounts.c.balance_nano + bindparam("paid"),
        held_nano=accounts.c.held_nano + bindparam("more"),
    )
)


class ReserveChange(msgspec.Struct, frozen=True):
    """A reserve before and after a batch. None: there was no row."""

    account_id: str
    before_nano: int | None
    after_nano: int
    has_spare: bool


class AccountChange(msgspec.Struct, frozen=True):
    """What is added to an account's balance and to its held sum."""

    account_id: str
    paid_nano: int
    more_nano: int


class BatchRows(msgspec.Struct):
    """The rows of a batch."""

    process: str
    is_fenced: bool = True
    entries: list[Row] = msgspec.field(default_factory=list)
    usage: list[Row] = msgspec.field(default_factory=list)
    reserves: list[ReserveChange] = msgspec.field(default_factory=list)
    accounts: list[AccountChange] = msgspec.field(default_factory=list)

    def write(self, tx: Transaction) -> None:
        new = [one for one in self.reserves if one.before_nano is None and one.after_nano]
        changed = [one for one in self.reserves if one.before_nano is not None and one.after_nano]
        dropped = [one for one in self.reserves if one.before_nano is not None and not one.after_nano]
        write = self._write_at_once if tx.combines_changes else self._write_each
        count, is_alive = write(tx, changed, dropped)
        if self.is_fenced and not is_alive:
            raise StoreRefused("The store refused a batch: its process was swept.")
        if count != len(changed) + len(dropped):
            raise StoreRefused("The store refused a change: a reserve is not as it was read.")
        if new:
            rows = [(one.account_id, self.process, one.after_nano, one.has_spare) for one in new]
            names = ("account_id", "process", "amount_nano", "has_spare")
            tx.change_each(ADD_RESERVE, [dict(zip(names, row, strict=True)) for row in rows])

    def _write_each(
        self, tx: Transaction, changed: list[ReserveChange], dropped: list[ReserveChange]
    ) -> tuple[int, bool]:
        if self.entries:
            tx.change_each(ADD_ENTRY, self.entries)
        if self.usage:
            tx.change_each(ADD_USAGE, self.usage)
        for account in self.accounts:
            tx.change(MOVE, {"account": account.account_id, "paid": account.paid_nano, "more": account.more_nano})
        count = 0
        for one in changed:
            values = {"account": one.account_id, "of": self.process, "before": one.before_nano}
            count += tx.change(CHANGE_RESERVE, {**values, "after": one.after_nano, "spare": one.has_spare})
        for one in dropped:
            values = {"account": one.account_id, "of": self.process, "before": one.before_nano}
            count += tx.change(DROP_RESERVE, values)
        return count, True

    def _write_at_once(
        self, tx: Transaction, changed: list[ReserveChange], dropped: list[ReserveChange]
    ) -> tuple[int, bool]:
        values: dict[str, Any] = {"process": self.process}
        for name, rows, columns in (("e", self.entries, ENTRY_COLUMNS), ("u", self.usage, USAGE_COLUMNS)):
            values |= {f"{name}_{column}": [row[column] for row in rows] for column in columns}
        values |= {
            "r_account": [one.account_id for one in changed],
            "r_before": [one.before_nano for one in changed],
            "r_after": [one.after_nano for one in changed],
            "r_spare": [one.has_spare for one in changed],
            "d_account": [one.account_id for one in dropped],
            "d_before": [one.before_nano for one in dropped],
            "a_account": [one.account_id for one in self.accounts],
            "a_paid": [one.paid_nano for one in self.accounts],
            "a_more": [one.more_nano for one in self.accounts],
        }
        row = tx.row(WRITE, values)
        assert row
        return int(row[0]), bool(row[1])


def _unnest(prefix: str, columns: Sequence[tuple[str, str]]) -> str:
    arrays = ", ".join(f"CAST(:{prefix}_{name} AS {kind}[])" for name, kind in columns)
    return f"unnest({arrays})"


_KINDS = {"INTEGER": "integer", "BIGINT": "bigint", "BOOLEAN": "boolean", "TEXT": "text", "BLOB": "bytea"}
_E = [(name, _KINDS[str(entries.c[name].type)]) for name in ENTRY_COLUMNS]
_U = [(name, _KINDS[str(usage.c[name].type)]) for name in USAGE_COLUMNS]
_R = [("account", "text"), ("before", "bigint"), ("after", "bigint"), ("spare", "boolean")]
_D = [("account", "text"), ("before", "bigint")]
_A = [("account", "text"), ("paid", "bigint"), ("more", "bigint")]
WRITE = Statement(  # for Postgres only
    text(f"""
    WITH added_entries AS (
        INSERT INTO entries ({", ".join(ENTRY_COLUMNS)}) SELECT * FROM {_unnest("e", _E)}
    ), added_usage AS (
        INSERT INTO usage ({", ".join(USAGE_COLUMNS)}) SELECT * FROM {_unnest("u", _U)}
    ), moved AS (
        UPDATE accounts SET balance_nano = balance_nano + m.paid, held_nano = held_nano + m.more
        FROM {_unnest("a", _A)} AS m (account, paid, more) WHERE accounts.id = m.account
    ), changed AS (
        UPDATE reserves SET amount_nano = m.after, has_spare = m.spare, is_asked = is_asked AND m.spare
        FROM {_unnest("r", _R)} AS m (account, before, after, spare)
        WHERE reserves.account_id = m.account AND reserves.process = :process AND reserves.amount_nano = m.before
        RETURNING 1
    ), dropped AS (
        DELETE FROM reserves USING {_unnest("d", _D)} AS m (account, before)
        WHERE reserves.account_id = m.account AND reserves.process = :process AND reserves.amount_nano = m.before
        RETURNING 1
    ), alive AS (
        SELECT name FROM processes WHERE name = :process AND beats >= 0 FOR KEY SHARE
    )
    SELECT (SELECT COUNT(*) FROM changed) + (SELECT COUNT(*) FROM dropped), EXISTS (SELECT FROM alive)""")  # noqa: S608 our own names
)
