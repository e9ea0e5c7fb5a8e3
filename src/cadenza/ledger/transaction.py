"""The transaction of a batch: reads what it needs under the locks of its accounts, and writes what the rules say.

The rules are in rules.py, charging.py and caps.py; there are none here. Money is written as differences, so that an
account's held sum and its reserves always change together, and the constraints of the tables refuse what must not be.
Accounts are locked in the order of their ids, so that two processes never deadlock.
"""

from collections.abc import Sequence

import msgspec
from sqlalchemy import and_, bindparam, literal_column, select, text

from cadenza.ledger import idempotency_keys
from cadenza.ledger.cap_rows import read_caps, write_caps
from cadenza.ledger.caps import NO_CAP_USE, CapState, CapUse
from cadenza.ledger.charging import begin_caps, end_requests
from cadenza.ledger.credit import ask_others, pay_debts
from cadenza.ledger.rows import BatchRows, change_each, write_corrections
from cadenza.ledger.rules import (
    BatchFacts,
    Changes,
    Demand,
    End,
    Ended,
    HeldCredit,
    Hold,
    HoldResult,
    LockedAccount,
    Recorded,
    ReservedElsewhere,
    grow,
    has_spare,
    require_sums,
    take_hold,
)
from cadenza.store.schema import accounts, entries, reserves, usage
from cadenza.store.statements import SelectByIds, Statement
from cadenza.store.store import StoreRefused, Transaction

