"""What operators read and change, over SQLite and Postgres."""

import asyncio

import pytest

from cadenza.control.account.accounts import NewAccount, add_account, suspend_account
from cadenza.control.audit_log import list_audit_events
from cadenza.control.keys import find_keys, revoke_key
from cadenza.control.money.credit import correct_credit, give_credit
from cadenza.control.requests import find_requests
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Operator, Usage
from cadenza.ledger import check
from cadenza.parts.site.accounts import set_operator
from cadenza.parts.site.operator.reading import UseHistory, get_details, get_overview, search_accounts
from cadenza.parts.site.tables.operators import totals
from cadenza.store.store import Store
from cadenza.store.tables.accounts import Account
from tests.passwords import cheap_hash
from tests.store.moves import ALONE, finish, fund, make_hold, make_outcome, take, writing
from tests.store.rows import add_key, run_sql

NOW_MS = 1_800_000_000_000
DOLLAR = 10**9
WHOLE_NANO = 2500  # the amount of an ordinary hold
BY = Operator("operator@example.org")


async def make_account(store: Store, email: str, credit_nano: int = DOLLAR) -> Account:
    new = NewAccount(email, cheap_hash("correct horse"), credit_nano)
    return await store.transact(lambda tx: add_account(tx, new, COMMAND_LINE, NOW_MS))


async def test_accounts_are_paged_by_address(store: Store) -> None:
    """Each page goes on after the last address of the one before; wildcards are plain characters."""
    for name in ("ann", "bob", "b_b"):
        await make_account(store, f"{name}@example.org")
    first = await search_accounts(store, "EXAMPLE", count=2)
    second = await search_accounts(store, "example", first.next_after or "", count=2)
    emails = [account.email for account in first.accounts + second.accounts]
    assert sorted(emails) == ["ann@example.org", "b_b@example.org", "bob@example.org"]
    assert (len(second.accounts), second.next_after) == (1, None)
    assert [one.email for one in (await search_accounts(store, "b_b")).accounts] == ["b_b@example.org"]
    assert (await search_accounts(store, "\x00")).accounts == []


async def test_the_last_operator_stays_one(store: Store) -> None:
    """Of two operators who take the role from each other at the same instant, one keeps it."""
    both = [await make_account(store, f"{name}@example.org") for name in ("ann", "bob")]
    for account in both:
        await set_operator(store, account.email, BY, NOW_MS, is_operator=True)
    ended = await asyncio.gather(
        *(set_operator(store, account.email, BY, NOW_MS, is_operator=False) for account in both),
        return_exceptions=True,
    )
    assert [type(one) for one in ended if isinstance(one, Exception)] == [ControlError]
    assert (await get_overview(store, NOW_MS)).totals.operators == 1


async def test_an_operator_is_not_suspended(store: Store) -> None:
    """An operator must lose the role first; a suspended account cannot get it."""
    account = await make_account(store, "ann@example.org")
    await set_operator(store, account.email, BY, NOW_MS, is_operator=True)
    with pytest.raises(ControlError, match="Take the role away first"):
        await suspend_account(store, account.email, BY, NOW_MS)
    other = await make_account(store, "bob@example.org")
    await suspend_account(store, other.email, BY, NOW_MS)
    with pytest.raises(ControlError, match="is suspended"):
        await set_operator(store, other.email, BY, NOW_MS, is_operator=True)
    totals = (await get_overview(store, NOW_MS)).totals
    assert (totals.accounts, totals.operators, totals.suspended) == (2, 1, 1)


async def test_corrections_never_go_below_zero(store: Store) -> None:
    """Of many corrections at once, only as many are made as the credit pays for, and the ledger holds."""
    account = await make_account(store, "ann@example.org", 3 * DOLLAR)
    ended = await asyncio.gather(
        *(correct_credit(store, account.email, -DOLLAR, "a reason", BY, NOW_MS) for _ in range(5)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, ControlError) for one in ended) == 2
    details = await get_details(store, account.id, NOW_MS)
    assert details
    assert (details.account.balance_nano, len(details.audit_events)) == (0, 4)
    assert await check.find_violations(store) == []


async def test_unknown_things_are_not_found(store: Store) -> None:
    """Ids that nothing has, and text that no store could hold, find nothing."""
    assert await get_details(store, "acct_unknown", NOW_MS) is None
    assert await get_details(store, "\x00", NOW_MS) is None
    assert await find_keys(store, "key_unknown", NOW_MS) == []
    assert await find_keys(store, "sk-cdz-\x0012345", NOW_MS) == []


