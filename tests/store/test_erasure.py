"""Erasing an account on both databases: no personal data remains, the books still add up, and others are untouched."""

import contextlib
import sqlite3

import pytest

from cadenza.control.account.accounts import NewAccount, add_account, get_account, resume_account
from cadenza.control.account.erasure import Erased, erase_account
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Operator, Usage
from cadenza.ledger import credit
from cadenza.ledger.rules import HeldCredit
from cadenza.store import schema
from cadenza.store.schema import accounts, entries, metadata, usage
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Store, StoreRefused
from cadenza.store.tables import audit_events, keys
from cadenza.store.tables.audit_events import AuditEvent
from tests.migrated import checkpointed_bytes
from tests.store import rows
from tests.store.moves import findings, finish, make_hold, money, take
from tests.store.rows import DOLLAR_NANO, NOW_MS, add_key, rows_of, run_sql

OWNER, OTHER = "acct_a", "acct_b"
EMAIL, OTHER_EMAIL, OLD_EMAIL = "acct_a@example.org", "acct_b@example.org", "before@example.org"
SECRET = "a secret of the owner"
DIGEST = b"d" * 32
LATER_MS = NOW_MS + 1000

ERASED_WHOLE = {"sessions", "access_tokens", "links", "totp", "recovery_codes", "passkeys", "notes", "idempotency"}
ERASED_WHOLE |= {"request_details"}


def personal_rows(account: str, blob: str) -> list[str]:
    """A row of an account in each table that has something about a person."""
    email = f"{account}@example.org"
    return [
        f"INSERT INTO access_tokens VALUES ('{account}', '{account}', '{SECRET}', 'c', {blob}, 'a', 1, 9, NULL, 1)",
        f"INSERT INTO sessions VALUES ({blob}, '{account}', 'complete', '{SECRET}', 1, 1, 1, 9)",
        f"INSERT INTO links VALUES ({blob}, 'verify', '{account}', '{email}', 1, 2)",
        f"INSERT INTO totp VALUES ('{account}', {blob}, 0, 1)",
        f"INSERT INTO recovery_codes VALUES ('{account}', {blob})",
        f"INSERT INTO passkeys VALUES ({blob}, '{account}', '{SECRET}', {blob}, 1, 1, NULL)",
        f"INSERT INTO notes VALUES ('note_{account}', '{account}', '{SECRET}', 1, 1)",
        f"UPDATE accounts SET note_count = 1 WHERE id = '{account}'",
        f"INSERT INTO idempotency VALUES ('{account}', {blob}, 'c', 'r', 1, NULL)",
        f"""INSERT INTO request_details (request_id, account_id, key_id, endpoint, class_id, provider, model, status,
        cause, fault, is_charged, ended_at, duration_ms, steps)
        VALUES ('{SECRET}', '{account}', 'k', 'chat', '', '', '', 400, '', '', false, 1, 1, '[]')""",
    ]


def blob_of(store: Store, letter: str) -> str:
    value = (letter * 32).encode().hex()
    return f"x'{value}'" if isinstance(store, SqliteStore) else f"decode('{value}', 'hex')"


@pytest.fixture
async def filled(store: Store) -> Store:
    """Two accounts with everything, of which the first is an operator with a dollar of credit."""
    await fill(store)
    return store


async def fill(store: Store) -> None:
    for account_id, letter in ((OWNER, "a"), (OTHER, "b")):
        await rows.add_account(store, account_id)
        await add_key(store, f"key_{letter}", account_id=account_id)
        await store.transact(lambda tx, one=account_id: credit.grant(tx, one, DOLLAR_NANO, "a gift", NOW_MS))  # type: ignore[misc]
        await run_sql(store, *personal_rows(account_id, blob_of(store, letter)))
    await run_sql(
        store,
        f"UPDATE accounts SET is_operator = {'1' if isinstance(store, SqliteStore) else 'true'}, theme = 'dark'",
        f"UPDATE keys SET name = '{SECRET}'",
        f"INSERT INTO links VALUES ({blob_of(store, 'c')}, 'invite', NULL, '{EMAIL}', 1, 2)",
    )
    for event in (
        AuditEvent(NOW_MS, Operator(OLD_EMAIL), "account.email", OWNER, detail=SECRET),
        AuditEvent(NOW_MS, Operator(EMAIL), "key.rename", OWNER, "key_a", SECRET),
        AuditEvent(NOW_MS, Operator(OTHER_EMAIL), "account.class", OWNER, detail="mezzo"),
        AuditEvent(NOW_MS, Operator("stripe"), "payment.paid", OWNER, "pay_1", "5.00 dollars"),
        AuditEvent(NOW_MS, Operator(EMAIL), "account.class", OTHER, detail="forte"),
        AuditEvent(NOW_MS, Operator(EMAIL), "voucher.create", subject="vch_1", detail="5.00 dollars"),
    ):
        await store.transact(lambda tx, event=event: audit_events.add(tx, event))  # type: ignore[misc]


