"""The key of the web application: one for each account, which no request can present."""

from cadenza.ledger import statement
from cadenza.store.store import Store
from tests.store.rows import add_account


async def test_the_cost_of_an_unknown_reply(store: Store) -> None:
    """There is no cost for a reply that is not there, whatever the text of its id."""
    await add_account(store)
    for completion_id in ("chatcmpl-none", "\0", "é"):
        assert await statement.find_reply_cost(store, "acct_a", completion_id) is None
