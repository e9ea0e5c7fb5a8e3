"""The ledger in the store: reads what a batch needs under the locks of its accounts, and writes what the rules say.

The rules are in rules.py and charging.py; there are none here. Money is written as differences, so that an
account's held sum and its reserves always change together, and the constraints of the tables refuse what must not be.
Accounts are locked in the order of their ids, so that two processes never deadlock.
"""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import and_, bindparam, delete, insert, select, text, update

from cadenza.ledger import debts
from cadenza.ledger.batch_rows import ADD_ENTRY, AccountChange, BatchRows, ReserveChange
from cadenza.ledger.cap_rows import KeyMoves, read_caps, write_caps
from cadenza.ledger.caps import NO_CAP_USE, CapState, CapUse
from cadenza.ledger.charge_rows import charge_row, entry_row, usage_row, write_corrections
from cadenza.ledger.charging import begin_caps, end_requests
from cadenza.ledger.rules import (
    IDEMPOTENCY_MS,
    Changes,
    Demand,
    End,
    Ended,
    Held,
    Hold,
    IdempotencyUse,
    Known,
    LockedAccount,
    OpenHold,
    Recorded,
    Repeated,
    Short,
    Taken,
    grow,
    has_spare,
    take_hold,
)
from cadenza.store.schema import accounts, holds, idempotency, reserves, usage
from cadenza.store.statements import SelectByIds, Statement
from cadenza.store.store import Row, Store, Transaction

BALANCE_NANO_LIMIT = 2**62

GRANT = Statement(
    update(accounts)
    .where(accounts.c.id == bindparam("account"), accounts.c.balance_nano < bindparam("most"))
    .values(balance_nano=accounts.c.balance_nano + bindparam("amount"))
    .returning(accounts.c.balance_nano, accounts.c.held_nano, accounts.c.debt_nano)
)
_ACCOUNTS = (
    select(
        accounts.c.id,
        accounts.c.balance_nano,
        accounts.c.held_nano,
        reserves.c.amount_nano,
        reserves.c.is_asked,
        accounts.c.has_caps,
        accounts.c.debt_nano,
    )
    .outerjoin_from(
        accounts, reserves, and_(reserves.c.account_id == accounts.c.id, reserves.c.process == bindparam("process"))
    )
    .order_by(accounts.c.id)
)
LOCK_ACCOUNTS = SelectByIds(_ACCOUNTS.with_for_update(key_share=True, of=accounts), accounts.c.id)
LOCK_FREE_ACCOUNTS = SelectByIds(
    _ACCOUNTS.with_for_update(key_share=True, of=accounts, skip_locked=True), accounts.c.id
)
_ELSEWHERE = (reserves.c.account_id == bindparam("account"), reserves.c.process != bindparam("me"))
ASK = Statement(update(reserves).where(*_ELSEWHERE, reserves.c.has_spare, ~reserves.c.is_asked).values(is_asked=True))
SPARE = Statement(select(reserves.c.process).where(*_ELSEWHERE, reserves.c.has_spare))
ASKED = Statement(select(reserves.c.account_id).where(reserves.c.process == bindparam("me"), reserves.c.is_asked))
RESERVED = Statement(select(reserves.c.account_id).where(reserves.c.process == bindparam("me")))
ENDED = SelectByIds(select(usage.c.completion_id, usage.c.cost_nano, usage.c.source), usage.c.completion_id)
REVOKED = Statement(
    text(
        "SELECT k.id FROM keys k JOIN accounts a ON a.id = k.account_id"
        " WHERE k.id = :key AND COALESCE(k.revoked_at, a.suspended_at) IS NOT NULL"
    )
)
ADD_KEY = Statement(insert(idempotency), *idempotency.c.keys())
_OF_KEY = (idempotency.c.account_id == bindparam("account"), idempotency.c.digest == bindparam("key"))
READ_KEY = Statement(
    select(idempotency.c.completion_id, idempotency.c.request_id, idempotency.c.created_at, holds.c.state)
    .join_from(idempotency, holds, idempotency.c.completion_id == holds.c.completion_id, isouter=True)
    .where(*_OF_KEY)
)
FORGET_KEY = Statement(delete(idempotency).where(*_OF_KEY))
_OF_REQUEST = (*_OF_KEY, idempotency.c.completion_id == bindparam("completion"))
FREE_KEY = Statement(delete(idempotency).where(*_OF_REQUEST))
KEEP_KEY = Statement(update(idempotency).where(*_OF_REQUEST).values(process=None))
FORGET_OLD_KEYS = Statement(delete(idempotency).where(idempotency.c.created_at < bindparam("before")))
UNMARK = Statement(text("DELETE FROM marks WHERE completion_id = :completion"))