async def erase(store: Store) -> Erased:
    return await erase_account(store, EMAIL, COMMAND_LINE, LATER_MS)


async def table_of(store: Store, account_id: str) -> dict[str, list[object]]:
    """Every row of an account, by table."""
    found = dict[str, list[object]]()
    for table in metadata.sorted_tables:
        of_account = [row for row in await rows_of(store, table) if account_id in row]
        found[table.name] = of_account
    return found


async def test_nothing_personal_remains(filled: Store) -> None:
    """No table has the address, an earlier one, a name, a note or a digest of the account any more."""
    digests = [bytes(row.digest) for row in await rows_of(filled, schema.keys) if row.account_id == OWNER]
    await erase(filled)
    found = await table_of(filled, OWNER)
    assert [name for name in ERASED_WHOLE if found[name]] == []
    everything = [row for table in metadata.sorted_tables for row in await rows_of(filled, table)]
    of_others = [row for row in everything if OTHER in row]
    remaining = str([row for row in everything if row not in of_others])
    for gone in (EMAIL, OLD_EMAIL, SECRET, *map(repr, digests)):
        assert gone not in remaining
    assert EMAIL not in str(of_others)
    [account] = [row for row in await rows_of(filled, accounts) if row.id == OWNER]
    assert (account.email, account.password_hash, account.theme) == ("erased-acct_a", "", "system")
    assert (bool(account.is_operator), account.erased_at, account.note_count) == (False, LATER_MS, 0)


async def test_metering_rows_keep_no_digest_of_an_idempotency_key(filled: Store) -> None:
    """The key was a text of the owner's; counts, prices and cost stay."""
    hold = make_hold("r1", key=DIGEST)
    await take(filled, hold)
    await finish(filled, hold, Usage(100, 7))
    await erase(filled)
    [row] = await rows_of(filled, usage)
    assert (row.idempotency_digest, row.cost_nano, row.input_nano) == (None, 1210, 10)


async def test_others_keep_what_is_theirs(filled: Store) -> None:
    """No row of another account is changed, except that the erased account has no name as an actor."""
    before = await table_of(filled, OTHER)
    await erase(filled)
    after = await table_of(filled, OTHER)
    assert {name for name in before if before[name] != after[name]} == {"audit_events"}
    assert [row.actor for row in after["audit_events"] if row.event == "account.class"] == [OWNER]  # type: ignore[attr-defined]


async def test_the_audit_log_still_tells_what_was_done(filled: Store) -> None:
    """Events stay with their times and subjects; the account stands there by its id, and others by their names."""
    await erase(filled)
    found = [
        (one.actor, one.event, one.subject, one.detail)
        for one in reversed(await audit_events.list_newest(filled, OWNER))
    ]
    assert found[-5:] == [
        (OWNER, "account.email", "", ""),
        (OWNER, "key.rename", "key_a", ""),
        (OTHER_EMAIL, "account.class", "", ""),
        ("stripe", "payment.paid", "pay_1", ""),
        ("command line", "account.erase", "", "1.00 dollars forfeited"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit_events SET detail = '' WHERE account_id = 'acct_b'",
        "UPDATE audit_events SET actor = 'acct_b' WHERE account_id = 'acct_b'",
        "UPDATE audit_events SET actor = 'somebody' WHERE account_id = 'acct_a'",
        "UPDATE audit_events SET detail = 'something' WHERE account_id = 'acct_a'",
        "UPDATE audit_events SET at = 0 WHERE account_id = 'acct_a'",
        "UPDATE audit_events SET account_id = NULL WHERE account_id = 'acct_a'",
        "DELETE FROM audit_events WHERE account_id = 'acct_a'",
    ],
)
@pytest.mark.parametrize("is_erased", [False, True])
async def test_the_audit_log_is_append_only_otherwise(filled: Store, change: str, *, is_erased: bool) -> None:
    """No other change is allowed, neither of an erased account's audit events nor of another's."""
    if is_erased:
        await erase(filled)
    with pytest.raises(StoreRefused, match="append-only"):
        await run_sql(filled, change)