_ACCOUNTS = (
    select(
        accounts.c.id,
        accounts.c.balance_nano,
        accounts.c.held_nano,
        reserves.c.amount_nano,
        reserves.c.is_asked,
        accounts.c.has_caps,
        accounts.c.debt_nano,
        accounts.c.granted_nano,
        reserves.c.has_spare,
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
ASKED = Statement(text("SELECT account_id FROM reserves WHERE process = :me AND is_asked"))  # as its index has it
RESERVED = Statement(select(reserves.c.account_id).where(reserves.c.process == bindparam("me")))
_REFUNDS = entries.alias("refunds")
ENDED = SelectByIds(  # with the granted part of its charge, and what was refunded
    select(usage.c.completion_id, usage.c.cost_nano, usage.c.source, entries.c.granted_nano, _REFUNDS.c.amount_nano)
    .outerjoin_from(
        usage,
        entries,
        and_(entries.c.completion_id == usage.c.completion_id, entries.c.kind == literal_column("'charge'")),
    )
    .outerjoin(_REFUNDS, _REFUNDS.c.source == literal_column("'refund:'") + usage.c.completion_id),
    usage.c.completion_id,
)
REVOKED = Statement(
    text(
        "SELECT k.id FROM keys k JOIN accounts a ON a.id = k.account_id"
        " WHERE k.id = :key AND COALESCE(k.revoked_at, a.suspended_at) IS NOT NULL"
    )
)
UNMARK = Statement(text("DELETE FROM marks WHERE completion_id = :completion"))


class AccountMoves(msgspec.Struct):
    """All moves of one account in a batch, in the order in which they came."""

    account_id: str
    demand: Demand
    ends: list[End]
    holds: list[Hold]
    caps: CapUse = NO_CAP_USE


class Applied(msgspec.Struct):
    """What became of the moves of one account, and the account as it is now."""

    account: LockedAccount
    ended: list[Ended]
    answers: list[HoldResult]


def apply_moves(
    tx: Transaction,
    process: str,
    moves: Sequence[AccountMoves],
    now_ms: int,
    *,
    waits: bool = True,
    is_fenced: bool = True,
) -> dict[str, Applied]:
    """Make all moves, and return what became of them by account.

    Without `waits`, accounts that another transaction has locked are left out. A fenced batch is refused if another
    process has swept this one.
    """
    by_account, changes, rows = {move.account_id: move for move in moves}, Changes(), BatchRows(process, is_fenced)
    applied: dict[str, Applied] = {}
    paid_debts: dict[str, int] = {}
    locked = lock_accounts(tx, process, sorted(by_account), waits=waits)
    assert len(by_account) == len(moves)
    assert len(locked) == len(moves) or not waits, "every account of a batch exists"
    known = _read_known(tx, [by_account[account.id] for account in locked])
    capped = [by_account[account.id] for account in locked if account.has_caps]
    caps_before = _begin_caps(tx, process, capped, known) if capped else {}
    for account in locked:
        move = by_account[account.id]
        before, charges, corrections = msgspec.structs.replace(account), len(changes.charges), len(changes.corrections)
        ended = end_requests(account, move.demand, move.ends, known, changes)
        answers = _take_holds(tx, process, account, move.holds, known, changes) if move.holds else []
        grow(account, move.demand)
        held_nano = sum([answer.amount_nano for answer in answers if isinstance(answer, HeldCredit)]) if answers else 0
        charged_nano = granted_nano = 0
        for charge in changes.charges[charges:]:
            rows.add_charge(charge)
            charged_nano += charge.charged_nano
            granted_nano += charge.granted_nano
        for correction in changes.corrections[corrections:]:
            charged_nano -= correction.corrected_nano
            granted_nano -= correction.granted_nano
        require_sums(before, account, charged_nano, granted_nano)
        account.has_spare = has_spare(account, move.demand, held_nano)
        rows.add_account(before, account, -granted_nano)
        if paid_nano := before.debt_nano - account.debt_nano:
            paid_debts[account.id] = paid_nano
        if account.is_asked and not account.has_spare:
            tx.announce()
        applied[account.id] = Applied(account, ended, answers)
    rows.write(tx)
    write_corrections(tx, changes.corrections)
    for account_id, paid_nano in paid_debts.items():
        pay_debts(tx, account_id, paid_nano, now_ms)
    if caps_before:
        write_caps(tx, process, caps_before, known.caps.values())
    change_each(tx, UNMARK, [{"completion": completion_id} for completion_id in changes.unmarked])
    if changes.kept_keys or changes.freed_keys or changes.new_keys:
        idempotency_keys.write_keys(tx, process, changes)
    return applied


def lock_accounts(tx: Transaction, process: str, account_ids: list[str], *, waits: bool = True) -> list[LockedAccount]:
    """Lock the accounts in the order of their ids and read them. SQLite has locked all of them already.

    StoreRefused if a sweep freed a reserve while its account was waited for: Postgres then has the account as it is
    now, and the reserve as it was before.
    """
    accounts = []
    for row in tx.rows_by_ids(LOCK_ACCOUNTS if waits else LOCK_FREE_ACCOUNTS, account_ids, {"process": process}):
        account_id, balance_nano, held_nano, reserve_nano, is_asked, has_caps, debt_nano, granted_nano, is_spare = row
        if reserve_nano is not None and reserve_nano > held_nano:
            raise StoreRefused("The store refused a batch: a reserve changed while its account was waited for.")
        account = LockedAccount(
            account_id,
            balance_nano,
            held_nano,
            reserve_nano or 0,
            reserve_nano is not None,
            bool(is_asked),
            bool(has_caps),
            debt_nano,
            granted_nano,
            bool(is_spare),
        )
        accounts.append(account)
    return accounts


def _read_known(tx: Transaction, moves: Sequence[AccountMoves]) -> BatchFacts:
    known = BatchFacts()
    uncertain: list[str] = []
    with_keys: list[Hold] = []
    for move in moves:
        for end in move.ends:
            if end.is_uncertain:
                uncertain.append(end.hold.completion_id)
            if end.is_late and tx.row(REVOKED, {"key": end.hold.key_id}):
                known.revoked_keys.add(end.hold.key_id)
            if end.hold.idempotency_digest:
                with_keys.append(end.hold)
    for move in moves:  # holds after ends: whether a key may be used again depends on when the new request started
        with_keys += [hold for hold in move.holds if hold.idempotency_digest] if move.holds else ()
    if uncertain:
        for completion_id, cost_nano, source, granted_nano, refunded_nano in tx.rows_by_ids(ENDED, uncertain, {}):
            recorded = Recorded(int(cost_nano), source, -int(granted_nano or 0), int(refunded_nano or 0))
            known.ended[completion_id] = recorded
    for hold in with_keys:
        if (digest := hold.idempotency_digest) and (used := idempotency_keys.read_use(tx, hold)):
            known.keys[hold.account_id, digest] = used
    return known


def _begin_caps(tx: Transaction, process: str, moves: Sequence[AccountMoves], known: BatchFacts) -> dict[str, CapState]:
    """Read the caps of the keys in these moves, and return them as they were."""
    by_account: dict[str, dict[str, list[Hold]]] = {}
    for move in moves:
        by_key = by_account[move.account_id] = {key_id: [] for key_id in move.caps.kept_nano}
        for hold in [*[end.hold for end in move.ends], *move.holds]:
            by_key.setdefault(hold.key_id, []).append(hold)
    known.caps = read_caps(tx, process, {key: held for by_key in by_account.values() for key, held in by_key.items()})
    before = {key_id: msgspec.structs.replace(cap) for key_id, cap in known.caps.items()}
    for move in moves:
        caps = [known.caps[key_id] for key_id in by_account[move.account_id] if key_id in known.caps]
        begin_caps(caps, move.caps, move.ends)
    return before


def _take_holds(
    tx: Transaction, process: str, account: LockedAccount, wanted: list[Hold], known: BatchFacts, changes: Changes
) -> list[HoldResult]:
    """Take the holds. Where the credit falls short, first ask the processes that have more than they need."""
    answers: list[HoldResult] = []
    has_others: bool | None = None  # None: not asked yet
    for hold in wanted:
        answer = take_hold(account, hold, known, changes)
        if isinstance(answer, ReservedElsewhere):
            if has_others is None:
                has_others = ask_others(tx, account.id, process)
            if not has_others:
                answer = take_hold(account, msgspec.structs.replace(hold, is_final=True), known, changes)
        answers.append(answer)
    return answers
