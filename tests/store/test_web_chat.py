"""The key of the web application: one for each account, which no request can present."""

import asyncio

from cadenza.ledger import statement
from cadenza.store.store import Store
from cadenza.store.tables import keys
from tests.store.rows import NOW_MS, add_account


async def test_an_account_has_one_web_key(store: Store) -> None:
    """It is made once, also by requests at the same time; it is found by account, is active and has every scope."""
    await add_account(store)
    assert await keys.find_web(store, "acct_a") is None
    making = [store.transact(lambda tx: keys.web_key(tx, "acct_a", NOW_MS)) for _ in range(8)]
    [digest] = set(await asyncio.gather(*making))
    assert await keys.find_web(store, "acct_a") == digest
    found = await keys.look_up(store, digest)
    assert found is not None
    assert (found.account_id, keys.state_of(found, NOW_MS)) == ("acct_a", "active")
    assert keys.scopes_of(found.scopes) == {"inference", "models", "usage"}
    assert await keys.find_web(store, "acct_b") is None


async def test_the_cost_of_an_unknown_reply(store: Store) -> None:
    """There is no cost for a reply that is not there, whatever the text of its id."""
    await add_account(store)
    for completion_id in ("chatcmpl-none", "\0", "é"):
        assert await statement.find_reply_cost(store, "acct_a", completion_id) is None