class WantedHold(msgspec.Struct, frozen=True):
    """A hold to take. It is final if no other process is asked for credit any more."""

    hold: Hold
    is_final: bool


class AccountMoves(msgspec.Struct):
    """All moves of one account in a batch, in the order in which they came."""

    account_id: str
    demand: Demand
    ends: list[End]
    holds: list[WantedHold]
    caps: CapUse = NO_CAP_USE


class Applied(msgspec.Struct):
    """What became of the moves of one account. `account` is as it is now."""

    account: LockedAccount
    ended: list[Ended]
    answers: list[Taken]


def grant(tx: Transaction, account_id: str, amount_nano: int, note: str, now_ms: int) -> int:
    """Add credit and return the new balance."""
    assert 0 < amount_nano < BALANCE_NANO_LIMIT, "a grant is above zero and below the limit"
    values = {"account": account_id, "amount": amount_nano, "most": BALANCE_NANO_LIMIT - amount_nano}
    moved = tx.row(GRANT, values)
    if moved is None:  # not `assert`: `python -O` would append the entry without its balance
        raise AssertionError("no such account, or a balance above its limit")
    tx.change(ADD_ENTRY, entry_row(account_id, "grant", amount_nano, now_ms, note=note))
    return pay_debt(tx, account_id, moved, now_ms)


def pay_debt(tx: Transaction, account_id: str, money: Row, now_ms: int) -> int:
    """Pay what the account owes, as far as its balance and held sum allow. Return its balance since."""
    balance_nano, held_nano, debt_nano = money
    paid_nano = min(debt_nano, balance_nano - held_nano)
    return debts.pay(tx, account_id, paid_nano, now_ms) if paid_nano else int(balance_nano)


