"""Accounts: created in one transaction, changed with a line in the audit log, credited exactly."""

import re
from typing import Any

import pytest
from sqlalchemy import select

from cadenza.control.account.accounts import (
    NewAccount,
    add_account,
    create_account,
    find_accounts,
    list_accounts,
)
from cadenza.control.account.erasure import begin_erasure
from cadenza.control.account.export import begin_export
from cadenza.control.money.credit import give_credit
from cadenza.core.errors import ControlError, Unknown
from cadenza.core.records import COMMAND_LINE, Owner
from cadenza.ledger.credit import BALANCE_NANO_LIMIT
from cadenza.store.schema import accounts, entries
from cadenza.store.statements import Statement
from cadenza.store.store import Store
from cadenza.store.tables.accounts import Account, AccountsFound

NOW_MS = 1_800_000_000_000
FIVE_NANO = 5_000_000_000
EMAIL = "owner@example.org"


async def add(store: Store, credit_nano: int = 0) -> Account:
    new = NewAccount(EMAIL, "", credit_nano, "forte")
    return await store.transact(lambda tx: add_account(tx, new, COMMAND_LINE, NOW_MS))


async def entries_of(store: Store) -> list[tuple[str, int, str]]:
    found = select(entries.c.kind, entries.c.amount_nano, entries.c.note).order_by(entries.c.id)
    return [(kind, amount_nano, note) for kind, amount_nano, note in await store.rows(Statement(found), {})]


async def test_an_account_is_created_with_its_opening_credit(store: Store) -> None:
    """The returned record is the stored one, and its credit is an entry of the ledger."""
    account = await create_account(store, " Owner@Example.ORG ", FIVE_NANO, "mezzo", NOW_MS)
    assert re.fullmatch(r"acct_[A-Za-z0-9_-]{24}", account.id)
    assert account == Account(account.id, EMAIL, "mezzo", FIVE_NANO, 0, NOW_MS, granted_nano=FIVE_NANO)
    assert await list_accounts(store) == [account]
    assert await entries_of(store) == [("grant", FIVE_NANO, "opening credit")]

    [row] = await store.rows(Statement(select(accounts)), {})
    assert not dict(zip(accounts.c.keys(), row, strict=True))["password_hash"]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"email": "OWNER@example.org"}, r"an account for owner@example\.org already"),
        *(
            ({"email": email}, r"write it like name@example\.org")
            for email in ("", "owner", "@example.org", "a@", "a b@example.org", "a@b@c", "a@-", "a\x00@b")
        ),
        ({"email": f"{'a' * 250}@b.org"}, r"write it like name@example\.org"),
        ({"preferred_class": "piano"}, "choose one of mezzo, forte, fortissimo"),
        ({"credit_nano": -1}, "from zero"),
        ({"credit_nano": BALANCE_NANO_LIMIT}, "from zero"),
    ],
)
async def test_an_impossible_account_is_refused(store: Store, order: dict[str, Any], reason: str) -> None:
    """The refusal says what is possible; no account and no credit is made."""
    account = await add(store)
    wanted = {"email": "new@example.org", "credit_nano": FIVE_NANO, "preferred_class": "forte"}
    with pytest.raises(ControlError, match=reason):
        await create_account(store, **{**wanted, **order}, now_ms=NOW_MS)
    assert (await list_accounts(store), await entries_of(store)) == ([account], [])


async def test_which_accounts_there_are(store: Store) -> None:
    """A start learns whether there are accounts, others than the demo account, and an operator."""
    assert await find_accounts(store, besides=EMAIL) == AccountsFound(False, False, False)
    await add(store)
    assert await find_accounts(store, besides=EMAIL) == AccountsFound(True, False, False)
    assert await find_accounts(store, besides="demo@localhost") == AccountsFound(True, True, False)
    other = NewAccount("other@example.org", is_operator=True)
    await store.transact(lambda tx: add_account(tx, other, COMMAND_LINE, NOW_MS))
    assert await find_accounts(store, besides=EMAIL) == AccountsFound(True, True, True)


async def test_credit_is_given(store: Store) -> None:
    """Credit adds to the balance and makes an entry with its note."""
    await add(store, FIVE_NANO)
    account = (await give_credit(store, "Owner@example.org", 20, "a gift", NOW_MS, COMMAND_LINE)).account
    assert account.balance_nano == FIVE_NANO + 20
    assert await list_accounts(store) == [account]
    assert (await entries_of(store))[1:] == [("grant", 20, "a gift")]


@pytest.mark.parametrize(
    ("email", "amount_nano", "note", "reason"),
    [
        ("nobody@example.org", 1, "", "no account"),
        ("no address", 1, "", "no account"),
        (EMAIL, 0, "", "above zero"),
        (EMAIL, -1, "", "above zero"),
        (EMAIL, BALANCE_NANO_LIMIT - FIVE_NANO, "", "must stay below"),
        (EMAIL, 1, "two\nlines", "one line"),
        (EMAIL, 1, "x" * 201, "200 characters"),
    ],
)
async def test_impossible_credit_is_refused(store: Store, email: str, amount_nano: int, note: str, reason: str) -> None:
    """An unknown account, an amount out of bounds or a malformed note is refused, and the balance stays."""
    await add(store, FIVE_NANO)
    with pytest.raises(ControlError, match=reason):
        await give_credit(store, email, amount_nano, note, NOW_MS, COMMAND_LINE)
    assert [account.balance_nano for account in await list_accounts(store)] == [FIVE_NANO]


async def test_an_owner_acts_on_no_other_account(store: Store) -> None:
    """The address of another account does not let an owner export or erase it."""
    await add(store)
    for act in (begin_export, begin_erasure):
        with pytest.raises(Unknown):
            await act(store, EMAIL, Owner("acct_other", "other@example.org"), NOW_MS)
