"""The simulated Postgres server does what the real one does, as far as the model of its tables does not say it."""

from random import Random

import asyncpg  # type: ignore[import-untyped]

from cadenza.parts.postgres.connection import PostgresAddress, PostgresBounds
from tests.simulation.database import ModelDatabase
from tests.simulation.network import Link
from tests.simulation.postgres import PostgresServer, SimulatedConnection
from tests.simulation.scheduler import Scheduler, VirtualLoop

LOCK = "SELECT number FROM epochs WHERE name = $1 FOR UPDATE"
ADDRESS, BOUNDS = PostgresAddress("postgresql://simulated/cadenza"), PostgresBounds()


def test_a_lock_timeout_frees_the_locks_of_its_transaction_before_its_rollback() -> None:
    """Another transaction that waits for one of them goes on, as on Postgres."""
    scheduler = Scheduler(Random(1))
    server = PostgresServer(scheduler, ModelDatabase("postgres"), Random(2))
    loop = VirtualLoop(scheduler, "client")  # type: ignore[abstract]
    link = Link(scheduler, loop, Random(3))
    locked: list[str] = []

    async def lock(connection: SimulatedConnection, who: str, *names: str) -> None:
        for name in names:
            try:
                await connection.fetch(LOCK, name)
                locked.append(f"{who} {name}")
            except asyncpg.LockNotAvailableError:
                locked.append(f"{who} gives up")

    async def run() -> None:
        one, two, three = [await server.connect(link, ADDRESS, BOUNDS) for _ in range(3)]
        for connection, begin in ((one, ""), (two, "; SET LOCAL lock_timeout = 100"), (three, "")):
            await connection.execute(f"BEGIN{begin}")
        await lock(one, "one", "changes")
        await lock(two, "two", "classes")
        waiting = loop.start(lock(three, "three", "classes"))
        await lock(two, "two", "changes")
        await waiting

    done = loop.start(run())
    scheduler.run(0.5)
    done.result()
    assert locked == ["one changes", "two classes", "two gives up", "three classes"]
