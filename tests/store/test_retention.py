"""The limits of [retention] on both databases: what is too old goes, in slices, and one process does it."""

import asyncio
import io

from cadenza.control.retention_keeper import TURN_MS, RetentionKeeper
from cadenza.core.chat import new_completion_id
from cadenza.core.records import Operator, Usage
from cadenza.core.retention_limits import RetentionLimits
from cadenza.core.spans import DAY_MS
from cadenza.observe import make_log
from cadenza.parts.site.tables import links
from cadenza.parts.site.tables import sessions as session_rows
from cadenza.parts.site.tables.links import Link
from cadenza.parts.site.tables.sessions import Session
from cadenza.store.schema import audit_events, retention, sessions, usage
from cadenza.store.store import Store, StoreRefused
from cadenza.store.tables import expired_rows
from cadenza.store.tables.audit_events import AuditEvent, add
from tests.store.moves import finish, fund, make_hold, opened, take
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of, run_sql

LIMITS = RetentionLimits(session_days=10, session_idle_days=5, audit_event_days=30, usage_days=40)
NOTHING = dict.fromkeys(expired_rows.REMOVALS, 0)


def keeper(store: Store, limits: RetentionLimits = LIMITS) -> RetentionKeeper:
    return RetentionKeeper(store, limits, make_log(io.StringIO()), pause_s=0.0)


async def fill(store: Store) -> None:
    """Rows of each kind on both sides of its limit."""
    await fund(store, DOLLAR_NANO)
    times = {"idle": (6, 6, 20), "old": (11, 0, 20), "over": (1, 1, -1), "live": (4, 4, 1)}
    for name, (created, used, left) in times.items():
        at = [NOW_MS - created * DAY_MS, NOW_MS - used * DAY_MS, NOW_MS, NOW_MS + left * DAY_MS]
        session = Session(name.encode().ljust(32), "acct_a", "complete", "", *at)
        await store.transact(lambda tx, one=session: session_rows.add(tx, one))  # type: ignore[misc]
    for number, expires_at in enumerate((NOW_MS - 1, NOW_MS + DAY_MS)):
        link = Link(bytes([number]) * 32, "verify", "acct_a", "", 0, expires_at)
        await store.transact(lambda tx, one=link: links.add(tx, one))  # type: ignore[misc]
    for days, account_id in ((31, "acct_a"), (31, None), (29, "acct_a")):
        event = AuditEvent(NOW_MS - days * DAY_MS, Operator("somebody"), f"key.day{days}", account_id)
        await store.transact(lambda tx, one=event: add(tx, one))  # type: ignore[misc]
    for days in (42, 41, 39):
        hold = make_hold(new_completion_id(NOW_MS - days * DAY_MS), started_at=NOW_MS - days * DAY_MS)
        await take(store, hold)
        await finish(store, hold, Usage(10, 1))


async def test_what_is_older_than_the_limits_goes(store: Store) -> None:
    """And nothing else: live sessions and links, newer events, events of the service, and newer requests stay."""
    await fill(store)
    assert await keeper(store, RetentionLimits(365, 365)).poll(NOW_MS) == NOTHING | {"sessions": 1, "links": 1}
    assert await keeper(store).poll(NOW_MS + TURN_MS) == NOTHING | {"sessions": 2, "audit_events": 1, "usage": 2}
    assert [row.digest.strip() for row in await rows_of(store, sessions)] == [b"live"]
    kept = {(row.event, row.account_id) for row in await rows_of(store, audit_events)}
    assert kept == {("key.day31", None), ("key.day29", "acct_a")}
    assert [row.started_at for row in await rows_of(store, usage)] == [NOW_MS - 39 * DAY_MS]
    states, oldest = await rows_of(store, retention), await expired_rows.read_oldest(store)
    assert {one.name: one.kept_from for one in states}["usage"] == NOW_MS - NOW_MS % DAY_MS - 40 * DAY_MS
    assert (oldest["sessions"], oldest["requests"]) == (NOW_MS - 4 * DAY_MS, NOW_MS - 39 * DAY_MS)


async def test_one_process_of_a_fleet_does_the_work(store: Store, url: str) -> None:
    """Of several that look at once, and of those that look soon after, each row is removed by one."""
    await fill(store)
    async with opened(url) as beside:
        found = await asyncio.gather(*(keeper(one).poll(NOW_MS) for one in (store, beside) * 2))
    assert sum([one["usage"] for one in found]) == 2
    assert [one["sessions"] for one in found].count(0) == 3
    assert await keeper(store).poll(NOW_MS + 1) == NOTHING


async def test_the_audit_log_stays_append_only(store: Store) -> None:
    """The database refuses to remove an event that no limit allows to be removed."""
    await fill(store)
    for change in ("DELETE FROM audit_events", "DELETE FROM audit_events WHERE event = 'key.day31'"):
        try:
            await run_sql(store, change)
        except StoreRefused:
            continue
        raise AssertionError(change)
    assert len(await rows_of(store, audit_events)) == 3
