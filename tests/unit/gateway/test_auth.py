"""Who is asking: live keys by either header, one and the same answer to all others, and scopes."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cadenza.core.apikey import digest_key, display_prefix, make_key
from cadenza.core.errors import Forbidden, Unauthenticated
from cadenza.core.records import Principal
from cadenza.gateway.auth import authenticate
from cadenza.store import accounts, keys
from cadenza.store.accounts import Account
from cadenza.store.database import Database, StoreUnavailable, migrate
from cadenza.store.keys import NewKey
from tests.unit.gateway.books import gateway_on
from tests.unit.gateway.clients import Client, Headers

DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    """A store with one account in it."""
    database = Database(f"sqlite:///{tmp_path}/cadenza.db")
    await migrate(database)
    async with database.write() as conn:
        await accounts.insert(conn, Account("acct_a", "owner@example.org", "mezzo", 0, 0, 0), "hash")
    yield database
    await database.close()


async def add_key(
    db: Database, *scopes: str, age_days: int = 0, expiry_days: int | None = None, revoked: bool = False
) -> bytes:
    """The secret of a new key, which was made so long ago."""
    secret = make_key()
    now_ms = time.time_ns() // 1_000_000
    created_at = now_ms - age_days * DAY_MS
    expires_at = None if expiry_days is None else created_at + expiry_days * DAY_MS
    key = NewKey("key_a", "acct_a", "", display_prefix(secret), frozenset(scopes), created_at, expires_at)
    async with db.write() as conn:
        await keys.insert(conn, key, digest_key(secret.encode()))
        if revoked:
            await keys.revoke(conn, key.id, now_ms)
    return secret.encode()


def bearer(key: bytes) -> Headers:
    return [(b"authorization", b"Bearer " + key)]


async def ask(db: Database, headers: Headers, scope: str = "inference") -> Principal:
    return await authenticate(gateway_on(db), Client().exchange(headers), scope)


async def test_a_live_key_is_its_principal(db: Database) -> None:
    """The key, its account, its scopes and what the account prefers."""
    principal = await ask(db, bearer(await add_key(db)))
    assert principal == Principal("key_a", "acct_a", frozenset({"inference", "models", "usage"}), "mezzo")


@pytest.mark.parametrize("header", ["Bearer {}", "bearer {}", "BEARER {}", "  Bearer   {}  "])
async def test_a_bearer_may_be_spelled_loosely(db: Database, header: str) -> None:
    """The scheme's case and the spaces around the key do not matter."""
    key = (await add_key(db)).decode()
    assert (await ask(db, [(b"authorization", header.format(key).encode())])).key_id == "key_a"


async def test_the_other_header_is_as_good(db: Database) -> None:
    """`x-api-key` alone lets in."""
    assert (await ask(db, [(b"x-api-key", await add_key(db))])).key_id == "key_a"


async def test_authorization_wins(db: Database) -> None:
    """With both headers only Authorization is read, be it good or bad."""
    key = await add_key(db)
    assert (await ask(db, [(b"x-api-key", b"other"), *bearer(key)])).key_id == "key_a"
    for authorization in (b"Bearer other", b"Basic " + key, b"", b"Bearer", key):
        with pytest.raises(Unauthenticated):
            await ask(db, [(b"authorization", authorization), (b"x-api-key", key)])


@pytest.mark.parametrize(("age_days", "expiry_days"), [(29, 30), (89, 90), (364, 365), (4000, None)])
async def test_a_key_lives_until_it_expires(db: Database, age_days: int, expiry_days: int | None) -> None:
    """On its last day a key is live, and one without expiry is so for ever."""
    key = await add_key(db, age_days=age_days, expiry_days=expiry_days)
    assert (await ask(db, bearer(key))).key_id == "key_a"


@pytest.mark.parametrize("expiry_days", [30, 90, 365])
async def test_a_key_expires(db: Database, expiry_days: int) -> None:
    """A key as old as its expiry is dead."""
    with pytest.raises(Unauthenticated):
        await ask(db, bearer(await add_key(db, age_days=expiry_days, expiry_days=expiry_days)))


async def test_a_revoked_key_is_refused_on_the_next_request(db: Database) -> None:
    """The very request after the revocation is refused: nothing is remembered of the key."""
    key = await add_key(db)
    await ask(db, bearer(key))
    async with db.write() as conn:
        await keys.revoke(conn, "key_a", 1)
    with pytest.raises(Unauthenticated):
        await ask(db, bearer(key))


async def test_all_dead_keys_get_the_same_bytes(db: Database) -> None:
    """Missing, malformed, unknown, revoked and expired keys cannot be told apart by the answer."""
    revoked = await add_key(db, revoked=True)
    async with db.write() as conn:
        secret = make_key()
        expired = NewKey("key_b", "acct_a", "", display_prefix(secret), frozenset(), 1, 2)
        await keys.insert(conn, expired, digest_key(secret.encode()))
    dead = [
        [],
        bearer(b""),
        bearer(b"sk-cdz-short"),
        bearer(b"\xff\x00"),
        bearer(b"x" * 10_000),
        bearer(make_key().encode()),
        bearer(revoked),
        bearer(secret.encode()),
        [(b"x-api-key", b"")],
        [(b"authorization", b"Basic " + revoked)],
    ]
    answers = [await answer_of(db, headers) for headers in dead]
    assert answers[0][0] == 401
    assert all(answer == answers[0] for answer in answers)


async def answer_of(db: Database, headers: Headers) -> tuple[int, Headers, list[bytes]]:
    """All of it but the date."""
    client = Client()
    exchange = client.exchange([*headers, (b"x-request-id", b"r1")])
    with pytest.raises(Unauthenticated) as refusal:
        await authenticate(gateway_on(db), exchange, "inference")
    exchange.fail(refusal.value)
    told = [header for header in client.headers.items() if header[0] != b"date"]
    return client.status, told, client.bodies


@pytest.mark.parametrize("scope", ["inference", "models", "usage"])
async def test_a_key_opens_what_its_scopes_name(db: Database, scope: str) -> None:
    """A key of one scope is let in there, and anywhere else it is told which scope it lacks."""
    key = await add_key(db, scope)
    assert (await ask(db, bearer(key), scope)).scopes == {scope}
    for other in {"inference", "models", "usage"} - {scope}:
        with pytest.raises(Forbidden, match=f"lacks the scope '{other}'"):
            await ask(db, bearer(key), other)


async def test_a_dead_key_is_not_told_about_scopes(db: Database) -> None:
    """The key is checked before the scope: a revoked key without the scope is 401, not 403."""
    with pytest.raises(Unauthenticated):
        await ask(db, bearer(await add_key(db, "usage", revoked=True)))


async def test_a_store_that_does_not_answer_lets_nobody_in(tmp_path: Path) -> None:
    """Without its tables the store cannot tell who is asking: no key is good."""
    empty = Database(f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(StoreUnavailable):
        await ask(empty, bearer(make_key().encode()))
    await empty.close()
