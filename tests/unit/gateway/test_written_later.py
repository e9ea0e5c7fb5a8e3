"""What is written to the store later: it waits for a store that is down, and only what the store refuses is lost."""

from sqlalchemy import text

from cadenza.core.records import Outcome, Route
from cadenza.gateway.written_later import AGAIN_MS, AttemptLog, DetailLog, KeyUse
from cadenza.store.schema import keys
from cadenza.store.statements import Statement
from tests.unit.gateway.funded_store import ACCOUNT_ID, KEY_ID, FundedStore

REFUSED = Outcome(
    request_id="req_1", endpoint="chat", status=429, duration_ms=3, ended_at=1, key_id=KEY_ID, account_id=ACCOUNT_ID
)
REFUSE_ROWS = """
    CREATE TRIGGER refuse_details BEFORE INSERT ON request_details BEGIN SELECT RAISE(ABORT, 'refused'); END"""


async def test_everything_waits_for_a_store_that_is_down(funded: FundedStore) -> None:
    """Uses of keys, attempts and details are kept; once the store is back, the last use is written."""
    observer, key_use = funded.observer, KeyUse(funded.store, funded.observer.log)
    key_use.note(KEY_ID)
    observer.details.note(REFUSED)
    observer.attempts.add(Route("acme", "one", 1000, 100), "failed")
    funded.store.is_down = True
    for log in (key_use, AttemptLog(funded.store, observer), DetailLog(funded.store, observer)):
        await log.write()
    [waiting], [attempts] = observer.details.take(), observer.attempts.take().values()
    assert (waiting.outcome, attempts.requests) == (REFUSED, 1)
    assert [row["last_used_at"] for row in await funded.rows(keys)] == [None]
    funded.store.is_down = False
    await key_use.write()
    assert [row["last_used_at"] is not None for row in await funded.rows(keys)] == [True]


async def test_the_last_use_of_a_busy_key_is_written_twice_a_minute(funded: FundedStore) -> None:
    """The first use at once, later ones after half a minute, and what is left at the end."""
    now_ms, written = 1_000_000, list[int | None]()
    key_use = KeyUse(funded.store, funded.observer.log, lambda: now_ms)
    for passed_ms, is_last in ((0, False), (1000, False), (AGAIN_MS - 1000, False), (1, True)):
        now_ms += passed_ms
        key_use.note(KEY_ID)
        await key_use.write(is_last=is_last)
        written += [row["last_used_at"] for row in await funded.rows(keys)]
    first_ms = 1_000_000
    assert written == [first_ms, first_ms, first_ms + AGAIN_MS, first_ms + AGAIN_MS + 1]


async def test_details_that_the_store_refuses_are_dropped(funded: FundedStore) -> None:
    """It would refuse them again, with all that follow."""
    await funded.store.transact(lambda tx: tx.change(Statement(text(REFUSE_ROWS)), {}))
    funded.observer.details.note(REFUSED)
    await DetailLog(funded.store, funded.observer).write()
    assert funded.observer.details.take() == []
