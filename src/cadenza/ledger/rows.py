"""The rows that a batch of the ledger writes. Entries and metering rows have everything to recompute a charge.

SQLite runs one statement for each kind of row, and Postgres one for all of them. The metering rows of a batch are also
added to the sums by day (day_sums.py). A reserve is changed only if it is
still as it was read; otherwise nothing is written and the batch is retried. On SQLite no other process can write
meanwhile, so one that stays the same is not written. On Postgres every batch is fenced: it is refused if the row of
its process in `processes` is fenced or gone, because another process sweeps it or has swept it. That row is read by a
later statement than the one that locks the accounts, so it is read as it is then, while a sweep fences the process
first and then locks its accounts. On SQLite a live process cannot be swept.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import and_, bindparam, delete, insert, select, text, update

from cadenza.core.records import Usage
from cadenza.ledger import day_sums
from cadenza.ledger.origins import CreditMove
from cadenza.ledger.rules import Charge, LockedAccount
from cadenza.store.schema import accounts, entries, reserves, usage, usage_days
from cadenza.store.statements import Statement, Values
from cadenza.store.store import Row, StoreRefused, Transaction

NO_USAGE = Usage(0, 0)
CORRECTED = "This reply was charged while it still ran, and cost less in the end."
ENTRY_COLUMNS = ("account_id", "kind", "amount_nano", "completion_id", "note", "created_at", "granted_nano")
USAGE_COLUMNS = tuple(usage.c.keys())
RESERVE_COLUMNS = ("account_id", "process", "amount_nano", "has_spare")
_IDENTITY = {"completion_id", "request_id", "account_id", "key_id", "class_id", "version", "stream", "started_at"}
CORRECTED_COLUMNS = [name for name in USAGE_COLUMNS if name not in {*_IDENTITY, "idempotency_digest"}]
ADD_ENTRY = Statement(insert(entries), *ENTRY_COLUMNS)
ADD_SOURCED_ENTRY = Statement(insert(entries), *ENTRY_COLUMNS, "origin", "source")
ADD_USAGE = Statement(insert(usage), *USAGE_COLUMNS)
READ_USAGE = Statement(select(usage).where(usage.c.completion_id == bindparam("completion")))
CORRECT_USAGE = Statement(
    update(usage)
    .where(usage.c.completion_id == bindparam("completion"))
    .values({name: bindparam(f"new_{name}") for name in CORRECTED_COLUMNS})
)
ADD_RESERVE = Statement(insert(reserves), *RESERVE_COLUMNS)
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
        granted_nano=accounts.c.granted_nano + bindparam("granted"),
    )
)


class BatchRows(msgspec.Struct):
    """The rows of a batch. Those of accounts and reserves are by the names of the statements' parameters."""

    process: str
    is_fenced: bool = True
    entries: list[Row] = []
    usage: list[Row] = []
    accounts: list[Values] = []
    new_reserves: list[Values] = []
    changed_reserves: list[Values] = []
    dropped_reserves: list[Values] = []

    def add_charge(self, charge: Charge) -> None:
        end = charge.end
        self.usage.append(usage_row(charge))
        if charge.has_entry:
            who, what, at = end.hold.account_id, end.hold.completion_id, end.outcome.ended_at
            self.entries.append((who, "charge", -charge.charged_nano, what, "", at, -charge.granted_nano))

    def add_account(self, before: LockedAccount, after: LockedAccount, granted_nano: int) -> None:
        """Add what changed of an account and of its reserve. What pays debts is written elsewhere."""
        paid_nano = after.balance_nano - before.balance_nano + before.debt_nano - after.debt_nano
        more_nano = after.reserve_nano - before.reserve_nano
        if paid_nano or more_nano or granted_nano:
            moved = {"account": after.id, "paid": paid_nano, "more": more_nano, "granted": granted_nano}
            self.accounts.append(moved)
        if before.has_reserve:
            row = {"account": after.id, "of": self.process, "before": before.reserve_nano}
            if after.reserve_nano:
                is_same = after.reserve_nano == before.reserve_nano and after.has_spare == before.has_spare
                row |= {"after": after.reserve_nano, "spare": after.has_spare, "is_same": is_same}
                self.changed_reserves.append(row)
            else:
                self.dropped_reserves.append(row)
        elif after.reserve_nano:
            values = (after.id, self.process, after.reserve_nano, after.has_spare)
            self.new_reserves.append(dict(zip(RESERVE_COLUMNS, values, strict=True)))

    def write(self, tx: Transaction) -> None:
        count, is_alive = self._write_at_once(tx) if tx.combines_changes else self._write_each(tx)
        if self.is_fenced and not is_alive:
            raise StoreRefused("The store refused a batch: its process was swept.")
        if count != len(self.changed_reserves) + len(self.dropped_reserves):
            raise StoreRefused("The store refused a change: a reserve is not as it was read.")
        change_each(tx, ADD_RESERVE, self.new_reserves)

    def _write_each(self, tx: Transaction) -> tuple[int, bool]:
        if self.usage:
            tx.insert_rows(ADD_ENTRY, self.entries)
            tx.insert_rows(ADD_USAGE, self.usage)
            tx.insert_rows(day_sums.ADD, day_sums.add_up(self.usage))
        change_each(tx, MOVE, self.accounts)
        changed = sum([row["is_same"] or tx.change(CHANGE_RESERVE, row) for row in self.changed_reserves])
        return changed + sum([tx.change(DROP_RESERVE, row) for row in self.dropped_reserves]), True

    def _write_at_once(self, tx: Transaction) -> tuple[int, bool]:
        values: dict[str, Any] = {"process": self.process}
        for prefix, added in (("e", self.entries), ("u", self.usage), ("s", day_sums.add_up(self.usage))):
            for number, column in enumerate(_ARRAYS[prefix]):
                values[f"{prefix}_{column}"] = [row[number] for row in added]
        changed = (("a", self.accounts), ("r", self.changed_reserves), ("d", self.dropped_reserves))
        for prefix, changes in changed:
            for column in _ARRAYS[prefix]:
                values[f"{prefix}_{column}"] = [change[column] for change in changes]
        row = tx.row(WRITE, values)
        assert row
        return int(row[0]), bool(row[1])


