"""Sweeps: what a dead process left behind is ended. Its reserves are freed, and its marks are charged.

Any process may sweep any dead one. The dead process is fenced first (fleet/presence.py). Its accounts are swept in
batches, one transaction each, and every batch leaves the ledger consistent: a reserve shrinks by what is charged to it,
and the rest of it is freed with the last mark of its account. Locked accounts are skipped at first. Once all others are
freed, the sweep waits for each of them briefly, in a transaction of that account alone: other processes may lock a busy
account so often that it is never found unlocked. A sweep may stop after any batch, and several sweeps of one process
may run at once; the next sweep finishes the work.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, select, update

from cadenza.core.money import Price
from cadenza.core.records import Outcome, Usage
from cadenza.fleet import presence as processes
from cadenza.fleet.presence import Presence
from cadenza.ledger import credit, idempotency_keys, lots, transaction
from cadenza.ledger.cap_rows import DROP_HOLD, HELD_BY_PROCESS, HOLDS_OF_PROCESS
from cadenza.ledger.caps import NO_CAP_USE, CapUse
from cadenza.ledger.marks import COLUMNS as HOLD_COLUMNS
from cadenza.ledger.rows import change_each
from cadenza.ledger.rules import Demand, End, Hold, LockedAccount, broken_off
from cadenza.ledger.transaction import AccountMoves
from cadenza.observe import Observer
from cadenza.store.schema import idempotency, marks
from cadenza.store.statements import SelectByIds, Statement
from cadenza.store.store import Store, StoreBusy, StoreRefused, Transaction

BATCH_MAX = 200  # accounts, marks and idempotency keys in one transaction: some milliseconds of work
LOCK_S = 0.1  # how long a transaction waits for a row that is locked, though its account is not
TURN_S = 0.3  # how long it then waits for a locked account
FORGET_EVERY_S = 60.0
EXPIRE_EVERY_S = 10.0
INTERRUPTED_STATUS = 500
NOTHING_WANTED = Demand(kept_nano=0, in_use_nano=0, wanted_nano=0, usual_nano=0)

LEFT_MARKS = Statement(select(marks.c.account_id, marks.c.completion_id).where(marks.c.process == bindparam("of")))
LEFT_KEYS = Statement(
    select(idempotency.c.account_id, idempotency.c.completion_id, idempotency.c.digest).where(
        idempotency.c.process == bindparam("of")
    )
)
MARKED = SelectByIds(select(marks.c.process, *[marks.c[name] for name in HOLD_COLUMNS]), marks.c.completion_id)
_KEY = (
    idempotency.c.account_id == bindparam("account"),
    idempotency.c.digest == bindparam("key"),
    idempotency.c.process == bindparam("of"),
)
KEEP_KEY = Statement(update(idempotency).where(*_KEY).values(process=None))
FREE_KEY = Statement(delete(idempotency).where(*_KEY))


class Sweeper:
    """Finds dead processes and sweeps them, forgets old idempotency keys, and takes credit that has expired."""

    def __init__(self, store: Store, presence: Presence, observer: Observer) -> None:
        self._store = store
        self._presence = presence
        self._observer = observer
        self._unfinished: set[str] = set()  # processes of which the last sweep skipped some accounts
        self._forget_at_s = 0.0
        self._expire_at_s = 0.0

    async def sweep(self) -> None:
        host = self._presence.host
        now_ms = host.now_ms()
        locked = list[str]()  # the processes of which locked accounts are left
        for name in await self._presence.find_dead():
            with contextlib.suppress(StoreBusy):  # its row is locked: the next sweep comes back to it
                if await self._sweep_process(name, now_ms):
                    locked.append(name)
        for name in locked:
            with contextlib.suppress(StoreBusy):
                await self._sweep_process(name, now_ms, waits=True)
        if host.elapsed_s() >= self._forget_at_s:
            self._forget_at_s = host.elapsed_s() + FORGET_EVERY_S
            while await self._store.transact(lambda tx: idempotency_keys.forget_old_keys(tx, now_ms)):
                pass
        if host.elapsed_s() >= self._expire_at_s:
            self._expire_at_s = host.elapsed_s() + EXPIRE_EVERY_S
            await self._expire_credit(now_ms)

    async def _expire_credit(self, now_ms: int) -> None:
        for account_id in await lots.accounts_due(self._store, now_ms, BATCH_MAX):
            with contextlib.suppress(StoreBusy):
                await self._store.transact(partial(credit.expire, account_id=account_id, now_ms=now_ms), is_brief=True)

    async def _sweep_process(self, name: str, now_ms: int, *, waits: bool = False) -> set[str]:
        """Fence and free a dead process. Return the accounts that were skipped."""
        if not await self._store.transact(lambda tx: self._presence.fence(tx, name), is_brief=True):
            return set()
        charged: list[Outcome] = []

        def record(outcomes: list[Outcome]) -> None:
            charged.extend(outcomes)
            self._record(outcomes)

        log = self._observer.log
        if skipped := await free_process(self._store, name, now_ms, record, waits=waits):
            if waits and name in self._unfinished:
                log.warning("accounts of a process that died are locked", process=name, accounts=len(skipped))
            if waits:
                self._unfinished.add(name)
            return skipped
        self._unfinished.discard(name)
        try:
            await self._store.transact(lambda tx: processes.remove(tx, name), is_brief=True)
        except StoreRefused:  # another sweep has not finished
            return set()
        log.warning("freed the credit of a process that died", process=name, charged=len(charged))
        return set()

    def _record(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._observer.record(outcome)


class LeftRequest(msgspec.Struct):
    """A request of a dead process that has a mark, an idempotency key or both."""

    completion_id: str
    has_mark: bool = False
    digest: bytes | None = None


class AccountPart(msgspec.Struct):
    """Some or all of what a dead process left of one account. The last part frees the reserve."""

    account_id: str
    requests: Sequence[LeftRequest]
    capped_keys: Sequence[str]
    is_last: bool


async def free_process(
    store: Store, name: str, now_ms: int, record: Callable[[list[Outcome]], None], *, waits: bool = False
) -> set[str]:
    """Free the reserves of a dead process, charge its marks and free its other idempotency keys, batch by batch.

    `record` gets the outcomes of the charged requests. Return the accounts that were skipped, because some of their
    rows are locked or refused. If it `waits`, each account has its own transaction, which waits for a lock for TURN_S.
    No other process adds to what a dead one left behind, so it is read once.
    """
    skipped: set[str] = set()
    for batch in plan(*await _read_left(store, name)):
        for together in ([part] for part in batch) if waits else [batch]:
            parts = [part for part in together if part.account_id not in skipped]
            for outcomes, locked in await _free(store, name, parts, now_ms, waits=waits) if parts else []:
                record(outcomes)
                skipped |= locked
    return skipped


def plan(requests: dict[str, list[LeftRequest]], capped_keys: dict[str, list[str]]) -> Iterator[list[AccountPart]]:
    """Divide the accounts of a process into batches, and the requests of a large account over several."""
    batch, size = list[AccountPart](), 0
    for account_id, of_account in requests.items():
        for begin in range(0, max(1, len(of_account)), BATCH_MAX):
            part = of_account[begin : begin + BATCH_MAX]
            if batch and size + 1 + len(part) > BATCH_MAX:
                yield batch
                batch, size = [], 0
            is_last = begin + BATCH_MAX >= len(of_account)
            batch.append(AccountPart(account_id, part, capped_keys.get(account_id, ()), is_last))
            size += 1 + len(part)
    if batch:
        yield batch


async def _read_left(store: Store, name: str) -> tuple[dict[str, list[LeftRequest]], dict[str, list[str]]]:
    """By account: the requests that the process left, and the keys of whose caps it holds a part."""
    requests: dict[str, dict[str, LeftRequest]] = {}
    for account_id, completion_id in await store.rows(LEFT_MARKS, {"of": name}):
        requests.setdefault(account_id, {})[completion_id] = LeftRequest(completion_id, has_mark=True)
    for account_id, completion_id, digest in await store.rows(LEFT_KEYS, {"of": name}):
        requests.setdefault(account_id, {}).setdefault(completion_id, LeftRequest(completion_id)).digest = digest
    capped_keys: dict[str, list[str]] = {}
    for account_id, key_id in await store.rows(HOLDS_OF_PROCESS, {"process": name}):
        capped_keys.setdefault(account_id, []).append(key_id)
    reserved = [account_id for (account_id,) in await store.rows(transaction.RESERVED, {"me": name})]
    account_ids = sorted({*requests, *capped_keys, *reserved})
    return {account_id: [*requests.get(account_id, {}).values()] for account_id in account_ids}, capped_keys


async def _free(
    store: Store, name: str, parts: list[AccountPart], now_ms: int, *, waits: bool = False
) -> list[tuple[list[Outcome], set[str]]]:
    """Free parts in one transaction, or, if some row of one is locked or refused, each in its own."""

    def work(tx: Transaction) -> tuple[list[Outcome], set[str]]:
        if waits:  # what this reads may be older than the lock, so it is read again
            tx.rows_by_ids(transaction.LOCK_ACCOUNTS, [part.account_id for part in parts], {"process": name})
        return _free_parts(tx, name, parts, now_ms)

    try:
        return [await store.transact(work, lock_s=TURN_S if waits else LOCK_S)]
    except (StoreBusy, StoreRefused):
        if len(parts) == 1:
            return [([], {parts[0].account_id})]
    return [freed for part in parts for freed in await _free(store, name, [part], now_ms)]


def _free_parts(tx: Transaction, name: str, parts: list[AccountPart], now_ms: int) -> tuple[list[Outcome], set[str]]:
    """Free the parts of the accounts that no other transaction has locked, and return which ones are locked."""
    by_account = {part.account_id: part for part in parts}
    assert len(by_account) == len(parts), "an account has one part in a batch"
    accounts = transaction.lock_accounts(tx, name, sorted(by_account), waits=False)
    taken = [by_account[account.id] for account in accounts]
    ends: dict[str, list[End]] = {part.account_id: [] for part in taken}
    digests = {left.completion_id: left.digest for part in taken for left in part.requests if left.has_mark}
    for process, *row in tx.rows_by_ids(MARKED, [*digests], {}):
        if process == name:
            end = _interrupted(row, now_ms, digests[row[0]])
            ends[end.hold.account_id].append(end)
    moves = [_moves(tx, name, account, by_account[account.id], ends[account.id]) for account in accounts]
    _write_keys(tx, name, taken)
    return _apply(tx, name, moves, now_ms), by_account.keys() - ends.keys()


def _moves(tx: Transaction, name: str, account: LockedAccount, part: AccountPart, ends: list[End]) -> AccountMoves:
    """Charge these ends. What is not charged of the reserve, and of caps, is kept for the parts that follow."""
    if part.is_last:
        change_each(tx, DROP_HOLD, [{"key": key_id, "process": name} for key_id in part.capped_keys])
        return AccountMoves(account.id, NOTHING_WANTED, ends, [])
    kept_nano = max(0, account.reserve_nano - sum([end.due_nano for end in ends]))
    caps = CapUse(_kept_of_caps(tx, name, part, ends), {}) if part.capped_keys else NO_CAP_USE
    return AccountMoves(account.id, Demand(kept_nano, kept_nano, 0, 0), ends, [], caps)


def _kept_of_caps(tx: Transaction, name: str, part: AccountPart, ends: list[End]) -> dict[str, int]:
    """What the process still holds of each cap when these requests have ended."""
    kept_nano = dict[str, int]()
    for key_id in part.capped_keys:
        row = tx.row(HELD_BY_PROCESS, {"key": key_id, "process": name})
        due_nano = sum([end.due_nano for end in ends if end.hold.key_id == key_id])
        kept_nano[key_id] = max(0, row[0] - due_nano) if row else 0
    return kept_nano


def _write_keys(tx: Transaction, name: str, parts: list[AccountPart]) -> None:
    """The idempotency keys of marked requests stay used, because these are charged; the others are free again."""
    for statement, has_mark in ((KEEP_KEY, True), (FREE_KEY, False)):
        values = [
            {"account": part.account_id, "key": request.digest, "of": name}
            for part in parts
            for request in part.requests
            if request.digest and request.has_mark is has_mark
        ]
        change_each(tx, statement, values)


def _apply(tx: Transaction, name: str, moves: list[AccountMoves], now_ms: int) -> list[Outcome]:
    """Return the outcomes of the requests that ended now. The others had ended before."""
    applied = transaction.apply_moves(tx, name, moves, now_ms, is_fenced=False)
    assert all(applied[move.account_id].account.reserve_nano <= move.demand.kept_nano for move in moves)
    return [
        end.outcome
        for move in moves
        for end, ended in zip(move.ends, applied[move.account_id].ended, strict=True)
        if not ended.is_repeated and not ended.is_lost
    ]


def _interrupted(row: Sequence[Any], now_ms: int, digest: bytes | None) -> End:
    """The end of a request whose process died, by HOLD_COLUMNS of its mark. It is charged as far as its cap allows."""
    values = dict(zip(HOLD_COLUMNS, row, strict=True))
    delivered_tokens = values.pop("delivered_tokens")
    price = Price(values.pop("input_nano"), values.pop("output_nano"), values.pop("cached_input_nano"))
    hold = Hold(**values, allowance_tokens=0, price=price, idempotency_digest=digest)
    usage = Usage(hold.prompt_tokens, delivered_tokens, estimated=True)
    return End(
        broken_off(hold, INTERRUPTED_STATUS, now_ms, usage),
        hold,
        0,
        hold.due_nano(usage),
        is_marked=True,
        is_capped=True,
        is_uncertain=True,
        source="sweep",
    )