async def test_the_key_of_the_web_chat_is_not_revoked(store: Store) -> None:
    """An operator revokes any key but that of the web chat; the audit event is written once."""
    account = await make_account(store, "ann@example.org")
    for key_id in ("key_own", "key_web"):
        await add_key(store, key_id, account_id=account.id)
    await run_sql(store, "UPDATE keys SET origin = 'web' WHERE id = 'key_web'")
    assert [(await revoke_key(store, BY, "key_own", NOW_MS)).was_revoked for _ in range(2)] == [False, True]
    with pytest.raises(ControlError, match="web chat"):
        await revoke_key(store, BY, "key_web", NOW_MS)
    details = await get_details(store, account.id, NOW_MS)
    assert details
    states = {key.id: (key.state, key.is_web) for key in details.keys}
    assert states == {"key_own": ("revoked", False), "key_web": ("active", True)}
    assert [one.event for one in details.audit_events] == ["key.revoke", "account.create"]


async def test_usage_of_today_is_by_class(store: Store) -> None:
    """Requests since midnight are counted by class, with those that failed; those of yesterday are not."""
    midnight_ms = NOW_MS - NOW_MS % 86_400_000
    await fund(store, DOLLAR)
    for number, started_at in enumerate((midnight_ms - 1, midnight_ms, midnight_ms + 1)):
        hold = make_hold(f"chatcmpl-{started_at:011x}{number}", started_at=started_at)
        await take(store, hold)
        await finish(store, hold, Usage(100, 10))
    [used] = (await get_overview(store, midnight_ms + 5)).today
    assert (used.class_id, used.requests, used.failed, used.prompt_tokens) == ("forte", 2, 0, 200)


async def test_the_overview_reads_steps_of_time(store: Store) -> None:
    """Each step has its requests, and zeros without any; a request id of the last day leads to its request."""
    step_ms = 60_000
    await fund(store, DOLLAR)
    for number, started_at in enumerate((NOW_MS - 1, NOW_MS, NOW_MS + 2 * step_ms)):
        hold = make_hold(f"chatcmpl-{started_at:011x}{number}", started_at=started_at)
        await take(store, hold)
        await finish(store, hold, Usage(100, 10))
    await run_sql(store, f"UPDATE usage SET first_byte_ms = 20000, request_id = 'req_1' WHERE started_at >= {NOW_MS}")
    history = UseHistory(store)
    steps = await history.read(NOW_MS, step_ms, 3)
    found = [(one.requests, one.prompt_tokens, sum(one.first_tokens)) for one in steps]
    assert found == [(1, 100, 1), (0, 0, 0), (1, 100, 1)]
    assert steps[0].first_tokens[-2] == 1
    later = [await history.read(NOW_MS, step_ms, 60) for _ in range(2)]  # the second time, old steps are remembered
    assert (later[0] == later[1], later[1][:3] == steps) == (True, True)
    assert len(await find_requests(store, "req_1", NOW_MS + step_ms)) == 2
    assert await find_requests(store, "req_1", NOW_MS + 2 * 86_400_000) == []


async def test_every_act_is_written_with_the_change(store: Store) -> None:
    """A change and its audit event are written together; a refused change leaves no event."""
    account = await make_account(store, "ann@example.org")
    await give_credit(store, account.email, DOLLAR, "a note", NOW_MS, BY)
    with pytest.raises(ControlError):
        await give_credit(store, account.email, 2**62, "", NOW_MS, BY)
    with pytest.raises(ControlError, match="one line"):
        await give_credit(store, account.email, DOLLAR, "two\nlines", NOW_MS, BY)
    event, created = await list_audit_events(store, "ann@example.org")
    assert created.event == "account.create"
    assert (event.actor, event.event, event.email) == (BY.name, "credit.grant", account.email)
    assert event.detail == "1.00 dollars: a note"
    assert await list_audit_events(store) == [event, created]


async def test_a_kept_reserve_is_not_held_in_the_totals(store: Store) -> None:
    """Only what requests hold while there is nothing to spare counts as held."""
    await fund(store, DOLLAR)
    async with writing(store, timing=ALONE) as (writer, _):
        await writer.hold(make_hold())
        await writer.end(make_outcome(usage=Usage(100, 1)))
        assert (await totals(store)).held_nano == 0
    await fund(store, WHOLE_NANO, "b")
    async with writing(store, timing=ALONE) as (writer, _):
        await writer.hold(make_hold("r2", account="b"))
        assert (await totals(store)).held_nano == WHOLE_NANO
        await writer.end(make_outcome("r2", account="b"))
