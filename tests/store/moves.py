"""Holds and outcomes for the tests of the ledger, a writer to hand them to, and the money as the store has it.

`take` and `finish` are the smallest process: each is one transaction, and nothing is reserved beyond the holds.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple, TextIO

import msgspec
import pytest
from sqlalchemy import bindparam, select, text

from cadenza.control.money.statement import read_statement
from cadenza.core.money import Price
from cadenza.core.records import Cap, Outcome, Owner, Usage
from cadenza.fleet import presence
from cadenza.fleet.presence import USUAL_BOUNDS, HeartbeatBounds, Presence
from cadenza.ledger import check, credit, sweeps, transaction
from cadenza.ledger.backlog import Answer
from cadenza.ledger.cap_rows import set_cap
from cadenza.ledger.check import Violation
from cadenza.ledger.marks import MARK as SET_MARK
from cadenza.ledger.rules import Demand, End, Ended, HeldCredit, Hold, HoldResult, Insufficient, Repeated
from cadenza.ledger.statement import Entry
from cadenza.ledger.timing import USUAL_TIMING, LedgerTiming
from cadenza.ledger.transaction import AccountMoves, Applied
from cadenza.ledger.writer import LedgerWriter
from cadenza.observe import FaultPoint, Metrics, Observer, make_log
from cadenza.store.address import open_store
from cadenza.store.schema import accounts, marks, reserves, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from tests.postgres import Postgres
from tests.store.rows import NOW_MS, add_account, add_key

PRICE = Price(input_nano=10, output_nano=30, cached_input_nano=2)
PATIENCE_S = 60.0  # how long a test waits for something that must happen
POLL_INTERVAL_S = 0.02
HOUR_S = 3600.0
MARKS_AT_ONCE = LedgerTiming(mark_every_s=0.02, mark_after_s=0.0)
PATIENT = LedgerTiming(wait_s=PATIENCE_S, ask_s=10.0)  # other processes have time to give back credit on a busy machine
ALONE = LedgerTiming(
    wait_s=PATIENCE_S,
    mark_every_s=HOUR_S,
    mark_after_s=0.0,
    sweep_every_s=HOUR_S,
    release_every_s=HOUR_S,
    reconcile_every_s=HOUR_S,
)  # nothing happens unless the test makes it happen
QUIET = HeartbeatBounds(heartbeat_every_s=HOUR_S, fresh_s=2 * HOUR_S, dead_s=3 * HOUR_S)  # no beats, and always fresh
STALE = HeartbeatBounds(heartbeat_every_s=HOUR_S, fresh_s=0.0)  # no beats, and never fresh
ON_POSTGRES = pytest.mark.parametrize("databases", ["postgres"], indirect=True)  # for what SQLite has not
PROCESS = "proc_a"
MONEY = Statement(select(accounts.c.balance_nano, accounts.c.held_nano).where(accounts.c.id == bindparam("account")))
MARK = Statement(select(marks.c.delivered_tokens).where(marks.c.completion_id == bindparam("completion")))
COST = Statement(select(usage.c.cost_nano).where(usage.c.completion_id == bindparam("completion")))
RESERVED = Statement(
    select(reserves.c.process, reserves.c.amount_nano).where(reserves.c.account_id == bindparam("account"))
)
CAP = Statement(
    text(
        "SELECT limit_nano, month, spent_nano, excused_nano,"
        " (SELECT COALESCE(SUM(amount_nano), 0) FROM cap_holds WHERE key_id = :key) FROM caps WHERE key_id = :key"
    )
)
IS_REGISTERED = Statement(text("SELECT name FROM processes WHERE name = :name"))
HAS_SEEN_ALL = Statement(text("UPDATE processes SET seen = 1000000 WHERE name = :name"))
LOCK_WAITS = Statement(
    text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
)


class Progress:
    """What a request has delivered, as the writer sees it."""

    def __init__(self, delivered_tokens: int = 0) -> None:
        self.delivered_tokens = delivered_tokens

    @property
    def has_delivered(self) -> bool:
        return self.delivered_tokens > 0

    async def progress(self) -> Usage:
        return Usage(100, self.delivered_tokens, estimated=True)


class Steps(FaultPoint):
    """Runs a test's actions at the named steps of the writer: the first action at the first visit, and so on."""

    def __init__(self, **actions: list[Callable[[], object]]) -> None:
        super().__init__()
        self.actions = actions

    def reach(self, name: str) -> None:
        if actions := self.actions.get(name.replace("-", "_")):
            actions.pop(0)()

    __call__ = reach


def make_hold(
    completion_id: str = "r1",
    *,
    prompt_tokens: int = 100,
    allowance_tokens: int = 50,
    price: Price = PRICE,
    account: str = "a",
    key: bytes | None = None,
    started_at: int = NOW_MS,
    is_counted: bool = True,
    key_id: str = "",
    is_capped: bool = False,
) -> Hold:
    return Hold(
        completion_id=completion_id,
        account_id=f"acct_{account}",
        key_id=key_id or f"key_{account}",
        class_id="forte",
        prompt_tokens=prompt_tokens,
        allowance_tokens=allowance_tokens,
        price=price,
        stream=True,
        started_at=started_at,
        is_counted=is_counted,
        request_id=f"req-{completion_id}",
        idempotency_digest=key,
        is_capped=is_capped,
        version=3,
    )


