"""Details of requests, and the newest requests of all accounts, over SQLite and Postgres."""

import msgspec

from cadenza.control.requests import BEHIND_MAX, RequestFollower, explain, parse_filter
from cadenza.core.records import Outcome, RequestStep, Usage
from cadenza.observe.details import EndedRequest
from cadenza.store.schema import request_details
from cadenza.store.store import Store
from cadenza.store.tables import request_details as details
from tests.store.moves import finish, make_hold, take
from tests.store.rows import NOW_MS, rows_of

DAY_MS = 24 * 60 * 60 * 1000
REFUSED = Outcome(
    request_id="req_refused",
    endpoint="chat",
    status=429,
    duration_ms=20,
    ended_at=NOW_MS,
    key_id="key_a",
    account_id="acct_a",
    cause="slots",
    steps=[RequestStep(1, "grounded", cause="memory=2")],
)


async def add(store: Store, *outcomes: Outcome) -> None:
    await details.add(store, [EndedRequest(one, None) for one in outcomes])


async def test_steps_of_one_millisecond_are_in_order(rich: Store) -> None:
    """Grounding comes before the hold, and the hold before the routes."""
    failed = RequestStep(1, "failed", "acme/large", cause="unreachable")
    await add(rich, msgspec.structs.replace(REFUSED, held_s=0.001, steps=[*REFUSED.steps, failed]))
    [found] = await explain(rich, "req_refused", NOW_MS)
    assert [step.text.split()[0] for step in found.steps] == ["reference", "credit", "acme/large", "it"]


async def test_old_details_are_removed(rich: Store) -> None:
    """After three days; the newest row stays, so that no number is given twice."""
    for age_days in (4, 1, 4):
        await add(rich, msgspec.structs.replace(REFUSED, ended_at=NOW_MS - age_days * DAY_MS))
    await rich.transact(lambda tx: details.remove_old(tx, NOW_MS))
    assert [row.id for row in await rows_of(rich, request_details)] == [2, 3]


async def test_a_follower_sees_each_request_once(rich: Store) -> None:
    """Charged ones and refused ones; a filter leaves out the others."""
    every, failed = RequestFollower(rich, parse_filter()), RequestFollower(rich, parse_filter(status="4xx"))
    assert (await every.newest(10), await failed.newest(10)) == ([], [])
    hold = make_hold()
    await take(rich, hold)
    await finish(rich, hold, Usage(10, 5))
    await add(rich, REFUSED)
    found, missed = await every.more()
    assert (sorted(one.status for one in found), missed) == ([200, 429], 0)
    assert [one.request_id for one in (await failed.more())[0]] == ["req_refused"]
    assert await every.more() == ([], 0)
    assert [one.status for one in await RequestFollower(rich, parse_filter(key="key_a", status="200")).newest(5)] == [
        200
    ]


async def test_a_clock_that_was_set_back_changes_no_order(rich: Store) -> None:
    """Requests come in the order in which the store got them, each once, whatever their clocks said."""
    ended = [NOW_MS, NOW_MS - DAY_MS, NOW_MS - DAY_MS + 1, NOW_MS - 2 * DAY_MS]
    written = [msgspec.structs.replace(REFUSED, request_id=f"req_{n}", ended_at=at) for n, at in enumerate(ended)]
    follower = RequestFollower(rich, parse_filter())
    await follower.newest(10)
    await add(rich, *written[:2])
    assert [one.request_id for one in await RequestFollower(rich, parse_filter()).newest(1)] == ["req_1"]
    assert [one.request_id for one in (await follower.more())[0]] == ["req_0", "req_1"]
    await add(rich, *written[2:])
    assert [one.request_id for one in (await follower.more())[0]] == ["req_2", "req_3"]
    assert await follower.more() == ([], 0)
    newest = await RequestFollower(rich, parse_filter()).newest(10)
    assert [one.request_id for one in newest] == ["req_0", "req_1", "req_2", "req_3"]


async def test_a_follower_that_falls_behind_goes_on_with_the_newest(rich: Store) -> None:
    """It is told how many requests it missed."""
    follower = RequestFollower(rich, parse_filter())
    await follower.newest(1)
    await add(rich, *([REFUSED] * (BEHIND_MAX + 5)))
    found, missed = await follower.more()
    assert (len(found), missed) == (BEHIND_MAX, 5)


async def test_a_refused_request_is_explained(rich: Store) -> None:
    """By its request id: it has no other."""
    await add(rich, REFUSED)
    [found] = await explain(rich, "req_refused", NOW_MS)
    assert (found.status, found.cause, found.email, found.completion_id) == (429, "slots", "acct_a@example.org", None)
    assert "slots" in found.end
    assert "reference material was added: memory=2" in [step.text for step in found.steps]
