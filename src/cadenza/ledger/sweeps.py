"""Ends what a dead process left behind: its reserves are freed, and what its requests had delivered is charged.

The process is fenced before (processes.py). Its accounts are swept in batches, one transaction each, and every batch
leaves the ledger consistent: a reserve shrinks by what is charged to it, and the rest of it is freed with the last mark
of its account. Locked accounts are skipped. A sweep may stop after any batch, and several sweeps of one process may run
at once; the next sweep finishes the work.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from sqlalchemy import ColumnElement, bindparam, delete, literal_column, select, text, update

from cadenza.core.records import Outcome, Usage
from cadenza.ledger import transaction
from cadenza.ledger.cap_rows import DROP_HOLD, HELD_BY_PROCESS, HOLDS_OF_PROCESS
from cadenza.ledger.caps import NO_CAP_USE, CapUse
from cadenza.ledger.rules import Demand, End, LockedAccount, OpenHold
from cadenza.ledger.transaction import AccountMoves
from cadenza.store.schema import holds, idempotency, marks
from cadenza.store.statements import SelectByIds, Statement
from cadenza.store.store import Store, StoreBusy, StoreRefused, Transaction

BATCH_MAX = 200  # accounts, marks and idempotency keys in one transaction: some milliseconds of work
LOCK_S = 0.1  # how long a transaction waits for a row that is locked, though its account is not
INTERRUPTED_STATUS = 500
ENDPOINT = "chat"  # only chats have marks
NOTHING_WANTED = Demand(kept_nano=0, in_use_nano=0, wanted_nano=0, usual_nano=0)
HOLD_FIELDS = OpenHold._fields[:-2]

LEFT_MARKS = Statement(select(marks.c.account_id, marks.c.completion_id).where(marks.c.process == bindparam("of")))
LEFT_KEYS = Statement(
    select(idempotency.c.account_id, idempotency.c.completion_id, idempotency.c.digest).where(
        idempotency.c.process == bindparam("of")
    )
)
_MARKED = select(  # by completion id only: an index on the process would lead through all of its marks each time
    marks.c.process, *[literal_column("0") if name == "amount_nano" else marks.c[name] for name in HOLD_FIELDS]
)
MARKED = SelectByIds(_MARKED, marks.c.completion_id)
_KEY = (
    idempotency.c.account_id == bindparam("account"),
    idempotency.c.digest == bindparam("key"),
    idempotency.c.process == bindparam("of"),
)
KEEP_KEY = Statement(update(idempotency).where(*_KEY).values(process=None))
FREE_KEY = Statement(delete(idempotency).where(*_KEY))

# The release before held credit by request, in the table `holds`.
OPEN: ColumnElement[str] = literal_column("'open'")
OLD_OWNERS = Statement(select(holds.c.owner).where(holds.c.state == OPEN).distinct())
OLD_HOLDS = Statement(
    select(*[holds.c[name] for name in HOLD_FIELDS])
    .where(holds.c.state == OPEN, holds.c.owner == bindparam("of"))
    .order_by(holds.c.account_id)
    .limit(BATCH_MAX)
    .with_for_update()
)
END_OLD_HOLD = Statement(
    update(holds)
    .where(holds.c.completion_id == bindparam("completion"), holds.c.state == OPEN)
    .values(state=bindparam("new_state"), ended_at=bindparam("at"))
)
TRY_OLD_LOCK = Statement(text("SELECT pg_try_advisory_xact_lock(CAST(:number AS bigint))"))
GIVE_BACK_OLD = Statement(text("UPDATE accounts SET held_nano = held_nano - :amount WHERE id = :account"))


class LeftRequest(msgspec.Struct):
    """A request of a dead process that has a mark, an idempotency key or both."""

    completion_id: str
    has_mark: bool = False
    digest: bytes | None = None


class Share(msgspec.Struct):
    """What a dead process left of one account, or a part of that. The last part frees the reserve."""

    account_id: str
    requests: Sequence[LeftRequest]
    capped_keys: Sequence[str]
    is_last: bool


class Freed(msgspec.Struct, frozen=True):
    """The outcomes of the requests that were charged, and the accounts that were left out."""

    outcomes: list[Outcome]
    left_out: set[str]


async def free_process(store: Store, name: str, now_ms: int, record: Callable[[list[Outcome]], None]) -> set[str]:
    """Free the reserves of a dead process, charge its marks and free its other idempotency keys, batch by batch.

    Return the accounts that were left out, because something of them is locked or refused. No other process adds to
    what a dead one left behind, so it is read once.
    """
    left_out: set[str] = set()
    for batch in plan(*await _read_left(store, name)):
        shares = [share for share in batch if share.account_id not in left_out]
        for freed in await _free(store, name, shares, now_ms) if shares else []:
            record(freed.outcomes)
            left_out |= freed.left_out
    return left_out


def plan(requests: dict[str, list[LeftRequest]], capped_keys: dict[str, list[str]]) -> Iterator[list[Share]]:
    """Divide the accounts of a process into batches, and the requests of a large one over several."""
    batch, size = list[Share](), 0
    for account_id, of_account in requests.items():
        for begin in range(0, max(1, len(of_account)), BATCH_MAX):
            part = of_account[begin : begin + BATCH_MAX]
            if batch and size + 1 + len(part) > BATCH_MAX:
                yield batch
                batch, size = [], 0
            is_last = begin + BATCH_MAX >= len(of_account)
            batch.append(Share(account_id, part, capped_keys.get(account_id, ()), is_last))
            size += 1 + len(part)
    if batch:
        yield batch


async def _read_left(store: Store, name: str) -> tuple[dict[str, list[LeftRequest]], dict[str, list[str]]]:
    """The requests of each account of which the process has anything, and the keys of whose caps it holds a part."""
    found: dict[str, dict[str, LeftRequest]] = {}
    for account_id, completion_id in await store.rows(LEFT_MARKS, {"of": name}):
        found.setdefault(account_id, {})[completion_id] = LeftRequest(completion_id, has_mark=True)
    for account_id, completion_id, digest in await store.rows(LEFT_KEYS, {"of": name}):
        found.setdefault(account_id, {}).setdefault(completion_id, LeftRequest(completion_id)).digest = digest
    capped_keys: dict[str, list[str]] = {}
    for account_id, key_id in await store.rows(HOLDS_OF_PROCESS, {"process": name}):
        capped_keys.setdefault(account_id, []).append(key_id)
    reserved = [account_id for (account_id,) in await store.rows(transaction.RESERVED, {"me": name})]
    return {one: [*found.get(one, {}).values()] for one in sorted({*found, *capped_keys, *reserved})}, capped_keys


async def _free(store: Store, name: str, shares: list[Share], now_ms: int) -> list[Freed]:
    """Free shares in one transaction, or, if something of one is locked or refused, each in its own."""
    try:
        return [await store.transact(lambda tx: free_shares(tx, name, shares, now_ms), lock_s=LOCK_S)]
    except (StoreBusy, StoreRefused):
        if len(shares) == 1:
            return [Freed([], {shares[0].account_id})]
    return [freed for share in shares for freed in await _free(store, name, [share], now_ms)]


def free_shares(tx: Transaction, name: str, shares: list[Share], now_ms: int) -> Freed:
    """Free the shares of the accounts that no other transaction has locked."""
    by_account = {share.account_id: share for share in shares}
    accounts = transaction.lock_accounts(tx, name, sorted(by_account), waits=False)
    taken = [by_account[account.id] for account in accounts]
    ends: dict[str, list[End]] = {share.account_id: [] for share in taken}
    marked = {one.completion_id: one.digest for share in taken for one in share.requests if one.has_mark}
    for hold in _read_marked(tx, name, marked):
        ends[hold.account_id].append(_interrupted(hold, now_ms, is_marked=True))
    moves = [_moves(tx, name, account, by_account[account.id], ends[account.id]) for account in accounts]
    _write_keys(tx, name, taken)
    return Freed(_apply(tx, name, moves), by_account.keys() - ends.keys())


def _read_marked(tx: Transaction, name: str, digests: dict[str, bytes | None]) -> list[OpenHold]:
    """The marks that are still there, with the idempotency keys of their requests, by completion id.

    The requests are charged as far as the caps of their keys allow.
    """
    rows = tx.rows_by_ids(MARKED, [*digests], {})
    holds_found = [OpenHold(*row[1:]) for row in rows if row[0] == name]
    return [hold._replace(idempotency_digest=digests[hold.completion_id], is_capped=True) for hold in holds_found]


def _moves(tx: Transaction, name: str, account: LockedAccount, share: Share, ends: list[End]) -> AccountMoves:
    """Charge these ends. What is not charged of the reserve, and of caps, is kept for those that follow."""
    if share.is_last:
        if share.capped_keys:
            tx.change_each(DROP_HOLD, [{"key": key_id, "process": name} for key_id in share.capped_keys])
        return AccountMoves(account.id, NOTHING_WANTED, ends, [])
    kept_nano = max(0, account.reserve_nano - sum([end.due_nano for end in ends]))
    caps = CapUse(_kept_of_caps(tx, name, share, ends), {}) if share.capped_keys else NO_CAP_USE
    return AccountMoves(account.id, Demand(kept_nano, kept_nano, 0, 0), ends, [], caps)


def _kept_of_caps(tx: Transaction, name: str, share: Share, ends: list[End]) -> dict[str, int]:
    """What the process still holds of each cap when these requests have ended."""
    kept_nano = dict[str, int]()
    for key_id in share.capped_keys:
        row = tx.row(HELD_BY_PROCESS, {"key": key_id, "process": name})
        due_nano = sum([end.due_nano for end in ends if end.hold.key_id == key_id])
        kept_nano[key_id] = max(0, row[0] - due_nano) if row else 0
    return kept_nano


def _write_keys(tx: Transaction, name: str, shares: list[Share]) -> None:
    """The idempotency keys of marked requests stay used, because these are charged; the others are free again."""
    for statement, has_mark in ((KEEP_KEY, True), (FREE_KEY, False)):
        values = [
            {"account": share.account_id, "key": request.digest, "of": name}
            for share in shares
            for request in share.requests
            if request.digest and request.has_mark is has_mark
        ]
        if values:
            tx.change_each(statement, values)


def end_old_holds(tx: Transaction, owner: str, now_ms: int) -> list[Outcome]:
    """End some holds of a dead process of the release before."""
    open_holds = [OpenHold(*row) for row in tx.rows(OLD_HOLDS, {"of": owner})]
    ends: dict[str, list[End]] = {}
    for hold in open_holds:
        ends.setdefault(hold.account_id, []).append(_interrupted(hold, now_ms))
    transaction.lock_accounts(tx, owner, sorted(ends))
    for end in [end for of_account in ends.values() for end in of_account]:
        new_state = "settled" if end.outcome.usage else "released"
        tx.change(END_OLD_HOLD, {"completion": end.hold.completion_id, "new_state": new_state, "at": now_ms})
        tx.change(GIVE_BACK_OLD, {"account": end.hold.account_id, "amount": end.hold.amount_nano})
    moves = [AccountMoves(account_id, NOTHING_WANTED, of_account, []) for account_id, of_account in ends.items()]
    return _apply(tx, owner, moves)


def _apply(tx: Transaction, name: str, moves: list[AccountMoves]) -> list[Outcome]:
    """Return the outcomes of the requests that ended now. The others had ended before."""
    applied = transaction.apply_moves(tx, name, moves, is_fenced=False)
    return [
        end.outcome
        for move in moves
        for end, ended in zip(move.ends, applied[move.account_id].ended, strict=True)
        if not ended.is_repeated and not ended.is_lost
    ]


def _interrupted(hold: OpenHold, now_ms: int, *, is_marked: bool = False) -> End:
    """The end of a request whose process died, from the last mark of what it delivered."""
    usage = Usage(hold.prompt_tokens, hold.delivered_tokens, estimated=True) if hold.delivered_tokens else None
    outcome = Outcome(
        request_id=hold.request_id,
        completion_id=hold.completion_id,
        account_id=hold.account_id,
        key_id=hold.key_id,
        class_id=hold.class_id,
        endpoint=ENDPOINT,
        status=INTERRUPTED_STATUS,
        usage=usage,
        duration_ms=max(0, now_ms - hold.started_at),
        ended_at=now_ms,
    )
    return End(outcome, hold, hold.due_nano(usage), is_marked=is_marked, is_uncertain=True, source="sweep")
