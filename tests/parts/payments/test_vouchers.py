"""Vouchers on both databases: made, redeemed once, expired, revoked."""

import asyncio
import hashlib
from typing import Any

import msgspec
import pytest

from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Owner
from cadenza.ledger import check, credit
from cadenza.parts.payments.voucher_rows import VoucherOrder, list_all
from cadenza.parts.payments.vouchers import (
    Redeemed,
    WrongCode,
    create_vouchers,
    redeem_voucher,
    revoke_voucher,
)
from cadenza.store.schema import command_references, entries, vouchers
from cadenza.store.statements import Statement
from cadenza.store.store import Store
from cadenza.store.tables import epochs
from cadenza.store.tables.audit_events import list_newest
from tests.store.moves import fund, money, opened
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of

DAY_MS = 24 * 60 * 60 * 1000


async def make(store: Store, amount_nano: int = 5 * DOLLAR_NANO, days: int | None = None) -> str:
    order = VoucherOrder(amount_nano=amount_nano, expires_days=days)
    [(code, _)] = await create_vouchers(store, order, COMMAND_LINE, NOW_MS)
    return code


async def redeem(store: Store, code: str, account: str = "a", now_ms: int = NOW_MS) -> Redeemed:
    return await redeem_voucher(store, Owner(f"acct_{account}", f"{account}@example.org"), code, now_ms)


async def test_a_voucher_gives_its_credit(store: Store) -> None:
    """A voucher adds a grant that names it, begins the next epoch, and is in the audit log of its account."""
    await fund(store, DOLLAR_NANO)
    code = await make(store, 1)
    before = await epochs.current(store, epochs.CHANGES)
    assert await redeem(store, code.lower().replace("-", " ")) == Redeemed(1, DOLLAR_NANO + 1)
    assert await epochs.current(store, epochs.CHANGES) == before + 1
    [voucher] = await list_all(store)
    _, grant = await rows_of(store, entries)
    assert (grant.kind, grant.amount_nano, grant.source) == ("grant", 1, voucher.id)
    assert (voucher.state(NOW_MS), voucher.email) == ("redeemed", "acct_a@example.org")
    [event] = await list_newest(store, "acct_a")
    assert (event.actor, event.event, event.subject) == ("a@example.org", "voucher.redeem", voucher.id)
    assert await check.find_violations(store) == []


async def test_the_store_does_not_know_the_code(store: Store) -> None:
    """Neither the code nor its secret part is in the store."""
    code = await make(store)
    assert code[8:] not in repr(await rows_of(store, vouchers))
    assert code[8:].replace("-", "") not in repr(await list_newest(store))


async def test_a_voucher_used_at_the_same_instant_gives_credit_once(store: Store, url: str) -> None:
    """Ten accounts in two processes redeem one voucher at once: one of them gets the credit."""
    for number in range(10):
        await fund(store, 0, f"{number}")
    code = await make(store)
    async with opened(url) as beside:
        done = await asyncio.gather(
            *(redeem((store, beside)[number % 2], code, f"{number}") for number in range(10)), return_exceptions=True
        )
    assert sum(isinstance(one, Redeemed) for one in done) == 1
    assert {str(one) for one in done if not isinstance(one, Redeemed)} == {"This voucher was redeemed already."}
    assert sum([(await money(store, f"{number}"))[0] for number in range(10)]) == 5 * DOLLAR_NANO
    assert len(await rows_of(store, entries)) == 1
    assert await check.find_violations(store) == []


async def test_one_account_redeems_a_voucher_once(store: Store, url: str) -> None:
    """The same account in two browsers at once gets the credit once, and is told so kindly."""
    await fund(store, 0)
    code = await make(store)
    async with opened(url) as beside:
        done = await asyncio.gather(redeem(store, code), redeem(beside, code), return_exceptions=True)
    assert sum(isinstance(one, Redeemed) for one in done) == 1
    with pytest.raises(ControlError, match="You have redeemed this voucher already"):
        await redeem(store, code)
    assert (await money(store))[0] == 5 * DOLLAR_NANO