def make_outcome(
    completion_id: str = "r1", usage: Usage | None = None, status: int = 200, account: str = "a"
) -> Outcome:
    return Outcome(
        request_id=f"req-{completion_id}",
        completion_id=completion_id,
        account_id=f"acct_{account}",
        key_id=f"key_{account}",
        class_id="forte",
        endpoint="chat",
        usage=usage,
        provider="acme",
        model="acme-large",
        status=status,
        first_byte_ms=12,
        duration_ms=345,
        ended_at=NOW_MS + 345,
    )


async def fund(store: Store, amount_nano: int, account: str = "a") -> None:
    """Add an account with a key and this much credit."""
    await add_account(store, f"acct_{account}")
    await add_key(store, f"key_{account}", account_id=f"acct_{account}")
    if amount_nano:
        await store.transact(lambda tx: credit.grant(tx, f"acct_{account}", amount_nano, "", NOW_MS))


async def register(store: Store, process: str = PROCESS) -> None:
    """Make a process known to the store, unless it is. No change waits until it has seen it: it runs nowhere."""

    def work(tx: Transaction) -> None:
        if not tx.row(IS_REGISTERED, {"name": process}):
            presence.register(tx, process)
            tx.change(HAS_SEEN_ALL, {"name": process})

    await store.transact(work)


async def take(store: Store, hold: Hold, process: str = PROCESS) -> HoldResult:
    """Take a hold in the store, as a process that has nothing to spare."""
    await register(store, process)
    final = msgspec.structs.replace(hold, is_final=True)
    applied = await store.transact(lambda tx: move(tx, process, hold.account_id, holds=[final]))
    [answer] = applied.answers
    return answer


async def finish(
    store: Store,
    hold: Hold,
    counted: Usage | None = None,
    *,
    status: int = 200,
    held_nano: int | None = None,
    process: str = PROCESS,
    is_uncertain: bool = False,
) -> Ended:
    """End a request whose hold was taken, whole if nothing else is said."""
    amount_nano = hold.amount_nano if held_nano is None else held_nano
    outcome = make_outcome(hold.completion_id, counted, status, hold.account_id.removeprefix("acct_"))
    outcome = msgspec.structs.replace(outcome, ended_at=hold.started_at + outcome.duration_ms)
    end = End(outcome, hold, amount_nano, hold.due_nano(counted), is_uncertain=is_uncertain)
    applied = await store.transact(lambda tx: move(tx, process, hold.account_id, ends=[end]))
    [ended] = applied.ended
    return ended


def move(
    tx: Transaction, process: str, account_id: str, *, ends: Iterable[End] = (), holds: Iterable[Hold] = ()
) -> Applied:
    """Apply moves of one account, and keep what the other requests of the process hold."""
    ended = [*ends]
    [account] = transaction.lock_accounts(tx, process, [account_id])
    kept_nano = max(0, account.reserve_nano - sum([end.held_nano for end in ended]))
    demand = Demand(kept_nano, kept_nano, 0, 0)
    return transaction.apply_moves(tx, process, [AccountMoves(account_id, demand, ended, [*holds])], NOW_MS)[account_id]


async def mark_all(
    store: Store,
    *completion_ids: str,
    account: str = "a",
    tokens: int = 7,
    process: str = PROCESS,
    started_at: int = NOW_MS,
) -> None:
    """Mark delivered tokens of each request."""
    row = {
        "process": process,
        "account_id": f"acct_{account}",
        "key_id": f"key_{account}",
        "class_id": "forte",
        "version": 3,
        "prompt_tokens": 100,
        "delivered_tokens": tokens,
        "input_nano": PRICE.input_nano,
        "output_nano": PRICE.output_nano,
        "cached_input_nano": PRICE.cached_input_nano,
        "stream": True,
        "started_at": started_at,
    }
    rows = [{**row, "completion_id": one, "request_id": f"req-{one}"} for one in completion_ids]
    await store.transact(lambda tx: tx.change_each(SET_MARK, rows))


async def sweep_process(store: Store, process: str = PROCESS) -> list[Outcome]:
    """Sweep a process as if it were dead."""

    outcomes: list[Outcome] = []
    assert await sweeps.free_process(store, process, NOW_MS + 1000, outcomes.extend) == set()
    await store.transact(lambda tx: presence.remove(tx, process))
    return outcomes


async def money(store: Store, account: str = "a") -> tuple[int, int]:
    """The balance, and how much of it is held."""
    row = await store.row(MONEY, {"account": f"acct_{account}"})
    assert row
    return row[0], row[1]


class CapFigures(NamedTuple):
    """A cap as the store has it."""

    limit_nano: int
    month: int
    spent_nano: int
    excused_nano: int
    held_nano: int


