"""Sweeps: what a dead process left behind is ended. Its reserves are freed, and its marks are charged.

Any process may sweep any dead one. The dead process is fenced first (fleet/presence.py). Its accounts are swept in
batches, one transaction each, and every batch leaves the ledger consistent: a reserve shrinks by what is charged to it,
and the rest of it is freed with the last mark of its account. Locked accounts are skipped. A sweep may stop after any
batch, and several sweeps of one process may run at once; the next sweep finishes the work.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, bindparam, delete, literal_column, null, select, text, update

from cadenza.core.money import Price
from cadenza.core.records import Outcome, Usage
from cadenza.fleet import presence as processes
from cadenza.fleet.presence import Presence
from cadenza.ledger import credit, lots, transaction
from cadenza.ledger.cap_rows import DROP_HOLD, HELD_BY_PROCESS, HOLDS_OF_PROCESS
from cadenza.ledger.caps import NO_CAP_USE, CapUse
from cadenza.ledger.marks import COLUMNS as HOLD_COLUMNS
from cadenza.ledger.rows import change_each
from cadenza.ledger.rules import Demand, End, Hold, LockedAccount, broken_off
from cadenza.ledger.transaction import AccountMoves
from cadenza.observe import Observer
from cadenza.store.schema import holds, idempotency, marks
from cadenza.store.statements import SelectByIds, Statement
from cadenza.store.store import Store, StoreBusy, StoreRefused, Transaction

BATCH_MAX = 200  # accounts, marks and idempotency keys in one transaction: some milliseconds of work
LOCK_S = 0.1  # how long a transaction waits for a row that is locked, though its account is not
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

# The release before held credit by request, in the table `holds`.
OPEN: ColumnElement[str] = literal_column("'open'")
OLD_OWNERS = Statement(select(holds.c.owner).where(holds.c.state == OPEN).distinct())
OLD_HOLDS = Statement(
    select(holds.c.amount_nano, *[holds.c[name] if name in holds.c else null() for name in HOLD_COLUMNS])
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


class Sweeper:
    """Finds dead processes and sweeps them, forgets old idempotency keys, and takes credit that has expired."""

    def __init__(self, store: Store, presence: Presence, observer: Observer) -> None:
        self._store = store
        self._presence = presence
        self._observer = observer
        self._unfinished: set[str] = set()  # processes of which the last sweep skipped some accounts
        self._suspects: set[str] = set()  # processes of the release before whose locks were free at the last sweep
        self._forget_at_s = 0.0
        self._expire_at_s = 0.0

    async def sweep(self) -> None:
        host = self._presence.host
        now_ms = host.now_ms()
        for name in await self._presence.find_dead():
            with contextlib.suppress(StoreBusy):  # its row is locked: the next sweep comes back to it
                await self._sweep_process(name, now_ms)
        with contextlib.suppress(StoreBusy):
            await self._sweep_old_holds(now_ms)
        if host.elapsed_s() >= self._forget_at_s:
            self._forget_at_s = host.elapsed_s() + FORGET_EVERY_S
            await self._store.transact(lambda tx: transaction.forget_old_keys(tx, now_ms))
        if host.elapsed_s() >= self._expire_at_s:
            self._expire_at_s = host.elapsed_s() + EXPIRE_EVERY_S
            await self._expire_credit(now_ms)

    async def _expire_credit(self, now_ms: int) -> None:
        for account_id in await lots.accounts_due(self._store, now_ms, BATCH_MAX):
            with contextlib.suppress(StoreBusy):
                await self._store.transact(partial(credit.expire, account_id=account_id, now_ms=now_ms), is_brief=True)

    async def _sweep_process(self, name: str, now_ms: int) -> None:
        if not await self._store.transact(lambda tx: self._presence.fence(tx, name), is_brief=True):
            return
        charged: list[Outcome] = []

        def record(outcomes: list[Outcome]) -> None:
            charged.extend(outcomes)
            self._record(outcomes)

        log = self._observer.log
        if skipped := await free_process(self._store, name, now_ms, record):
            if name in self._unfinished:
                log.warning("accounts of a process that died are locked", process=name, accounts=len(skipped))
            self._unfinished.add(name)
            return
        self._unfinished.discard(name)
        try:
            await self._store.transact(lambda tx: processes.remove(tx, name), is_brief=True)
        except StoreRefused:  # another sweep has not finished, or a process of the release before is alive
            return
        log.warning("freed the credit of a process that died", process=name, charged=len(charged))

    async def _sweep_old_holds(self, now_ms: int) -> None:
        """End the holds of processes of the release before. One that lost its lock has until the next sweep."""
        owners = {owner for (owner,) in await self._store.rows(OLD_OWNERS, {})}
        dead = {owner for owner in owners if await self._is_old_owner_dead(owner)}
        for owner in sorted(dead if self._store.process_locks else dead & self._suspects):
            charged = 0
            while outcomes := await self._store.transact(partial(end_old_holds, owner=owner, now_ms=now_ms)):
                charged += len(outcomes)
                self._record(outcomes)
            self._observer.log.warning("freed the credit of a process that died", process=owner, charged=charged)
        self._suspects = dead

    async def _is_old_owner_dead(self, owner: str) -> bool:
        """Each had a lock of its name: a file beside a SQLite store, an advisory lock on Postgres."""
        if locks := self._store.process_locks:
            return locks.remove_if_free(owner)
        number = int.from_bytes(hashlib.sha256(owner.encode()).digest()[:8], signed=True)
        return await self._store.row(TRY_OLD_LOCK, {"number": number}) == (True,)

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


async def free_process(store: Store, name: str, now_ms: int, record: Callable[[list[Outcome]], None]) -> set[str]:
    """Free the reserves of a dead process, charge its marks and free its other idempotency keys, batch by batch.

    `record` gets the outcomes of the charged requests. Return the accounts that were skipped, because some of their
    rows are locked or refused. No other process adds to what a dead one left behind, so it is read once.
    """
    skipped: set[str] = set()
    for batch in plan(*await _read_left(store, name)):
        parts = [part for part in batch if part.account_id not in skipped]
        for outcomes, locked in await _free(store, name, parts, now_ms) if parts else []:
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


async def _free(store: Store, name: str, parts: list[AccountPart], now_ms: int) -> list[tuple[list[Outcome], set[str]]]:
    """Free parts in one transaction, or, if some row of one is locked or refused, each in its own."""
    try:
        return [await store.transact(lambda tx: _free_parts(tx, name, parts, now_ms), lock_s=LOCK_S)]
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
    digests = {one.completion_id: one.digest for part in taken for one in part.requests if one.has_mark}
    for process, *row in tx.rows_by_ids(MARKED, [*digests], {}):
        if process == name:
            end = _interrupted(row, now_ms, digest=digests[row[0]], is_marked=True)
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


def end_old_holds(tx: Transaction, owner: str, now_ms: int) -> list[Outcome]:
    """End some holds of a dead process of the release before."""
    ends: dict[str, list[End]] = {}
    for amount_nano, *row in tx.rows(OLD_HOLDS, {"of": owner}):
        end = _interrupted(row, now_ms, held_nano=amount_nano)
        ends.setdefault(end.hold.account_id, []).append(end)
    transaction.lock_accounts(tx, owner, sorted(ends))
    for end in [end for of_account in ends.values() for end in of_account]:
        new_state = "settled" if end.outcome.usage else "released"
        values = {"completion": end.hold.completion_id, "new_state": new_state, "at": now_ms}
        if tx.change(END_OLD_HOLD, values) != 1:  # not `assert`: its credit must be given back once
            raise AssertionError("a hold that is open and locked can be ended")
        tx.change(GIVE_BACK_OLD, {"account": end.hold.account_id, "amount": end.held_nano})
    moves = [AccountMoves(account_id, NOTHING_WANTED, of_account, []) for account_id, of_account in ends.items()]
    return _apply(tx, owner, moves, now_ms)


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


def _interrupted(
    row: Sequence[Any], now_ms: int, *, held_nano: int = 0, digest: bytes | None = None, is_marked: bool = False
) -> End:
    """The end of a request whose process died, by HOLD_COLUMNS of its mark. It is charged as far as its cap allows."""
    values = dict(zip(HOLD_COLUMNS, row, strict=True))
    delivered_tokens = values.pop("delivered_tokens")
    price = Price(values.pop("input_nano"), values.pop("output_nano"), values.pop("cached_input_nano"))
    hold = Hold(**values, allowance_tokens=0, price=price, idempotency_digest=digest)
    usage = Usage(hold.prompt_tokens, delivered_tokens, estimated=True) if delivered_tokens else None
    return End(
        broken_off(hold, INTERRUPTED_STATUS, now_ms, usage),
        hold,
        held_nano,
        hold.due_nano(usage),
        is_marked=is_marked,
        is_capped=is_marked,
        is_uncertain=True,
        source="sweep",
    )
