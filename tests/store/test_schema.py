"""What the database itself refuses, from any program."""

import contextlib
import sqlite3
from typing import Any

import pytest
from sqlalchemy import Table

from cadenza.ledger import credit
from cadenza.store.schema import accounts, entries, keys, notes, usage
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreRefused
from tests.store.rows import DOLLAR_NANO, NOW_MS, add_account, add_key, run_sql

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
NOTE = {"id": "note_a", "account_id": "acct_a", "text": "x" * 1000, "created_at": 1, "changed_at": 1}
ENTRY = {"account_id": "acct_a", "kind": "grant", "amount_nano": 1, "note": "", "created_at": NOW_MS}
ENTRY |= {"origin": "grant", "granted_nano": 0}
CHARGE = {**ENTRY, "kind": "charge", "origin": None, "amount_nano": 0, "completion_id": "chatcmpl-a"}
USAGE = {
    "completion_id": "chatcmpl-a",
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
    "request_id": "",
    "input_nano": 1,
    "output_nano": 1,
    "short_nano": 0,
    "source": "request",
}


async def fill(store: Store) -> None:
    """One account with a key and one grant."""
    await add_account(store)
    await add_key(store)
    await store.transact(lambda tx: credit.grant(tx, "acct_a", DOLLAR_NANO, "a gift", NOW_MS))


@pytest.fixture
async def filled(store: Store) -> Store:
    await fill(store)
    return store


async def insert(store: Store, table: Table, row: dict[str, Any]) -> None:
    await store.transact(lambda tx: tx.change(Statement(table.insert(), *row), row))


@pytest.mark.parametrize(
    ("table", "row"),
    [(accounts, ACCOUNT), (keys, KEY), (entries, ENTRY), (entries, CHARGE), (usage, USAGE), (notes, NOTE)],
)
async def test_sound_rows_are_taken(filled: Store, table: Table, row: dict[str, Any]) -> None:
    """The rows that the next test breaks are accepted as they are."""
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
        (entries, {**ENTRY, "origin": None}),
        (entries, {**CHARGE, "amount_nano": 1}),
        (entries, {**CHARGE, "completion_id": None}),
        (usage, {**USAGE, "key_id": "key_nobody"}),
        (usage, {**USAGE, "cached_tokens": 11}),
        (usage, {**USAGE, "completion_tokens": -1}),
        (usage, {**USAGE, "cost_nano": -1}),
        (notes, {**NOTE, "text": ""}),
        (notes, {**NOTE, "text": "x" * 1001}),
    ],
)
async def test_unsound_rows_are_refused(filled: Store, table: Table, row: dict[str, Any]) -> None:
    """A row that breaks a constraint is refused."""
    with pytest.raises(StoreRefused):
        await insert(filled, table, row)


async def test_a_digest_belongs_to_one_key(filled: Store) -> None:
    """The same digest cannot be stored twice."""
    await insert(filled, keys, KEY)
    with pytest.raises(StoreRefused):
        await insert(filled, keys, {**KEY, "id": "key_c"})


async def test_a_request_is_charged_once(filled: Store) -> None:
    """A second charge for a request is refused; a correction that names the request is not."""
    await insert(filled, entries, CHARGE)
    with pytest.raises(StoreRefused):
        await insert(filled, entries, CHARGE)
    await insert(filled, entries, {**CHARGE, "kind": "correction", "origin": "refund"})


@pytest.mark.parametrize(
    "statement", ["UPDATE entries SET amount_nano = 2", "UPDATE entries SET note = ''", "DELETE FROM entries"]
)
async def test_entries_are_append_only(filled: Store, statement: str) -> None:
    """An UPDATE or DELETE of entries is refused, and the error says why."""
    with pytest.raises(StoreRefused, match="append-only"):
        await run_sql(filled, statement)


async def test_entries_cannot_be_emptied_or_replaced(filled: Store) -> None:
    """TRUNCATE on Postgres and INSERT OR REPLACE on SQLite are refused too."""
    replace = (
        "INSERT OR REPLACE INTO entries SELECT id, account_id, kind, 2, completion_id, note, created_at, source, "
        "debt_id, origin, granted_nano FROM entries"
    )
    with pytest.raises(StoreRefused, match="append-only"):
        await run_sql(filled, replace if isinstance(filled, SqliteStore) else "TRUNCATE entries")


async def test_other_programs_are_refused_too(sqlite_store: SqliteStore) -> None:
    """The triggers are in the file: a connection of another program is refused."""
    await fill(sqlite_store)
    assert sqlite_store.path is not None
    with (
        contextlib.closing(sqlite3.connect(sqlite_store.path)) as other,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        other.execute("UPDATE entries SET note = 'x'")