async def cap_of(store: Store, key_id: str = "key_a") -> CapFigures:
    row = await store.row(CAP, {"key": key_id})
    assert row
    return CapFigures(*(int(number) for number in row))


async def cap(store: Store, limit: Cap | None, key_id: str = "key_a", now_ms: int = NOW_MS) -> None:
    """Set the spend cap of a key, or remove it."""
    account_id = f"acct_{key_id.removeprefix('key_')}"
    await store.transact(lambda tx: set_cap(tx, account_id, key_id, limit, now_ms))


async def cost_of(store: Store, completion_id: str = "r1") -> int | None:
    """What a request cost, once it has ended."""
    row = await store.row(COST, {"completion": completion_id})
    return None if row is None else int(row[0])


async def mark_of(store: Store, completion_id: str = "r1") -> int:
    """The tokens of a running request that are marked as delivered."""
    row = await store.row(MARK, {"completion": completion_id})
    return int(row[0]) if row else 0


async def reserves_of(store: Store, account: str = "a") -> dict[str, int]:
    """How much of an account each process has reserved."""
    rows = await store.rows(RESERVED, {"account": f"acct_{account}"})
    return {str(process): int(amount_nano) for process, amount_nano in rows}


async def findings(store: Store) -> list[Violation]:
    return await check.find_violations(store)


class ProcessWriter(LedgerWriter):
    """The writer of one process, with the presence under whose name it writes."""

    def __init__(self, store: Store, observer: Observer, presence: Presence, timing: LedgerTiming) -> None:
        super().__init__(store, observer, presence, timing)
        self.presence = presence


@asynccontextmanager
async def writing(
    store: Store,
    at: FaultPoint | None = None,
    log_to: TextIO | None = None,
    timing: LedgerTiming = USUAL_TIMING,
    bounds: HeartbeatBounds = USUAL_BOUNDS,
    timeout_s: float | None = PATIENCE_S,
) -> AsyncIterator[tuple[ProcessWriter, Metrics]]:
    """A writer that has started, and its metrics. A test that hangs fails."""
    observer = Observer(make_log(log_to or io.StringIO()), at)
    writer = ProcessWriter(store, observer, Presence(store, bounds), timing)
    async with asyncio.timeout(timeout_s):
        await writer.presence.start()
        await writer.start()
        try:
            yield writer, observer.metrics
        finally:
            await writer.stop()
            await writer.presence.stop()


async def hold_all(writer: LedgerWriter, wanted: Iterable[Hold]) -> list[HeldCredit | Insufficient | Repeated]:
    """Take all holds at the same moment, so that they share a batch."""
    return await asyncio.gather(*(writer.hold(hold) for hold in wanted))


async def queue_all(
    writer: LedgerWriter, wanted: Iterable[Hold]
) -> list["asyncio.Task[HeldCredit | Insufficient | Repeated]"]:
    """Queue holds without waiting for them: an outcome that follows at once is in the same batch."""
    queued = [asyncio.create_task(writer.hold(hold)) for hold in wanted]
    await asyncio.sleep(0)
    return queued


async def end_all(writer: LedgerWriter, outcomes: Iterable[Outcome]) -> list[Answer]:
    return await asyncio.gather(*(writer.end(outcome) for outcome in outcomes))


async def comes_true(read: Callable[[], object], timeout_s: float = PATIENCE_S, *, becomes: object = True) -> bool:
    """Wait for something that no event announces: another process, or the writer's own period."""
    for _ in range(round(timeout_s / POLL_INTERVAL_S)):
        found = read()
        if (await found if isinstance(found, Awaitable) else found) == becomes:
            return True
        await asyncio.sleep(POLL_INTERVAL_S)
    return False


@asynccontextmanager
async def opened(url: str, wait_s: float = PATIENCE_S) -> AsyncIterator[Store]:
    """Open the same store once more, as another process would, but with patience: the machine may be busy."""
    store = open_store(url, wait_s)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def postgres_store(server: Postgres) -> AsyncIterator[tuple[Store, str]]:
    """A migrated Postgres store and its address."""
    with server.migrated_database() as url:
        async with opened(url) as store:
            yield store, url


async def come_to_wait(store: Store, connections: int, timeout_s: float = PATIENCE_S) -> bool:
    """Wait until this many connections of a Postgres database wait for a lock."""
    return await comes_true(lambda: store.row(LOCK_WAITS, {}), timeout_s, becomes=(connections,))


def counted(metrics: Metrics, name: str) -> float:
    return metrics.registry.get_sample_value(f"cadenza_{name}_total") or 0.0


async def statement_by_pages(store: Store, account: str, count: int) -> list[Entry]:
    """All entries, newest first, in pages of so many."""
    entries, cursor = list[Entry](), ""
    while True:
        page = await read_statement(store, Owner(account, ""), cursor, count=count)
        entries += page.entries
        if page.next is None:
            return entries
        cursor = str(page.next)
