"""Refunds of requests on both databases: once, at most what the request cost, paid credit first."""

import asyncio

import pytest

from cadenza.control.money.credit import give_credit
from cadenza.control.money.refunds import Refund, refund_request
from cadenza.control.money.statement import export_ledger, read_statement
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Operator, Owner, Usage
from cadenza.ledger import check
from cadenza.ledger.rules import Ended
from cadenza.ledger.statement import find_charge
from cadenza.store.store import Store
from cadenza.store.tables import accounts
from cadenza.store.tables.audit_events import list_newest
from tests.parts.payments.test_debts import CENT_NANO, DISPUTED, cents, pay_ten, tell
from tests.parts.payments.test_kinds_of_credit import EMAIL, newest, spend, split
from tests.store.moves import (
    ALONE,
    QUIET,
    Progress,
    cost_of,
    make_hold,
    make_outcome,
    opened,
    sweep_process,
    writing,
)
from tests.store.rows import NOW_MS

OWNER = Owner("acct_a", "acct_a@example.org")
COST_NANO = 150 * CENT_NANO


@pytest.fixture
async def charged(store: Store) -> Store:
    """An account that has paid 10.00 dollars and was granted 1.00. The request r1 cost 1.50."""
    await pay_ten(store)
    await give_credit(store, EMAIL, 100 * CENT_NANO, "", NOW_MS, COMMAND_LINE)
    await spend(store, "r1", Usage(30, 40))
    return store


async def refund(store: Store, part_nano: int | None = None, by: Operator = COMMAND_LINE) -> Refund:
    return await refund_request(store, "r1", part_nano, "a bad answer", by, NOW_MS)


@pytest.mark.parametrize(
    ("part", "paid", "granted"), [(None, 1000, 100), (150, 1000, 100), (50, 1000, 0), (49, 999, 0), (60, 1000, 10)]
)
async def test_a_request_is_refunded(charged: Store, part: int | None, paid: int, granted: int) -> None:
    """All of it or a part: what was paid for comes back first, and then granted credit. Its cost stays."""
    done = await refund(charged, None if part is None else part * CENT_NANO)
    given = 150 if part is None else part
    assert done == Refund("r1", EMAIL, given * CENT_NANO, COST_NANO)
    assert (await newest(charged), await split(charged)) == (("refund", given, granted), (paid, granted))
    assert await cost_of(charged) == COST_NANO
    event = (await list_newest(charged, "acct_a"))[0]
    assert (event.event, event.subject) == ("credit.refund", "r1")
    assert event.detail.endswith(" of 1.50 dollars: a bad answer")


@pytest.mark.parametrize("granted_nano", [0, 1000])
async def test_a_charge_that_was_corrected_is_refunded_as_it_is_now(store: Store, granted_nano: int) -> None:
    """A sweep charged the uncached price, and the late end gave a part back: a refund gives the rest of the cost."""
    await pay_ten(store)
    if granted_nano:
        await give_credit(store, EMAIL, granted_nano, "", NOW_MS, COMMAND_LINE)
    async with writing(store, timing=ALONE, bounds=QUIET) as (writer, _):
        await writer.hold(make_hold("r1"))
        writer.track("r1", Progress(7))
        await writer.mark()
        await sweep_process(store, writer.presence.name)
        ended = await writer.end(make_outcome("r1", Usage(100, 7, cached_tokens=90)))
        assert isinstance(ended, Ended)
    assert ended.corrected_nano > 0
    assert await refund(store) == Refund("r1", EMAIL, ended.charged_nano, ended.charged_nano)
    account = await accounts.get(store, "acct_a")
    assert account
    assert (account.balance_nano, account.granted_nano) == (10 * 100 * CENT_NANO + granted_nano, granted_nano)
    assert await check.find_violations(store) == []


async def test_a_request_is_refunded_once(charged: Store) -> None:
    """By whomever, and whichever part: a second refund is refused with what was refunded before."""
    await refund(charged, 50 * CENT_NANO)
    for by in (COMMAND_LINE, Operator("other@example.org")):
        with pytest.raises(ControlError, match=r"r1 was refunded before: 0\.50 of 1\.50 dollars"):
            await refund(charged, 100 * CENT_NANO, by)
    assert await split(charged) == (1000, 0)


async def test_of_two_refunds_at_once_one_is_made(charged: Store, url: str) -> None:
    """Two operators on two machines."""
    async with opened(url) as beside:
        one, two = Operator("one@example.org"), Operator("two@example.org")
        refunds = (refund(charged, by=one), refund(beside, by=two))
        results = await asyncio.gather(*refunds, return_exceptions=True)
    assert {type(one) for one in results} == {ControlError, Refund}
    assert await split(charged) == (1000, 100)


@pytest.mark.parametrize(
    ("completion_id", "part_nano", "reason", "sentence"),
    [
        ("r1", COST_NANO + 1, "why", r"1\.500000001 dollars are more than the request r1 cost: 1\.50"),
        ("r1", 0, "why", "must be above zero"),
        ("r1", None, " ", "needs a reason"),
        ("r1", None, "a\nb", "needs a reason"),
        ("r2", None, "why", "No request with this id was charged"),
        ("\x00", None, "why", "No request with this id was charged"),
    ],
)
async def test_other_refunds_are_refused(
    charged: Store, completion_id: str, part_nano: int | None, reason: str, sentence: str
) -> None:
    """More than the cost, nothing, without a reason, and of unknown requests: nothing is changed."""
    with pytest.raises(ControlError, match=sentence):
        await refund_request(charged, completion_id, part_nano, reason, COMMAND_LINE, NOW_MS)
    assert await split(charged) == (950, 0)
    assert await refund(charged)


async def test_a_request_that_cost_nothing_is_not_refunded(store: Store) -> None:
    """There is nothing to give back."""
    await pay_ten(store)
    await spend(store, "r1", Usage(0, 0))
    with pytest.raises(ControlError, match="r1 cost nothing"):
        await refund(store)


async def test_a_refund_pays_a_debt_first(charged: Store) -> None:
    """As all new credit does."""
    await tell(charged, DISPUTED, "evt_dispute")
    assert await cents(charged) == (0, 0, 50)
    await refund(charged)
    assert await cents(charged) == (100, 0, 0)


async def test_a_refund_is_shown_beside_its_charge(charged: Store) -> None:
    """On the statement, in the export of the ledger and on the operator's page of the request."""
    await refund(charged, 40 * CENT_NANO)
    refunded, charge, *_ = (await read_statement(charged, OWNER)).entries
    assert (refunded.origin, refunded.completion_id, refunded.refunded_nano) == ("refund", "r1", None)
    assert (charge.kind, charge.refunded_nano) == ("charge", 40 * CENT_NANO)
    exported = [entry["refunded_nano"] async for entry in await export_ledger(charged, EMAIL)]
    assert exported == [None, None, 40 * CENT_NANO, None]
    found = await find_charge(charged, "r1")
    assert found
    assert (found.email, found.entry.refunded_nano, found.entry.provider) == (EMAIL, 40 * CENT_NANO, "acme")
    assert await find_charge(charged, "r2") is None