def change_each(tx: Transaction, statement: Statement, rows: Sequence[Values]) -> None:
    """Run the statement once for each row. Without rows, a round trip is saved."""
    if rows:
        tx.change_each(statement, rows)


def write_corrections(tx: Transaction, corrections: Sequence[Charge]) -> None:
    """Give back what sweeps charged too much, by an entry for each. The metering row then has the final cost.

    The database accepts one correction of a request by its late end.
    """
    for charge in corrections:
        completion_id, row = charge.end.hold.completion_id, usage_row(charge)
        if charge.corrected_nano:
            back = CreditMove(
                charge.end.hold.account_id,
                "late-end",
                charge.corrected_nano,
                CORRECTED,
                charge.end.outcome.ended_at,
                f"late-end:{completion_id}",
                completion_id,
            )
            tx.change(ADD_SOURCED_ENTRY, entry_row(back, charge.corrected_nano, charge.granted_nano))
        before = tx.row(READ_USAGE, {"completion": completion_id})
        assert before, "only a request that has a metering row is corrected"
        new = {
            f"new_{name}": value for name, value in zip(USAGE_COLUMNS, row, strict=True) if name in CORRECTED_COLUMNS
        }
        tx.change(CORRECT_USAGE, {"completion": completion_id, **new})
        day_sums.replace(tx, before, row)


def entry_row(move: CreditMove, amount_nano: int, granted_nano: int) -> dict[str, Any]:
    """The entry of a move that changes the balance and its granted part by these amounts."""
    return {
        "account_id": move.account_id,
        "kind": move.kind,
        "amount_nano": amount_nano,
        "completion_id": move.completion_id,
        "note": move.note,
        "created_at": move.now_ms,
        "granted_nano": granted_nano,
        "origin": move.origin,
        "source": move.source,
    }


