"""The ledger in the store: reads what a batch needs under the locks of its accounts, and writes what the rules say.

The rules are in core/ledger.py; there are none here. Money is written as differences, so that an account's held sum and
its reserves always change together, and the constraints of the tables refuse what must not be. Accounts are locked in
the order of their ids, so that two processes never deadlock.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import ARRAY, Text, and_, bindparam, delete, func, insert, select, text, update

from cadenza.core.ledger import (
    IDEMPOTENCY_MS,
    Account,
    Changes,
    Charge,
    Demand,
    End,
    Ended,
    Held,
    Hold,
    Insufficient,
    KeyUse,
    Known,
    Repeated,
    apply,
    has_spare,
)
from cadenza.core.records import Usage
from cadenza.store.schema import accounts, entries, holds, idempotency, reserves, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Transaction

BALANCE_NANO_LIMIT = 2**62
NOTHING = Usage(0, 0)

GRANT = Statement(
    update(accounts)
    .where(accounts.c.id == bindparam("account"), accounts.c.balance_nano < bindparam("most"))
    .values(balance_nano=accounts.c.balance_nano + bindparam("amount"))
    .returning(accounts.c.balance_nano)
)
_ACCOUNTS = (
    select(
        accounts.c.id,
        accounts.c.balance_nano,
        accounts.c.held_nano,
        func.coalesce(reserves.c.amount_nano, 0),
    )
    .outerjoin_from(
        accounts, reserves, and_(reserves.c.account_id == accounts.c.id, reserves.c.process == bindparam("process"))
    )
    .order_by(accounts.c.id)
)
ACCOUNT = Statement(_ACCOUNTS.where(accounts.c.id == bindparam("account")))
_MANY = _ACCOUNTS.where(accounts.c.id == func.any(bindparam("accounts", type_=ARRAY(Text))))
MANY_ACCOUNTS = Statement(_MANY.with_for_update(key_share=True, of=accounts))
FREE_ACCOUNTS = Statement(_MANY.with_for_update(key_share=True, of=accounts, skip_locked=True))
MOVE = Statement(
    update(accounts)
    .where(accounts.c.id == bindparam("account"))
    .values(
        balance_nano=accounts.c.balance_nano + bindparam("paid"),
        held_nano=accounts.c.held_nano + bindparam("more"),
    )
)
RESERVE = Statement(
    text(
        "INSERT INTO reserves (account_id, process, amount_nano, has_spare) VALUES (:account, :process, :more, :spare)"
        " ON CONFLICT (account_id, process) DO UPDATE SET amount_nano = reserves.amount_nano + excluded.amount_nano,"
        " has_spare = excluded.has_spare, is_asked = FALSE"
    )
)
DROP_EMPTY = Statement(
    delete(reserves).where(
        reserves.c.account_id == bindparam("account"),
        reserves.c.process == bindparam("of"),
        reserves.c.amount_nano == 0,
    )
)
ASK = Statement(
    update(reserves)
    .where(reserves.c.account_id == bindparam("account"), reserves.c.process != bindparam("me"), reserves.c.has_spare)
    .values(is_asked=True)
)
ASKED = Statement(select(reserves.c.account_id).where(reserves.c.process == bindparam("me"), reserves.c.is_asked))
ADD_ENTRY = Statement(insert(entries), "account_id", "kind", "amount_nano", "completion_id", "note", "created_at")
ADD_USAGE = Statement(insert(usage), *usage.c.keys())
COST = Statement(select(usage.c.cost_nano).where(usage.c.completion_id == bindparam("completion")))
ADD_KEY = Statement(insert(idempotency), *idempotency.c.keys())
_OF_KEY = (idempotency.c.account_id == bindparam("account"), idempotency.c.digest == bindparam("key"))
READ_KEY = Statement(
    select(idempotency.c.completion_id, idempotency.c.request_id, idempotency.c.created_at, holds.c.state)
    .join_from(idempotency, holds, idempotency.c.completion_id == holds.c.completion_id, isouter=True)
    .where(*_OF_KEY)
)
FORGET_KEY = Statement(delete(idempotency).where(*_OF_KEY))
FREE_KEY = Statement(
    delete(idempotency).where(*_OF_KEY, idempotency.c.completion_id == bindparam("completion"))
)
KEEP_KEY = Statement(update(idempotency).where(*_OF_KEY).values(process=None))
FORGET_OLD_KEYS = Statement(delete(idempotency).where(idempotency.c.created_at < bindparam("before")))
UNMARK = Statement(text("DELETE FROM marks WHERE completion_id = :completion"))


class AccountMoves(msgspec.Struct):
    """All moves of one account in a batch, in the order in which they came."""

    account_id: str
    demand: Demand
    ends: list[End]
    holds: list[Hold]


class Applied(msgspec.Struct):
    """What became of the moves of one account. `account` is as it is now."""

    account: Account
    ended: list[Ended]
    answers: list[Held | Insufficient | Repeated]
    asks_others: bool = False  # other processes have spare credit of this account and were asked for it


def grant(tx: Transaction, account_id: str, amount_nano: int, note: str, now_ms: int) -> int:
    """Add credit and return the new balance."""
    assert 0 < amount_nano < BALANCE_NANO_LIMIT, "a grant is above zero and below the limit"
    values = {"account": account_id, "amount": amount_nano, "most": BALANCE_NANO_LIMIT - amount_nano}
    moved = tx.row(GRANT, values)
    if moved is None:  # not `assert`: `python -O` would append the entry without its balance
        raise AssertionError("no such account, or a balance above its limit")
    tx.change(ADD_ENTRY, entry_row(account_id, "grant", amount_nano, now_ms, note=note))
    return int(moved[0])


def apply_moves(
    tx: Transaction, process: str, moves: Sequence[AccountMoves], *, waits: bool = True
) -> dict[str, Applied]:
    """Make all moves and return what became of them by account.

    Without `waits`, accounts that another transaction has locked are left out.
    """
    known, changes, applied = Known(), Changes(), dict[str, Applied]()
    by_account = {move.account_id: move for move in moves}
    _read_known(tx, moves, known)
    resized: list[dict[str, Any]] = []
    moved: list[dict[str, Any]] = []
    emptied: list[dict[str, Any]] = []
    for account in lock_accounts(tx, process, sorted(by_account), waits=waits):
        move = by_account[account.id]
        before = (account.balance_nano, account.reserve_nano)
        ended, answers = apply(account, move.demand, move.ends, move.holds, known, changes)
        applied[account.id] = Applied(account, ended, answers)
        paid_nano, more_nano = account.balance_nano - before[0], account.reserve_nano - before[1]
        held_nano = sum(answer.amount_nano for answer in answers if isinstance(answer, Held))
        spare = has_spare(account, move.demand, held_nano)
        moved.append({"account": account.id, "paid": paid_nano, "more": more_nano})
        resized.append({"account": account.id, "process": process, "more": more_nano, "spare": spare})
        if not account.reserve_nano:
            emptied.append({"account": account.id, "of": process})
    _write(tx, process, changes)
    _each(tx, RESERVE, resized)
    _each(tx, DROP_EMPTY, emptied)
    _each(tx, MOVE, moved)
    _ask_others(tx, process, changes.short_of, applied)
    return applied


def asked_for(tx: Transaction, process: str) -> list[str]:
    """The accounts of which other processes ask this one for spare credit."""
    return [account_id for (account_id,) in tx.rows(ASKED, {"me": process})]


def lock_accounts(tx: Transaction, process: str, account_ids: list[str], *, waits: bool = True) -> list[Account]:
    """Lock the accounts in the order of their ids and read them. SQLite has locked all of them already."""
    if tx.is_sqlite:
        rows = [tx.row(ACCOUNT, {"account": account_id, "process": process}) for account_id in account_ids]
    else:
        many = MANY_ACCOUNTS if waits else FREE_ACCOUNTS
        rows = [*tx.rows(many, {"accounts": account_ids, "process": process})]
    return [Account(*row) for row in rows if row]


def forget_old_keys(tx: Transaction, now_ms: int) -> None:
    tx.change(FORGET_OLD_KEYS, {"before": now_ms - IDEMPOTENCY_MS})


def costs_of(tx: Transaction, completion_ids: Iterable[str]) -> dict[str, int]:
    """What the requests among these that have ended did cost."""
    found = {one: tx.row(COST, {"completion": one}) for one in completion_ids}
    return {one: int(row[0]) for one, row in found.items() if row}


def _read_known(tx: Transaction, moves: Sequence[AccountMoves], known: Known) -> None:
    uncertain = [end.hold.completion_id for move in moves for end in move.ends if end.is_uncertain]
    known.cost_nano |= costs_of(tx, uncertain)
    for move in moves:
        for hold in move.holds:
            if hold.idempotency_digest:
                _read_key(tx, hold, hold.idempotency_digest, known)


def _read_key(tx: Transaction, hold: Hold, digest: bytes, known: Known) -> None:
    """A key may be used again after 24 hours, and if the request that used it was not charged."""
    found = tx.row(READ_KEY, {"account": hold.account_id, "key": digest})
    if found:
        completion_id, request_id, created_at, state = found
        is_open = state == "released" or created_at <= hold.started_at - IDEMPOTENCY_MS
        known.keys[hold.account_id, digest] = KeyUse(completion_id, request_id, is_open=is_open)


def _write(tx: Transaction, process: str, changes: Changes) -> None:
    charged = [charge for charge in changes.charges if charge.outcome.usage]
    _each(tx, ADD_ENTRY, [charge_row(charge) for charge in charged])
    _each(tx, ADD_USAGE, [usage_row(charge) for charge in changes.charges])
    _each(tx, UNMARK, [{"completion": completion_id} for completion_id in changes.unmarked])
    if changes.kept_keys or changes.freed_keys or changes.new_keys:
        _each(tx, KEEP_KEY, [_key_of(hold.account_id, hold.idempotency_digest) for hold in changes.kept_keys])
        freed = changes.freed_keys
        _each(
            tx,
            FREE_KEY,
            [
                {**_key_of(hold.account_id, hold.idempotency_digest), "completion": hold.completion_id}
                for hold in freed
            ],
        )
        _each(tx, FORGET_KEY, [_key_of(hold.account_id, hold.idempotency_digest) for hold in changes.new_keys])
        _each(tx, ADD_KEY, [_key_row(hold, process) for hold in changes.new_keys])


def _ask_others(tx: Transaction, process: str, short_of: set[str], applied: dict[str, Applied]) -> None:
    for account_id in sorted(short_of):
        applied[account_id].asks_others = tx.change(ASK, {"account": account_id, "me": process}) > 0
    if any(applied[account_id].asks_others for account_id in short_of):
        tx.announce()


def _each(tx: Transaction, statement: Statement, values: Sequence[dict[str, Any]]) -> None:
    if values:
        tx.change_each(statement, values)


def entry_row(
    account_id: str, kind: str, amount_nano: int, now_ms: int, *, completion_id: str | None = None, note: str = ""
) -> dict[str, Any]:
    return {
        "account_id": account_id,
        "kind": kind,
        "amount_nano": amount_nano,
        "completion_id": completion_id,
        "note": note,
        "created_at": now_ms,
    }


def charge_row(charge: Charge) -> dict[str, Any]:
    hold = charge.hold
    return entry_row(
        hold.account_id, "charge", -charge.charged_nano, charge.outcome.ended_at, completion_id=hold.completion_id
    )


def usage_row(charge: Charge) -> dict[str, Any]:
    hold, outcome = charge.hold, charge.outcome
    counted = outcome.usage or NOTHING
    return {
        "completion_id": hold.completion_id,
        "request_id": hold.request_id,
        "account_id": hold.account_id,
        "key_id": hold.key_id,
        "class_id": hold.class_id,
        "provider": outcome.provider,
        "model": outcome.model,
        "prompt_tokens": counted.prompt_tokens,
        "cached_tokens": counted.cached_tokens,
        "completion_tokens": counted.completion_tokens,
        "cost_nano": charge.charged_nano,
        "estimated": counted.estimated,
        "status": outcome.status,
        "stream": hold.stream,
        "started_at": hold.started_at,
        "first_byte_ms": outcome.first_byte_ms,
        "duration_ms": outcome.duration_ms,
    }


def _key_of(account_id: str, digest: bytes | None) -> dict[str, Any]:
    return {"account": account_id, "key": digest}


def _key_row(hold: Hold, process: str) -> dict[str, Any]:
    return {
        "account_id": hold.account_id,
        "digest": hold.idempotency_digest,
        "completion_id": hold.completion_id,
        "request_id": hold.request_id,
        "created_at": hold.started_at,
        "process": process,
    }
