"""A living process on Postgres whose connections were dropped."""

from cadenza.core.records import Usage
from cadenza.store.ledger import Ended
from tests.postgres import Postgres
from tests.store.aside import DROP_OTHERS, aside
from tests.store.moves import findings, fund, make_hold, make_outcome, money, opened, postgres_store, writing
from tests.store.rows import DOLLAR_NANO


async def test_a_living_process_that_lost_its_connections_keeps_its_holds(postgres: Postgres) -> None:
    """Postgres drops all connections, and the lock with them; another process's sweep leaves the hold open."""
    async with postgres_store(postgres) as (store, url), opened(url) as beside:
        await fund(store, DOLLAR_NANO)
        async with writing(store) as (writer, _):
            await writer.hold(make_hold())
            async with aside(url) as other:
                await other.rows(DROP_OTHERS)
            async with writing(beside):
                assert await writer.end(make_outcome(usage=Usage(100, 1))) == Ended(True, 1030)
        assert (await money(store), await findings(store)) == ((DOLLAR_NANO - 1030, 0), [])
