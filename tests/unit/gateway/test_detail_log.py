"""What becomes of the details of requests that the store does not take."""

from sqlalchemy import text

from cadenza.core.records import Outcome
from cadenza.gateway.written_later import DetailLog
from cadenza.store.statements import Statement
from tests.unit.gateway.funded_store import ACCOUNT_ID, KEY_ID, FundedStore

REFUSED = Outcome(
    request_id="req_1", endpoint="chat", status=429, duration_ms=3, ended_at=1, key_id=KEY_ID, account_id=ACCOUNT_ID
)
REFUSE_ROWS = """
    CREATE TRIGGER refuse_details BEFORE INSERT ON request_details BEGIN SELECT RAISE(ABORT, 'refused'); END"""


async def test_details_wait_for_a_store_that_is_down(funded: FundedStore) -> None:
    """They are kept, and written once it is back."""
    funded.observer.details.note(REFUSED)
    funded.store.is_down = True
    await DetailLog(funded.store, funded.observer).write()
    [waiting] = funded.observer.details.take()
    assert waiting.outcome is REFUSED


async def test_details_that_the_store_refuses_are_dropped(funded: FundedStore) -> None:
    """It would refuse them again, with all that follow."""
    await funded.store.transact(lambda tx: tx.change(Statement(text(REFUSE_ROWS)), {}))
    funded.observer.details.note(REFUSED)
    await DetailLog(funded.store, funded.observer).write()
    assert funded.observer.details.take() == []