async def test_a_voucher_that_expired_gives_nothing(store: Store) -> None:
    """From the moment it expires a voucher is refused; a millisecond before it is good."""
    await fund(store, 0)
    old, new = await make(store, days=30), await make(store, days=30)
    with pytest.raises(ControlError, match="has expired"):
        await redeem(store, old, now_ms=NOW_MS + 30 * DAY_MS)
    await redeem(store, new, now_ms=NOW_MS + 30 * DAY_MS - 1)


async def test_a_revoked_voucher_gives_nothing(store: Store) -> None:
    """An unused voucher can be revoked, by its id, its prefix or its code; a used one cannot."""
    await fund(store, 0)
    codes = [await make(store) for _ in range(3)]
    by_id = next(one.id for one in await list_all(store) if one.prefix == codes[1][:8])
    for code, name in zip(codes, (codes[0], by_id, codes[2][:8]), strict=True):
        await revoke_voucher(store, name, COMMAND_LINE, NOW_MS)
        with pytest.raises(ControlError, match="has expired"):
            await redeem(store, code)
    used = await make(store)
    await redeem(store, used)
    for name in (used, codes[0], "vch_unknown"):
        with pytest.raises(ControlError):
            await revoke_voucher(store, name, COMMAND_LINE, NOW_MS)


async def test_an_unknown_code_is_a_guess(store: Store) -> None:
    """A code that no voucher has is told apart, so that guesses can be counted."""
    await fund(store, 0)
    for code in ("", "x", "CDZ-0000-0000-0000-0000-0000", "' OR 1=1 --", "\0", "é" * 5000):
        with pytest.raises(WrongCode):
            await redeem(store, code)


async def test_a_voucher_is_still_good_if_the_balance_is_at_its_limit(store: Store) -> None:
    """A voucher that would lift the balance to its limit is refused and not used up."""
    await fund(store, credit.BALANCE_NANO_LIMIT - 1)
    await fund(store, 0, "b")
    code = await make(store)
    with pytest.raises(ControlError, match="still good"):
        await redeem(store, code)
    assert (await redeem(store, code, "b")).balance_nano == 5 * DOLLAR_NANO


BAD: dict[str, list[dict[str, Any]]] = {
    "amount: must be above zero and at most 1,000,000 dollars": [{"amount_nano": nano} for nano in (0, -1, 10**18)],
    "count: must be a whole number from 1 to 1,000": [{"count": 0}, {"count": 1001}],
    "expires_days: must be a whole number from 1 to 3,650": [{"expires_days": 0}, {"expires_days": 10**9}],
    "credit_days: must be a whole number from 1 to 3,650": [{"credit_days": 0}, {"credit_days": 3651}],
    "note: must be one line of at most 200 characters": [{"note": "a\nb"}, {"note": "x" * 201}],
}


async def test_a_bad_order_makes_no_voucher(store: Store) -> None:
    """Absurd amounts, counts, expiries and notes are refused."""
    for reason, bad in BAD.items():
        for given in bad:
            with pytest.raises(ControlError, match=f"^{reason}"):
                await create_vouchers(store, VoucherOrder(**{"amount_nano": 1, **given}), COMMAND_LINE, NOW_MS)
    assert await list_all(store) == []


async def test_a_reference_is_of_all_that_was_ordered(store: Store) -> None:
    """Another expiry, note or end of the credit is another order, and the last release's digest still is the same."""
    order = VoucherOrder(amount_nano=1, count=2, reference="a talk")
    await create_vouchers(store, order, COMMAND_LINE, NOW_MS)
    for other in ({"expires_days": 30}, {"credit_days": 7}, {"note": "a note"}, {"count": 3}):
        with pytest.raises(ControlError, match="used before for something else: new vouchers"):
            await create_vouchers(store, msgspec.structs.replace(order, **other), COMMAND_LINE, NOW_MS)
    with pytest.raises(ControlError, match="vouchers were made before: 2 of"):
        await create_vouchers(store, order, COMMAND_LINE, NOW_MS)
    former = Statement(
        command_references.update().values(arguments_digest=hashlib.sha256(repr((1, 2)).encode()).digest())
    )
    await store.transact(lambda tx: tx.change(former, {}))
    with pytest.raises(ControlError, match="vouchers were made before: 2 of"):
        await create_vouchers(store, order, COMMAND_LINE, NOW_MS)