def apply_moves(
    tx: Transaction, process: str, moves: Sequence[AccountMoves], *, waits: bool = True, is_fenced: bool = True
) -> dict[str, Applied]:
    """Make all moves and return what became of them by account.

    Without `waits`, accounts that another transaction has locked are left out. A fenced batch is refused if another
    process has swept this one.
    """
    known, changes, rows, applied = Known(), Changes(), BatchRows(process, is_fenced), dict[str, Applied]()
    by_account, paid_debts = {move.account_id: move for move in moves}, dict[str, int]()
    locked = lock_accounts(tx, process, sorted(by_account), waits=waits)
    _read_known(tx, [by_account[account.id] for account in locked], known)
    capped = [by_account[account.id] for account in locked if account.has_caps]
    caps_before = _begin_caps(tx, process, capped, known) if capped else {}
    for account in locked:
        move = by_account[account.id]
        before = msgspec.structs.replace(account)
        ended = end_requests(account, move.demand, move.ends, known, changes)
        answers = _take_holds(tx, process, account, move.holds, known, changes) if move.holds else []
        grow(account, move.demand)
        has_spare_left = _changes_of(before, account, move.demand, answers, rows)
        if paid_nano := before.debt_nano - account.debt_nano:
            paid_debts[account.id] = paid_nano
        if account.is_asked and not has_spare_left:
            tx.announce()
        applied[account.id] = Applied(account, ended, answers)
    rows.entries += [charge_row(charge) for charge in changes.charges if charge.has_entry]
    rows.usage += [usage_row(charge) for charge in changes.charges]
    rows.write(tx)
    write_corrections(tx, changes.corrections)
    for account_id, paid_nano in paid_debts.items():
        debts.pay(tx, account_id, paid_nano, time.time_ns() // 1_000_000)
    if caps_before:
        write_caps(tx, process, caps_before, known.caps.values())
    _write_keys_and_marks(tx, process, changes)
    return applied


def _begin_caps(tx: Transaction, process: str, moves: Sequence[AccountMoves], known: Known) -> dict[str, CapState]:
    """Read the caps of the keys that these moves concern, and return them as they were."""
    key_moves = [_key_moves(move) for move in moves]
    read_caps(tx, process, key_moves, known)
    before = {key_id: msgspec.structs.replace(cap) for key_id, cap in known.caps.items()}
    for move, of_keys in zip(moves, key_moves, strict=True):
        caps = [known.caps[key_id] for key_id in of_keys.started_at if key_id in known.caps]
        begin_caps(caps, move.caps, move.ends)
    return before


def _key_moves(move: AccountMoves) -> KeyMoves:
    started_at: dict[str, list[int]] = {key_id: [] for key_id in move.caps.kept_nano}
    times = [(end.hold.key_id, end.hold.started_at) for end in move.ends]
    times += [(wanted.hold.key_id, wanted.hold.started_at) for wanted in move.holds]
    for key_id, at_ms in times:
        started_at.setdefault(key_id, []).append(at_ms)
    return KeyMoves(move.account_id, started_at)


def _changes_of(
    before: LockedAccount, after: LockedAccount, demand: Demand, answers: list[Taken], rows: BatchRows
) -> bool:
    """Add what changed to the rows of the batch, without debts. Whether the reserve is larger than needed."""
    paid_nano = after.balance_nano - before.balance_nano + before.debt_nano - after.debt_nano
    more_nano = after.reserve_nano - before.reserve_nano
    held_nano = sum([answer.amount_nano for answer in answers if isinstance(answer, Held)])
    spare = has_spare(after, demand, held_nano)
    if before.has_reserve or after.reserve_nano:
        before_nano = before.reserve_nano if before.has_reserve else None
        rows.reserves.append(ReserveChange(after.id, before_nano, after.reserve_nano, spare))
    if paid_nano or more_nano:
        rows.accounts.append(AccountChange(after.id, paid_nano, more_nano))
    return spare


def lock_accounts(tx: Transaction, process: str, account_ids: list[str], *, waits: bool = True) -> list[LockedAccount]:
    """Lock the accounts in the order of their ids and read them. SQLite has locked all of them already."""
    locking = LOCK_ACCOUNTS if waits else LOCK_FREE_ACCOUNTS
    return [_account(row) for row in tx.rows_by_ids(locking, account_ids, {"process": process})]


def _account(row: Row) -> LockedAccount:
    account_id, balance_nano, held_nano, reserve_nano, is_asked, has_caps, debt_nano = row
    flags = reserve_nano is not None, bool(is_asked), bool(has_caps)
    return LockedAccount(account_id, balance_nano, held_nano, reserve_nano or 0, *flags, debt_nano)


def forget_old_keys(tx: Transaction, now_ms: int) -> None:
    tx.change(FORGET_OLD_KEYS, {"before": now_ms - IDEMPOTENCY_MS})


def read_ended(tx: Transaction, completion_ids: list[str]) -> dict[str, Recorded]:
    """What the store has of the requests among these that have ended."""
    return {row[0]: Recorded(int(row[1]), row[2]) for row in tx.rows_by_ids(ENDED, completion_ids, {})}


def _read_known(tx: Transaction, moves: Sequence[AccountMoves], known: Known) -> None:
    ends = [end for move in moves for end in move.ends]
    known.ended |= read_ended(tx, [end.hold.completion_id for end in ends if end.is_uncertain])
    for end in ends:
        if end.hold.idempotency_digest:
            _read_key(tx, end.hold, end.hold.idempotency_digest, known)
        if end.is_late and tx.row(REVOKED, {"key": end.hold.key_id}):
            known.revoked_keys.add(end.hold.key_id)
    for move in moves:  # after the ends: whether a key may be used again is a question of a hold
        for wanted in move.holds:
            if digest := wanted.hold.idempotency_digest:
                _read_key(tx, wanted.hold, digest, known)


async def find_repeated(store: Store, account_id: str, digest: bytes, now_ms: int) -> Repeated | None:
    """The request that used an idempotency key, before work is done for another. The hold asks again, and decides."""
    found = await store.row(READ_KEY, {"account": account_id, "key": digest})
    use = _key_use(found, now_ms) if found else None
    return Repeated(use.completion_id, use.request_id) if use and not use.is_open else None


def _read_key(tx: Transaction, hold: Hold | OpenHold, digest: bytes, known: Known) -> None:
    found = tx.row(READ_KEY, {"account": hold.account_id, "key": digest})
    if found:
        known.keys[hold.account_id, digest] = _key_use(found, hold.started_at)


def _key_use(found: Row, now_ms: int) -> IdempotencyUse:
    """A key may be used again after 24 hours, and if the request that used it was not charged."""
    completion_id, request_id, created_at, state = found
    is_open = state == "released" or created_at <= now_ms - IDEMPOTENCY_MS
    return IdempotencyUse(completion_id, request_id, is_open=is_open)


def _write_keys_and_marks(tx: Transaction, process: str, changes: Changes) -> None:
    _each(tx, UNMARK, [{"completion": completion_id} for completion_id in changes.unmarked])
    if changes.kept_keys or changes.freed_keys or changes.new_keys:
        _each(tx, KEEP_KEY, [_key_of_request(hold) for hold in changes.kept_keys])
        _each(tx, FREE_KEY, [_key_of_request(hold) for hold in changes.freed_keys])
        _each(tx, FORGET_KEY, [_key_of(hold) for hold in changes.new_keys])
        _each(tx, ADD_KEY, [_key_row(hold, process) for hold in changes.new_keys])


def _take_holds(
    tx: Transaction, process: str, account: LockedAccount, holds: list[WantedHold], known: Known, changes: Changes
) -> list[Taken]:
    """Take the holds. Where the credit falls short, first ask the processes that have more than they need."""
    answers: list[Taken] = []
    has_others: bool | None = None  # not asked yet
    for wanted in holds:
        answer = take_hold(account, wanted.hold, known, changes, is_final=wanted.is_final)
        if isinstance(answer, Short):
            if has_others is None:
                has_others = _ask_others(tx, account.id, process)
            if not has_others:
                answer = take_hold(account, wanted.hold, known, changes, is_final=True)
        answers.append(answer)
    return answers


def _ask_others(tx: Transaction, account_id: str, process: str) -> bool:
    """Ask the processes that have reserved more than they need, once each. Whether there are any."""
    values = {"account": account_id, "me": process}
    if tx.change(ASK, values):
        tx.announce()
        return True
    return tx.row(SPARE, values) is not None


def _each(tx: Transaction, statement: Statement, values: Sequence[dict[str, Any]]) -> None:
    if values:
        tx.change_each(statement, values)


def _key_of(hold: Hold | OpenHold) -> dict[str, Any]:
    return {"account": hold.account_id, "key": hold.idempotency_digest}


def _key_of_request(hold: OpenHold) -> dict[str, Any]:
    return {**_key_of(hold), "completion": hold.completion_id}


def _key_row(hold: Hold, process: str) -> dict[str, Any]:
    return {
        "account_id": hold.account_id,
        "digest": hold.idempotency_digest,
        "completion_id": hold.completion_id,
        "request_id": hold.request_id,
        "created_at": hold.started_at,
        "process": process,
    }