def usage_row(charge: Charge) -> Row:
    """The values of USAGE_COLUMNS."""
    end, hold, outcome, price = charge.end, charge.end.hold, charge.end.outcome, charge.end.hold.price
    counted = outcome.usage or NO_USAGE
    return (
        hold.completion_id,
        hold.account_id,
        hold.key_id,
        hold.class_id,
        outcome.provider,
        outcome.model,
        counted.prompt_tokens,
        counted.cached_tokens,
        counted.completion_tokens,
        charge.charged_nano,
        counted.estimated,
        outcome.status,
        hold.stream,
        hold.started_at,
        outcome.first_byte_ms,
        outcome.duration_ms,
        hold.request_id,
        price.input_nano,
        price.output_nano,
        price.cached_input_nano,
        None if end.source == "sweep" else end.held_nano,
        end.due_nano - charge.charged_nano,
        end.source,
        hold.idempotency_digest,
        hold.version,
        end.provider_cost_nano,
    )


_KINDS = {"INTEGER": "integer", "BIGINT": "bigint", "BOOLEAN": "boolean", "TEXT": "text", "BLOB": "bytea"}
_ARRAYS = {  # the arrays that Postgres is given: the prefix of their names, and their columns with types
    "e": {name: _KINDS[str(entries.c[name].type)] for name in ENTRY_COLUMNS},
    "u": {name: _KINDS[str(usage.c[name].type)] for name in USAGE_COLUMNS},
    "s": {name: _KINDS[str(usage_days.c[name].type)] for name in day_sums.COLUMNS},
    "a": {"account": "text", "paid": "bigint", "more": "bigint", "granted": "bigint"},
    "r": {"account": "text", "before": "bigint", "after": "bigint", "spare": "boolean"},
    "d": {"account": "text", "before": "bigint"},
}


def _unnest(prefix: str) -> str:
    arrays = ", ".join(f"CAST(:{prefix}_{name} AS {kind}[])" for name, kind in _ARRAYS[prefix].items())
    return f"unnest({arrays})"


WRITE = Statement(  # for Postgres only
    text(f"""
    WITH added_entries AS (
        INSERT INTO entries ({", ".join(ENTRY_COLUMNS)}) SELECT * FROM {_unnest("e")}
    ), added_usage AS (
        INSERT INTO usage ({", ".join(USAGE_COLUMNS)}) SELECT * FROM {_unnest("u")}
    ), added_days AS (
        INSERT INTO usage_days ({", ".join(day_sums.COLUMNS)}) SELECT * FROM {_unnest("s")} {day_sums.ON_CONFLICT}
    ), moved AS (
        UPDATE accounts SET balance_nano = balance_nano + m.paid, held_nano = held_nano + m.more,
        granted_nano = granted_nano + m.granted
        FROM {_unnest("a")} AS m (account, paid, more, granted) WHERE accounts.id = m.account
    ), changed AS (
        UPDATE reserves SET amount_nano = m.after, has_spare = m.spare, is_asked = is_asked AND m.spare
        FROM {_unnest("r")} AS m (account, before, after, spare)
        WHERE reserves.account_id = m.account AND reserves.process = :process AND reserves.amount_nano = m.before
        RETURNING 1
    ), dropped AS (
        DELETE FROM reserves USING {_unnest("d")} AS m (account, before)
        WHERE reserves.account_id = m.account AND reserves.process = :process AND reserves.amount_nano = m.before
        RETURNING 1
    ), alive AS (
        SELECT name FROM processes WHERE name = :process AND beats >= 0 FOR KEY SHARE
    )
    SELECT (SELECT COUNT(*) FROM changed) + (SELECT COUNT(*) FROM dropped), EXISTS (SELECT FROM alive)""")  # noqa: S608 our own names
)
