"""Holds and ends as the tests of the ledger make them, a writer to hand them to, and the money as the store has it."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TextIO

from sqlalchemy import select, text

from cadenza.core.money import Price
from cadenza.core.records import Usage
from cadenza.observe import FaultPoint, Metrics, Observer, make_log
from cadenza.store import audit, ledger
from cadenza.store.audit import Finding
from cadenza.store.batches import Answer
from cadenza.store.database import WAIT_S, Database, migrate
from cadenza.store.ledger import End, Ended, Held, Hold, Insufficient, Repeated
from cadenza.store.schema import accounts, holds
from cadenza.store.writer import LedgerWriter
from tests.postgres import Postgres
from tests.store.rows import NOW_MS, add_account, add_key

PRICE = Price(input_nano=10, output_nano=30, cached_input_nano=2)
PATIENCE_S = 20.0  # how long a test waits for what must come
LOOK_EVERY_S = 0.02
Taken = Held | Insufficient | Repeated


class Progress:
    """What a request has delivered, as the writer is shown it."""

    delivered_tokens = 0

    @property
    def has_delivered(self) -> bool:
        return self.delivered_tokens > 0

    async def count(self) -> Usage:
        return Usage(100, self.delivered_tokens, estimated=True)


class Steps(FaultPoint):
    """Does what a test wants at the named steps of the writer: the first action at the first time, and so on."""

    def __init__(self, **actions: list[Callable[[], object]]) -> None:
        super().__init__()
        self.actions = actions

    def __call__(self, name: str) -> None:
        if actions := self.actions.get(name.replace("-", "_")):
            actions.pop(0)()


def make_hold(
    request_id: str = "r1",
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
        request_id=request_id,
        account_id=f"acct_{account}",
        key_id=f"key_{account}",
        class_id="forte",
        prompt_tokens=prompt_tokens,
        allowance_tokens=allowance_tokens,
        price=price,
        stream=True,
        started_at=started_at,
        is_counted=is_counted,
        shown_id=f"shown-{request_id}",
        idempotency_digest=key,
    )


def make_end(request_id: str = "r1", usage: Usage | None = None, status: int = 200, account: str = "a") -> End:
    return End(
        request_id=request_id,
        account_id=f"acct_{account}",
        usage=usage,
        provider="acme",
        model="acme-large",
        status=status,
        first_byte_ms=12,
        duration_ms=345,
        ended_at=NOW_MS + 345,
    )


async def fund(db: Database, amount_nano: int, account: str = "a") -> None:
    """An account with a key and that much credit."""
    await add_account(db, f"acct_{account}")
    await add_key(db, f"key_{account}", account_id=f"acct_{account}")
    if amount_nano:
        await db.transact(lambda connection: ledger.grant(connection, f"acct_{account}", amount_nano, "", NOW_MS))


async def take(db: Database, hold: Hold, owner: str = "proc_a") -> Taken:
    return await db.transact(lambda connection: ledger.take_hold(connection, hold, owner))


async def finish(db: Database, end: End) -> Ended:
    return await db.transact(lambda connection: ledger.end_hold(connection, end))


async def money(db: Database, account: str = "a") -> tuple[int, int]:
    """The balance and what is held of it."""
    query = select(accounts.c.balance_nano, accounts.c.held_nano).where(accounts.c.id == f"acct_{account}")
    async with db.read() as conn:
        balance_nano, held_nano = (await conn.execute(query)).one()
    return balance_nano, held_nano


async def state_of(db: Database, request_id: str = "r1") -> str | None:
    async with db.read() as conn:
        found = await conn.execute(select(holds.c.state).where(holds.c.request_id == request_id))
        state: str | None = found.scalar_one_or_none()
    return state


async def mark_of(db: Database, request_id: str = "r1") -> int:
    async with db.read() as conn:
        found = await conn.execute(select(holds.c.delivered_tokens).where(holds.c.request_id == request_id))
        tokens: int = found.scalar_one()
    return tokens


async def findings(db: Database) -> list[Finding]:
    async with db.read() as conn:
        return await audit.check(conn)


@asynccontextmanager
async def writing(
    db: Database, at: FaultPoint | None = None, log_to: TextIO | None = None, patience_s: float = PATIENCE_S
) -> AsyncIterator[tuple[LedgerWriter, Metrics]]:
    """A writer that has started, and what it counts; whatever hangs fails the test."""
    observer = Observer(make_log(log_to or io.StringIO()), at)
    writer = LedgerWriter(db, observer)
    async with asyncio.timeout(patience_s):
        await writer.start()
        try:
            yield writer, observer.metrics
        finally:
            await writer.stop()


async def hold_all(writer: LedgerWriter, wanted: Iterable[Hold]) -> list[Taken]:
    """All at the same moment, so that they wait together."""
    return await asyncio.gather(*(writer.hold(hold, Progress()) for hold in wanted))


async def queue_all(writer: LedgerWriter, wanted: Iterable[Hold]) -> list["asyncio.Task[Taken]"]:
    """Queued and not yet written: what is ended right after this is of the same batch."""
    queued = [asyncio.create_task(writer.hold(hold, Progress())) for hold in wanted]
    await asyncio.sleep(0)
    return queued


async def end_all(writer: LedgerWriter, ends: Iterable[End]) -> list[Answer]:
    return await asyncio.gather(*(writer.end(end) for end in ends))


async def comes_true(is_so: Callable[[], Awaitable[bool]], timeout_s: float = PATIENCE_S) -> bool:
    """For what another process or a period of the writer brings about, of which no event tells."""
    for _ in range(round(timeout_s / LOOK_EVERY_S)):
        if await is_so():
            return True
        await asyncio.sleep(LOOK_EVERY_S)
    return False


@asynccontextmanager
async def opened(url: str, wait_s: float = WAIT_S) -> AsyncIterator[Database]:
    """The same store once more, as another process would open it."""
    db = Database(url, wait_s)
    try:
        yield db
    finally:
        await db.close()


@asynccontextmanager
async def postgres_store(server: Postgres) -> AsyncIterator[tuple[Database, str]]:
    """For what only Postgres has: a migrated database and its address."""
    with server.database() as url:
        async with opened(url) as db:
            await migrate(db)
            yield db, url


async def come_to_wait(db: Database, connections: int, timeout_s: float = PATIENCE_S) -> bool:
    """Whether so many connections of this Postgres database come to wait for another's lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    async def so_many_wait() -> bool:
        async with db.read() as conn:
            return bool((await conn.execute(text(query))).scalar_one() == connections)

    return await comes_true(so_many_wait, timeout_s)


def counted(metrics: Metrics, name: str) -> float:
    return metrics.registry.get_sample_value(f"cadenza_{name}_total") or 0.0