async def test_the_books_still_add_up(filled: Store) -> None:
    """Entries and usage stay under the id; what was left is forfeited by a correction, and the check finds nothing."""
    assert isinstance(await take(filled, make_hold("r1")), HeldCredit)
    await finish(filled, make_hold("r1"), Usage(100, 50))
    charged_nano = DOLLAR_NANO - (await money(filled))[0]
    assert await erase(filled) == Erased(OWNER, DOLLAR_NANO - charged_nano)
    assert (await money(filled), await findings(filled)) == ((0, 0), [])
    own = [(row.kind, row.amount_nano, row.note) for row in await rows_of(filled, entries) if row.account_id == OWNER]
    assert own == [
        ("grant", DOLLAR_NANO, "a gift"),
        ("charge", -charged_nano, ""),
        ("correction", charged_nano - DOLLAR_NANO, "left over when the account was erased"),
    ]
    assert [(row.account_id, row.key_id) for row in await rows_of(filled, usage)] == [(OWNER, "key_a")]


async def test_an_account_with_running_requests_is_not_erased(filled: Store) -> None:
    """The message says what holds it and what to do; nothing is changed, and afterwards it works."""
    assert isinstance(await take(filled, make_hold("r1")), HeldCredit)
    before = await table_of(filled, OWNER)
    with pytest.raises(ControlError, match=r"hold 0\.0000025 dollars. Run 'cadenza account suspend acct_a@example"):
        await erase(filled)
    assert await table_of(filled, OWNER) == before
    await finish(filled, make_hold("r1"), None)
    assert (await erase(filled)).forfeited_nano == DOLLAR_NANO


async def test_the_keys_stop_and_nothing_brings_the_account_back(filled: Store) -> None:
    """Its key is unknown, its address has no account, and it cannot be resumed."""
    [digest] = [bytes(row.digest) for row in await rows_of(filled, schema.keys) if row.account_id == OWNER]
    await erase(filled)
    assert await keys.look_up(filled, digest) is None
    for email in (EMAIL, "erased-acct_a"):
        with pytest.raises(ControlError, match="There is no account"):
            await resume_account(filled, email, COMMAND_LINE, LATER_MS)
    with pytest.raises(ControlError, match="There is no account"):
        await erase(filled)


async def test_the_address_is_free_again(filled: Store) -> None:
    """A new account with the same address is another account, without anything of the old one."""
    await erase(filled)
    new = await filled.transact(lambda tx: add_account(tx, NewAccount(EMAIL, "hash"), COMMAND_LINE, LATER_MS))
    assert (new.id != OWNER, new.balance_nano, new.is_operator) == (True, 0, False)
    assert await get_account(filled, EMAIL) == new
    assert (await erase(filled)).account_id == new.id


async def test_the_file_has_no_trace(sqlite_store: SqliteStore) -> None:
    """On SQLite, what was deleted is overwritten in the file."""
    await fill(sqlite_store)
    path = sqlite_store.path
    assert path is not None
    assert EMAIL.encode() in checkpointed_bytes(path)
    await run_sql(sqlite_store, f"DELETE FROM links WHERE account_id <> '{OWNER}' OR account_id IS NULL")
    await erase(sqlite_store)
    await sqlite_store.close()
    assert EMAIL.encode() not in checkpointed_bytes(path)


async def test_the_log_has_no_trace_while_the_store_is_open(sqlite_store: SqliteStore) -> None:
    """Beside a service that has the store open, neither the file nor its write-ahead log has the notes any more."""
    await fill(sqlite_store)
    await run_sql(sqlite_store, f"DELETE FROM notes WHERE account_id = '{OTHER}'")
    path = sqlite_store.path
    log = path.with_name(f"{path.name}-wal")
    other = SqliteStore(path)
    try:
        assert await get_account(other, EMAIL)
        assert EMAIL.encode() in log.read_bytes()
        assert not (await erase(other)).leaves_log
        assert log.stat().st_size == 0
        assert EMAIL.encode() not in path.read_bytes()
        assert await findings(sqlite_store) == []
    finally:
        await other.close()


async def test_an_erasure_beside_a_reader_says_that_the_log_stays(sqlite_store: SqliteStore) -> None:
    """While another program reads the store, the account is erased all the same, and the log is left."""
    await fill(sqlite_store)
    with contextlib.closing(sqlite3.connect(sqlite_store.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM accounts").fetchall()
        assert (await erase(sqlite_store)).leaves_log
    assert (await erase_account(sqlite_store, OTHER_EMAIL, COMMAND_LINE, LATER_MS)).leaves_log is False
