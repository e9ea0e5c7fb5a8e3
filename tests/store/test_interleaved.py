"""Two transactions on a real Postgres, statement by statement in an order that a seed decides.

They must leave what they leave one after the other, in either order. The simulation (tests/simulation) does not have
this: there, a whole transaction happens at one moment.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from itertools import combinations_with_replacement
from random import Random
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from cadenza.core.records import Cap, Usage
from cadenza.fleet.presence import FENCE, FENCED
from cadenza.ledger import credit, sweeps
from cadenza.ledger.cap_rows import set_cap
from cadenza.ledger.origins import CreditMove
from cadenza.parts.postgres.connection import PostgresAddress, PostgresBounds, connect
from cadenza.parts.postgres.store import PostgresStore
from cadenza.store.schema import accounts, cap_holds, caps, debts, entries, idempotency, metadata, reserves, usage
from cadenza.store.store import Store, StoreRefused
from tests.store.moves import ON_POSTGRES, PATIENCE_S, findings, finish, fund, make_hold, register, take
from tests.store.rows import NOW_MS, add_key, rows_of

PARTS = 4  # of all pairs: tests that can run at once
POLL_S = 0.001
LITTLE_NANO = 6000  # two holds of 2,500, and no third
TRIES = 3  # the writer tries a batch again that was refused because its reserve changed
KEY = b"key".ljust(32, b"-")
STATE = {
    accounts: ("id", "balance_nano", "held_nano", "granted_nano", "debt_nano"),
    reserves: ("account_id", "process", "amount_nano"),
    entries: ("kind", "origin", "amount_nano", "granted_nano", "completion_id"),
    usage: ("completion_id", "cost_nano", "source"),
    idempotency: ("completion_id", "process"),
    debts: ("source", "left_nano"),
    caps: ("key_id", "spent_nano"),
    cap_holds: ("key_id", "process", "amount_nano"),
}

State = list[list[tuple[Any, ...]]]
Operation = Callable[[Store, int], Awaitable[Any]]


def of_process(number: int) -> str:
    return "proc_a" if number == 0 else "proc_b"


async def hold(store: Store, number: int) -> Any:
    return await take(store, make_hold(f"new{number}"), of_process(number))


async def hold_with_a_key(store: Store, number: int) -> Any:
    return await take(store, make_hold(f"new{number}", key=KEY), of_process(number))


async def hold_of_a_cap(store: Store, number: int) -> Any:
    return await take(store, make_hold(f"new{number}", key_id="key_b", is_capped=True), of_process(number))


async def end(store: Store, _: int) -> Any:
    return await finish(store, make_hold("old"), Usage(100, 10), process="proc_a", is_uncertain=True)


async def grant(store: Store, number: int) -> Any:
    move = CreditMove("acct_a", "grant", 1000, "", NOW_MS, f"grant {number}", expires_at=NOW_MS + 1)
    return await store.transact(lambda tx: credit.give(tx, move))


async def correct(store: Store, number: int) -> Any:
    move = CreditMove("acct_a", "correction", 4000, "", NOW_MS, f"correction {number}")
    return await store.transact(lambda tx: credit.take(tx, move))


async def expire(store: Store, _: int) -> Any:
    return await store.transact(lambda tx: credit.expire(tx, "acct_a", NOW_MS + 2))


async def sweep(store: Store, _: int) -> Any:
    await store.transact(lambda tx: tx.change(FENCE, {"of": "proc_a", "last": 0, "fenced": FENCED}))
    while await sweeps.free_process(store, "proc_a", NOW_MS + 1000, lambda _: None):
        pass


OPERATIONS: list[Operation] = [hold, hold_with_a_key, hold_of_a_cap, end, grant, correct, expire, sweep]
PAIRS = [*enumerate(combinations_with_replacement(OPERATIONS, 2))]  # with the seed of each


class Turns:
    """Lets one of several sessions run its next statement, in the order of a seed."""

    def __init__(self, seed: int, watcher: Any) -> None:
        self._random = Random(seed)
        self._watcher = watcher
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._came = asyncio.Event()
        self.pids: dict[int, int] = {}

    async def wait(self, number: int) -> None:
        self._waiting[number] = turn = asyncio.get_running_loop().create_future()
        self._came.set()
        await turn

    async def give(self, tasks: list["asyncio.Task[Any]"]) -> None:
        """Give turns until all have ended."""
        for task in tasks:
            task.add_done_callback(lambda _: self._came.set())
        while running := {number for number, task in enumerate(tasks) if not task.done()}:
            if await self._are_waiting(running):
                self._waiting.pop(self._random.choice(sorted(self._waiting))).set_result(None)

    async def _are_waiting(self, running: set[int]) -> bool:
        """Whether each waits for its turn, or for a lock that another one has."""
        self._came.clear()
        if not self._waiting.keys() >= running:
            blocked = "SELECT cardinality(pg_blocking_pids($1)) > 0"
            for number in running - self._waiting.keys():
                if number not in self.pids or not await self._watcher.fetchval(blocked, self.pids[number]):
                    await asyncio.wait([asyncio.ensure_future(self._came.wait())], timeout=POLL_S)
                    return False
        return bool(self._waiting)


class TurnConnection:
    """A connection whose statements wait for their turn."""

    def __init__(self, connection: Any, turns: Turns, number: int) -> None:
        self._connection = connection
        self._turns = turns
        self._number = number

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._connection, name)
        if name not in {"execute", "executemany", "fetch", "fetchrow"}:
            return found

        async def in_turn(*values: Any, **options: Any) -> Any:
            await self._turns.wait(self._number)
            return await found(*values, **options)

        return in_turn


async def begin(store: Store, watcher: Any) -> None:
    """One account with little credit, a key with a cap, and two processes, of which the first runs a request."""
    tables = (*STATE, *[metadata.tables[name] for name in ("usage_days", "credit_lots", "marks", "processes", "keys")])
    await watcher.execute("; ".join(f"DELETE FROM {table}" for table in sorted({*map(str, tables)})))
    await fund(store, LITTLE_NANO)
    await add_key(store, "key_b")
    await store.transact(lambda tx: set_cap(tx, "acct_a", "key_b", Cap(3000, "total"), NOW_MS))
    for process in ("proc_a", "proc_b"):
        await register(store, process)
    await take(store, make_hold("old"), "proc_a")


async def run(operation: Operation, store: Store, number: int) -> None:
    """Run it as the writer does, which tries again what the store refused."""
    for _ in range(TRIES):
        with contextlib.suppress(StoreRefused):
            await operation(store, number)
            return


async def state_of(store: Store) -> State:
    assert await findings(store) == []
    return [
        sorted([tuple(getattr(row, name) for name in columns) for row in await rows_of(store, table)], key=repr)
        for table, columns in STATE.items()
    ]


async def one_after_the_other(store: Store, watcher: Any, pair: list[tuple[int, Operation]]) -> State:
    await begin(store, watcher)
    for number, operation in pair:
        await run(operation, store, number)
    return await state_of(store)


async def interleaved(store: Store, url: str, watcher: Any, pair: list[tuple[int, Operation]], seed: int) -> State:
    await begin(store, watcher)
    turns = Turns(seed, watcher)

    async def act(number: int, operation: Operation) -> None:
        async def open_connection(address: PostgresAddress, bounds: PostgresBounds, **options: Any) -> Any:
            connection = await connect(address, bounds, **options)
            turns.pids[number] = connection.get_server_pid()
            return TurnConnection(connection, turns, number)

        own = PostgresStore(url, PostgresBounds().with_waits_of(PATIENCE_S), open_connection)
        await run(operation, own, number)
        await own.close()

    async with asyncio.timeout(PATIENCE_S):
        tasks = [asyncio.create_task(act(number, operation)) for number, operation in pair]
        await turns.give(tasks)
        await asyncio.gather(*tasks)
    return await state_of(store)


@pytest.mark.parametrize("part", range(PARTS))
@ON_POSTGRES
async def test_two_transactions_end_as_one_after_the_other(store: Store, url: str, part: int) -> None:
    """Holds, ends, grants, corrections, expiry and sweeps of one account, as two sessions mix their statements."""
    watcher = await asyncpg.connect(url)
    try:
        await watcher.execute("SET session_replication_role = replica")
        for seed, operations in PAIRS[part::PARTS]:
            pair = [*enumerate(operations)]
            allowed = [await one_after_the_other(store, watcher, order) for order in (pair, pair[::-1])]
            found = await interleaved(store, url, watcher, pair, seed)
            names = [one.__name__ for one in operations]
            assert found in allowed, f"seed {seed}: {names}: {found}, and not one of {allowed}"
    finally:
        await watcher.close()
