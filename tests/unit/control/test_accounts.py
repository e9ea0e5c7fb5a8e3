"""Accounts: created whole or not at all, signed in to in one shape, credited exactly."""

import re
import time

import pytest
from sqlalchemy import select, text

from cadenza.control.accounts import create_account, give_credit, list_accounts, verify_password
from cadenza.control.errors import ControlError
from cadenza.store.accounts import Account
from cadenza.store.database import Database
from cadenza.store.ledger import BALANCE_NANO_LIMIT
from cadenza.store.schema import accounts, entries

NOW_MS = 1_800_000_000_000
FIVE_NANO = 5_000_000_000
EMAIL = "owner@example.org"
PASSWORD = "correct horse"


async def create(db: Database, email: str = EMAIL, password: str = PASSWORD, credit_nano: int = 0) -> Account:
    return await create_account(db, email, password, credit_nano, "forte", NOW_MS)


async def entries_of(db: Database) -> list[tuple[str, int, str]]:
    async with db.read() as conn:
        rows = await conn.execute(select(entries.c.kind, entries.c.amount_nano, entries.c.note).order_by(entries.c.id))
        return [(row.kind, row.amount_nano, row.note) for row in rows]


async def test_an_account_is_created_with_its_opening_credit(db: Database) -> None:
    """The record that comes back is the one that is stored, with the credit as an entry."""
    account = await create_account(db, " Owner@Example.ORG ", PASSWORD, FIVE_NANO, "mezzo", NOW_MS)
    assert re.fullmatch(r"acct_[A-Za-z0-9_-]{24}", account.id)
    assert account == Account(account.id, EMAIL, "mezzo", FIVE_NANO, 0, NOW_MS)
    assert await list_accounts(db) == [account]
    assert await entries_of(db) == [("grant", FIVE_NANO, "opening credit")]


async def test_no_opening_credit_is_no_entry(db: Database) -> None:
    """An account may start with nothing, and then the ledger is empty."""
    assert (await create(db)).balance_nano == 0
    assert await entries_of(db) == []


async def test_a_taken_email_is_refused(db: Database) -> None:
    """Another spelling of an email that is taken is refused, and its credit is not given."""
    await create(db)
    with pytest.raises(ControlError, match=r"an account for owner@example\.org already"):
        await create(db, "OWNER@example.org", credit_nano=FIVE_NANO)
    assert len(await list_accounts(db)) == 1
    assert await entries_of(db) == []


@pytest.mark.parametrize(
    "email", ["", "owner", "@example.org", "owner@", "a b@example.org", "a@b@c", "a@-", "a\x00@b", f"{'a' * 250}@b.org"]
)
async def test_an_email_makes_sense(db: Database, email: str) -> None:
    """What cannot be an address is refused with an example of one."""
    with pytest.raises(ControlError, match=r"name@example\.org"):
        await create(db, email)


@pytest.mark.parametrize(
    ("password", "reason"),
    [("1234567", "8 to 1024"), ("x" * 1025, "8 to 1024"), ("bad \udc80 bytes", "UTF-8")],
)
async def test_a_password_out_of_bounds_is_refused(db: Database, password: str, reason: str) -> None:
    """A password that is too short, too long or no text is refused without being repeated."""
    with pytest.raises(ControlError, match=reason) as caught:
        await create(db, password=password)
    assert password not in caught.value.message


@pytest.mark.parametrize("password", ["12345678", "x" * 1024, "pässwörd €"])
async def test_a_password_within_bounds_opens_its_account(db: Database, password: str) -> None:
    """The shortest, the longest and one beyond ASCII all work."""
    account = await create(db, password=password)
    assert await verify_password(db, EMAIL, password) == account


async def test_an_unknown_class_is_refused(db: Database) -> None:
    """The classes that there are are named; the reserved one is not among them."""
    with pytest.raises(ControlError, match="mezzo, forte, fortissimo"):
        await create_account(db, EMAIL, PASSWORD, 0, "piano", NOW_MS)


@pytest.mark.parametrize("credit_nano", [-1, BALANCE_NANO_LIMIT])
async def test_an_impossible_opening_credit_is_refused(db: Database, credit_nano: int) -> None:
    """A debt, or more than a balance can be, is no opening credit."""
    with pytest.raises(ControlError, match="from zero"):
        await create(db, credit_nano=credit_nano)


async def test_the_password_is_stored_as_argon2id_only(db: Database) -> None:
    """Nothing in the store holds the password."""
    await create(db)
    async with db.read() as conn:
        stored = (await conn.execute(select(accounts.c.password_hash))).scalar_one()
        row = (await conn.execute(text("SELECT * FROM accounts"))).one()
    assert stored.startswith("$argon2id$")
    assert PASSWORD not in str(row)


async def test_a_password_is_verified(db: Database) -> None:
    """The right password gives the account, whatever the email's case; a wrong one gives nothing."""
    account = await create(db)
    assert await verify_password(db, "OWNER@example.org", PASSWORD) == account
    assert await verify_password(db, EMAIL, "wrong password") is None
    assert await verify_password(db, EMAIL, "x" * 1025) is None


@pytest.mark.parametrize("email", ["nobody@example.org", "no address"])
async def test_an_unknown_email_costs_as_much_as_a_wrong_password(db: Database, email: str) -> None:
    """Time does not tell which emails have an account."""
    await create(db)

    async def shortest_s(address: str) -> float:
        taken = []
        for _ in range(3):
            started = time.perf_counter()
            assert await verify_password(db, address, "wrong password") is None
            taken.append(time.perf_counter() - started)
        return min(taken)

    assert await shortest_s(email) > await shortest_s(EMAIL) / 2


async def test_credit_is_given(db: Database) -> None:
    """Credit adds to the balance and leaves an entry with its note."""
    await create(db, credit_nano=FIVE_NANO)
    account = await give_credit(db, "Owner@example.org", 20, "a gift", NOW_MS)
    assert account.balance_nano == FIVE_NANO + 20
    assert await list_accounts(db) == [account]
    assert (await entries_of(db))[1:] == [("grant", 20, "a gift")]


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
async def test_impossible_credit_is_refused(db: Database, email: str, amount_nano: int, note: str, reason: str) -> None:
    """Credit to nobody, of nothing, past the limit or with an unruly note is refused and moves nothing."""
    await create(db, credit_nano=FIVE_NANO)
    with pytest.raises(ControlError, match=reason):
        await give_credit(db, email, amount_nano, note, NOW_MS)
    assert [account.balance_nano for account in await list_accounts(db)] == [FIVE_NANO]
