"""A living process on Postgres whose connections were dropped."""

from sqlalchemy import text

from cadenza.core.records import Usage
from cadenza.store.ledger import Ended
from tests.postgres import Postgres
from tests.store.moves import Progress, findings, fund, make_end, make_hold, money, opened, postgres_store, writing
from tests.store.rows import DOLLAR_NANO
from tests.store.test_owners import DROP_OTHERS


async def test_a_living_process_that_lost_its_connection_keeps_its_holds(postgres: Postgres) -> None:
    """Postgres drops all connections and with them the lock; the process still lives, and so must its hold."""
    async with postgres_store(postgres) as (db, url), opened(url) as beside:
        await fund(db, DOLLAR_NANO)
        async with writing(db) as (writer, _):
            await writer.hold(make_hold(), Progress())
            async with beside.read() as conn:
                await conn.execute(text(DROP_OTHERS))
            async with writing(beside):
                assert await writer.end(make_end(usage=Usage(100, 1))) == Ended(True, 1030)
        assert (await money(db), await findings(db)) == ((DOLLAR_NANO - 1030, 0), [])
