"""What the database itself refuses, whoever asks."""

import contextlib
import sqlite3
from typing import Any

import pytest
from sqlalchemy import Table, text

from cadenza.store import ledger
from cadenza.store.database import Database, StoreRefused
from cadenza.store.schema import accounts, entries, keys, usage
from tests.store.rows import DOLLAR_NANO, NOW_MS, add_account, add_key

ACCOUNT = {"id": "acct_b", "email": "b@example.org", "password_hash": "hash", "created_at": NOW_MS}
KEY = {
    "id": "key_b",
    "account_id": "acct_a",
    "name": "",
    "prefix": "sk-cdz-AAAAA",
    "digest": b"d" * 32,
    "scopes": "",
    "created_at": NOW_MS,
}
ENTRY = {"account_id": "acct_a", "kind": "grant", "amount_nano": 1, "note": "", "created_at": NOW_MS}
CHARGE = {**ENTRY, "kind": "charge", "amount_nano": 0, "request_id": "chatcmpl-a"}
USAGE = {
    "request_id": "chatcmpl-a",
    "account_id": "acct_a",
    "key_id": "key_a",
    "class_id": "forte",
    "provider": "acme",
    "model": "acme-large",
    "prompt_tokens": 10,
    "cached_tokens": 0,
    "completion_tokens": 1,
    "cost_nano": 1,
    "estimated": False,
    "status": 200,
    "stream": True,
    "started_at": NOW_MS,
    "duration_ms": 1,
}


async def fill(db: Database) -> None:
    """One account with a key and one grant."""
    await add_account(db)
    await add_key(db)
    async with db.write() as conn:
        await conn.run_sync(ledger.grant, "acct_a", DOLLAR_NANO, "a gift", NOW_MS)


@pytest.fixture
async def filled(db: Database) -> Database:
    await fill(db)
    return db


async def insert(db: Database, table: Table, row: dict[str, Any]) -> None:
    async with db.write() as conn:
        await conn.execute(table.insert().values(row))


@pytest.mark.parametrize(
    ("table", "row"), [(accounts, ACCOUNT), (keys, KEY), (entries, ENTRY), (entries, CHARGE), (usage, USAGE)]
)
async def test_sound_rows_are_taken(filled: Database, table: Table, row: dict[str, Any]) -> None:
    """The rows that the refusals below start from are good ones."""
    await insert(filled, table, row)


@pytest.mark.parametrize(
    ("table", "row"),
    [
        (accounts, {**ACCOUNT, "email": "acct_a@example.org"}),
        (accounts, {**ACCOUNT, "email": "B@example.org"}),
        (accounts, {**ACCOUNT, "preferred_class": "piano"}),
        (accounts, {**ACCOUNT, "balance_nano": -1}),
        (accounts, {**ACCOUNT, "held_nano": -1}),
        (accounts, {**ACCOUNT, "balance_nano": 1, "held_nano": 2}),
        (keys, {**KEY, "account_id": "acct_nobody"}),
        (keys, {**KEY, "prefix": "sk-cdz-"}),
        (keys, {**KEY, "digest": b"short"}),
        (keys, {**KEY, "expires_at": NOW_MS}),
        (entries, {**ENTRY, "account_id": "acct_nobody"}),
        (entries, {**ENTRY, "kind": "gift"}),
        (entries, {**ENTRY, "amount_nano": 0}),
        (entries, {**CHARGE, "amount_nano": 1}),
        (entries, {**CHARGE, "request_id": None}),
        (usage, {**USAGE, "key_id": "key_nobody"}),
        (usage, {**USAGE, "cached_tokens": 11}),
        (usage, {**USAGE, "completion_tokens": -1}),
        (usage, {**USAGE, "cost_nano": -1}),
    ],
)
async def test_unsound_rows_are_refused(filled: Database, table: Table, row: dict[str, Any]) -> None:
    """A row that breaks what must always hold does not get in."""
    with pytest.raises(StoreRefused):
        await insert(filled, table, row)


async def test_a_digest_stands_for_one_key(filled: Database) -> None:
    """The same digest cannot be stored twice."""
    await insert(filled, keys, KEY)
    with pytest.raises(StoreRefused):
        await insert(filled, keys, {**KEY, "id": "key_c"})


async def test_a_request_is_charged_once(filled: Database) -> None:
    """A second charge for a request is refused; a correction that names the request is not."""
    await insert(filled, entries, CHARGE)
    with pytest.raises(StoreRefused):
        await insert(filled, entries, CHARGE)
    await insert(filled, entries, {**CHARGE, "kind": "correction"})


async def test_a_new_account_has_the_defaults(db: Database) -> None:
    """An account without further words prefers forte and has nothing."""
    await insert(db, accounts, ACCOUNT)
    async with db.read() as conn:
        row = (await conn.execute(text("SELECT preferred_class, balance_nano, held_nano FROM accounts"))).one()
    assert tuple(row) == ("forte", 0, 0)


@pytest.mark.parametrize(
    "statement", ["UPDATE entries SET amount_nano = 2", "UPDATE entries SET note = ''", "DELETE FROM entries"]
)
async def test_entries_are_append_only(filled: Database, statement: str) -> None:
    """No entry is changed or removed, and the refusal says why."""
    with pytest.raises(StoreRefused, match="append-only"):
        async with filled.write() as conn:
            await conn.execute(text(statement))


async def test_entries_cannot_be_emptied_or_replaced(filled: Database) -> None:
    """Neither of the databases' own ways around a DELETE works: TRUNCATE, INSERT OR REPLACE."""
    replace = "INSERT OR REPLACE INTO entries SELECT id, account_id, kind, 2, request_id, note, created_at FROM entries"
    with pytest.raises(StoreRefused, match="append-only"):
        async with filled.write() as conn:
            await conn.execute(text(replace if filled.is_sqlite else "TRUNCATE entries"))


async def test_another_program_meets_the_triggers_too(sqlite_db: Database) -> None:
    """Append-only is a property of the file, not of our connections."""
    await fill(sqlite_db)
    assert sqlite_db.path is not None
    with (
        contextlib.closing(sqlite3.connect(sqlite_db.path)) as other,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        other.execute("UPDATE entries SET note = 'x'")
