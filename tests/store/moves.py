"""Holds and outcomes for the tests of the ledger, a writer to hand them to, and the money as the store has it."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TextIO

from sqlalchemy import bindparam, select, text

from cadenza.core.money import Price
from cadenza.core.records import Outcome, Usage
from cadenza.observe import FaultPoint, Metrics, Observer, make_log
from cadenza.store import audit, ledger
from cadenza.store.address import open_store
from cadenza.store.audit import Finding
from cadenza.store.batches import Answer
from cadenza.store.ledger import Ended, Held, Hold, Insufficient, Repeated
from cadenza.store.migrate import migrate
from cadenza.store.schema import accounts, holds
from cadenza.store.statements import Statement
from cadenza.store.store import WAIT_S, Store
from cadenza.store.writer import USUAL_PACE, LedgerWriter, Pace
from tests.postgres import Postgres
from tests.store.rows import NOW_MS, add_account, add_key

PRICE = Price(input_nano=10, output_nano=30, cached_input_nano=2)
PATIENCE_S = 60.0  # how long a test waits for something that must happen
LOOK_EVERY_S = 0.02
MARKS_AT_ONCE = Pace(mark_every_s=0.02, mark_after_s=0.0)
Taken = Held | Insufficient | Repeated
MONEY = Statement(select(accounts.c.balance_nano, accounts.c.held_nano).where(accounts.c.id == bindparam("account")))
STATE = Statement(
    select(holds.c.state, holds.c.delivered_tokens).where(holds.c.completion_id == bindparam("completion"))
)
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

    async def count(self) -> Usage:
        return Usage(100, self.delivered_tokens, estimated=True)


class Steps(FaultPoint):
    """Runs a test's actions at the named steps of the writer: the first action at the first visit, and so on."""

    def __init__(self, **actions: list[Callable[[], object]]) -> None:
        super().__init__()
        self.actions = actions

    def __call__(self, name: str) -> None:
        if actions := self.actions.get(name.replace("-", "_")):
            actions.pop(0)()


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
) -> Hold:
    return Hold(
        completion_id=completion_id,
        account_id=f"acct_{account}",
        key_id=f"key_{account}",
        class_id="forte",
        prompt_tokens=prompt_tokens,
        allowance_tokens=allowance_tokens,
        price=price,
        stream=True,
        started_at=started_at,
        is_counted=is_counted,
        request_id=f"req-{completion_id}",
        idempotency_digest=key,
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
        await store.transact(lambda tx: ledger.grant(tx, f"acct_{account}", amount_nano, "", NOW_MS))


async def take(store: Store, hold: Hold, owner: str = "proc_a") -> Taken:
    return await store.transact(lambda tx: ledger.take_hold(tx, hold, owner))


async def finish(store: Store, outcome: Outcome) -> Ended:
    return await store.transact(lambda tx: ledger.end_hold(tx, outcome))


async def money(store: Store, account: str = "a") -> tuple[int, int]:
    """The balance, and how much of it is held."""
    row = await store.row(MONEY, {"account": f"acct_{account}"})
    assert row
    return row[0], row[1]


async def state_of(store: Store, completion_id: str = "r1") -> str | None:
    row = await store.row(STATE, {"completion": completion_id})
    return None if row is None else str(row[0])


async def mark_of(store: Store, completion_id: str = "r1") -> int:
    row = await store.row(STATE, {"completion": completion_id})
    assert row
    return int(row[1])


async def findings(store: Store) -> list[Finding]:
    return await audit.check(store)


@asynccontextmanager
async def writing(
    store: Store,
    at: FaultPoint | None = None,
    log_to: TextIO | None = None,
    pace: Pace = USUAL_PACE,
) -> AsyncIterator[tuple[LedgerWriter, Metrics]]:
    """A writer that has started, and its metrics. A test that hangs fails."""
    observer = Observer(make_log(log_to or io.StringIO()), at)
    writer = LedgerWriter(store, observer, pace)
    async with asyncio.timeout(PATIENCE_S):
        await writer.start()
        try:
            yield writer, observer.metrics
        finally:
            await writer.stop()


async def hold_all(writer: LedgerWriter, wanted: Iterable[Hold]) -> list[Taken]:
    """Take all holds at the same moment, so that they share a batch."""
    return await asyncio.gather(*(writer.hold(hold) for hold in wanted))


async def queue_all(writer: LedgerWriter, wanted: Iterable[Hold]) -> list["asyncio.Task[Taken]"]:
    """Queue holds without waiting for them: an outcome that follows at once is in the same batch."""
    queued = [asyncio.create_task(writer.hold(hold)) for hold in wanted]
    await asyncio.sleep(0)
    return queued


async def end_all(writer: LedgerWriter, outcomes: Iterable[Outcome]) -> list[Answer]:
    return await asyncio.gather(*(writer.end(outcome) for outcome in outcomes))


async def comes_true(is_so: Callable[[], Awaitable[bool]], timeout_s: float = PATIENCE_S) -> bool:
    """Wait for something that no event announces: another process, or the writer's own period."""
    for _ in range(round(timeout_s / LOOK_EVERY_S)):
        if await is_so():
            return True
        await asyncio.sleep(LOOK_EVERY_S)
    return False


@asynccontextmanager
async def opened(url: str, wait_s: float = WAIT_S) -> AsyncIterator[Store]:
    """Open the same store once more, as another process would."""
    store = open_store(url, wait_s)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def postgres_store(server: Postgres) -> AsyncIterator[tuple[Store, str]]:
    """A migrated Postgres store and its address."""
    with server.database() as url:
        async with opened(url) as store:
            await migrate(store)
            yield store, url


async def come_to_wait(store: Store, connections: int, timeout_s: float = PATIENCE_S) -> bool:
    """Wait until this many connections of a Postgres database wait for a lock."""

    async def so_many_wait() -> bool:
        return await store.row(LOCK_WAITS, {}) == (connections,)

    return await comes_true(so_many_wait, timeout_s)


def counted(metrics: Metrics, name: str) -> float:
    return metrics.registry.get_sample_value(f"cadenza_{name}_total") or 0.0
