"""Keys: a live one in either header identifies its account, all others get the same answer; and scopes."""

import contextlib
import re
import sqlite3
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text

from cadenza.core.codes import make_key
from cadenza.core.errors import Unauthenticated
from cadenza.core.rates import Limits, Rate, Ticket
from cadenza.core.records import Principal
from cadenza.fleet.changes import make_change
from cadenza.gateway.auth import authorize, identify, rate_exceeded, rate_headers, rate_of
from cadenza.http.headers import Headers
from cadenza.store.statements import Statement
from cadenza.store.store import StoreUnavailable, Transaction
from cadenza.store.tables import accounts, keys
from cadenza.store.tables.accounts import Account, Preferences
from cadenza.store.tables.keys import NewKey
from tests.unit.gateway.client import Client
from tests.unit.gateway.funded_store import RecordingObserver, WatchedStore, add_key, now_ms, open_store
from tests.unit.gateway.gateways import make_gateway

DAY_MS = 24 * 60 * 60 * 1000

USUAL = Limits(Rate(10.0, 20), 100)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[WatchedStore]:
    """A store with one account."""
    async with open_store(tmp_path) as opened:
        account = Account("acct_a", "owner@example.org", "mezzo", 0, 0, 0)
        await opened.transact(lambda tx: accounts.add(tx, account, "hash"))
        yield opened


async def new_key(
    store: WatchedStore, *scopes: str, key_id: str = "key_a", age_days: int = 0, expiry_days: int | None = None
) -> bytes:
    """The secret of a key that was made so many days ago."""
    created_at = now_ms() - age_days * DAY_MS
    expires_at = None if expiry_days is None else created_at + expiry_days * DAY_MS
    return (await add_key(store, NewKey(key_id, "acct_a", "", "", frozenset(scopes), created_at, expires_at))).encode()


async def revoke(store: WatchedStore) -> None:
    await make_change(store, lambda tx: keys.revoke(tx, "key_a", 1))


def suspend(tx: Transaction, suspended_at: int | None) -> None:
    tx.change(Statement(text("UPDATE accounts SET suspended_at = :at")), {"at": suspended_at})


def bearer(key: bytes) -> Headers:
    return [(b"authorization", b"Bearer " + key)]


async def enter(store: WatchedStore, headers: Headers, scope: str = "inference") -> Principal:
    """Present these headers to an endpoint that needs the scope."""
    gateway = make_gateway(store, RecordingObserver())
    exchange = Client().open(headers)
    caller = await identify(gateway, exchange)
    authorize(gateway, exchange, caller, scope)
    return caller.principal


async def test_the_principal_tells_what_may_ground_its_replies(store: WatchedStore) -> None:
    """Notes count while there are any and the account uses memory; search while the account uses it."""
    key = bearer(await new_key(store))
    await store.transact(lambda tx: accounts.change(tx, "acct_a", note_count=1))
    principal = await enter(store, key)
    assert (principal.may_search, principal.has_notes) == (True, True)
    off = Preferences("mezzo", "system", uses_search=False, uses_memory=False)
    await store.transact(lambda tx: accounts.change(tx, "acct_a", **msgspec.structs.asdict(off)))
    principal = await enter(store, key)
    assert (principal.may_search, principal.has_notes) == (False, False)


async def test_a_key_works_again_on_the_request_after_its_account_is_resumed(store: WatchedStore) -> None:
    """While it is suspended the answer is 401, as for any dead key, but the key is not remembered as dead."""
    headers = bearer(await new_key(store))
    gateway = make_gateway(store, RecordingObserver())
    await identify(gateway, Client().open(headers))
    for suspended_at in (7, None):
        await make_change(store, partial(suspend, suspended_at=suspended_at))
        if suspended_at:
            with pytest.raises(Unauthenticated):
                await identify(gateway, Client().open(headers))
    assert (await identify(gateway, Client().open(headers))).principal.key_id == "key_a"


async def test_a_key_is_read_again_after_a_change_by_another_process(store: WatchedStore, tmp_path: Path) -> None:
    """Until then it is cached. After any other commit of another connection only the epoch is read."""
    gateway, key = make_gateway(store, RecordingObserver()), await new_key(store)
    await identify(gateway, Client().open(bearer(key)))  # opens the file
    store.statements.clear()
    for _ in range(3):
        await identify(gateway, Client().open(bearer(key)))
    assert store.reads == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "cadenza.db")) as other:
        with other:
            other.execute("UPDATE accounts SET balance_nano = balance_nano + 1")
        await identify(gateway, Client().open(bearer(key)))
        assert store.reads == 1
        with other:
            other.execute("UPDATE accounts SET preferred_class = 'fortissimo'")
            other.execute("UPDATE epochs SET number = number + 1 WHERE name = 'changes'")
    caller = await identify(gateway, Client().open(bearer(key)))
    assert (caller.principal.preferred_class, store.reads) == ("fortissimo", 3)


async def test_all_dead_keys_get_the_same_reply(store: WatchedStore) -> None:
    """Missing, malformed, unknown, revoked and expired keys cannot be told apart: every byte but the date is equal."""
    revoked = await new_key(store)
    await revoke(store)
    expired = await new_key(store, key_id="key_b", age_days=31, expiry_days=30)
    dead: list[Headers] = [
        [],
        bearer(b""),
        bearer(b"sk-cdz-short"),
        bearer(b"\xff\x00"),
        bearer(b"x" * 10_000),
        bearer(make_key().encode()),
        bearer(revoked),
        bearer(expired),
        [(b"x-api-key", b"")],
        [(b"authorization", b"Basic " + revoked)],
    ]
    replies = [await reply_to(store, headers) for headers in dead]
    assert replies[0][0] == 401
    assert all(reply == replies[0] for reply in replies)


async def reply_to(store: WatchedStore, headers: Headers) -> tuple[int, dict[bytes, bytes], list[bytes]]:
    """Everything but the date."""
    client = Client()
    client.open([*headers, (b"x-request-id", b"r1")])
    await client.serve(make_gateway(store, RecordingObserver()))
    return client.status, client.headers | {b"date": b""}, client.bodies


async def test_an_unavailable_store_lets_no_key_in(tmp_path: Path) -> None:
    """A store without its tables cannot identify a key, so every key is refused."""
    empty = WatchedStore(tmp_path)
    with pytest.raises(StoreUnavailable):
        await enter(empty, bearer(make_key().encode()))
    await empty.close()


@pytest.mark.parametrize(
    ("per_s", "burst", "rate"),
    [
        (None, None, Rate(10.0, 20)),
        (2.5, None, Rate(2.5, 20)),
        (None, 5, Rate(10.0, 5)),
        (2.5, 5, Rate(2.5, 5)),
    ],
)
def test_a_key_may_have_a_rate_of_its_own(per_s: float | None, burst: int | None, rate: Rate) -> None:
    """Where it has none, or only a part of one, the usual limits apply."""
    assert (
        rate_of(Principal("key_a", "acct_a", frozenset(), "forte", requests_per_second=per_s, burst=burst), USUAL)
        == rate
    )


@pytest.mark.parametrize(
    ("reset_ns", "shown"),
    [
        (1, "1ms"),
        (1_000_000, "1ms"),
        (1_000_001, "2ms"),
        (120_000_000, "120ms"),
        (999_000_000, "999ms"),
        (999_000_001, "1s"),
        (1_500_000_000, "1.5s"),
        (1_000_000_001, "1.001s"),
        (10_020_000_000, "10.02s"),
        (100_000_000_000, "100s"),
        (3_600_000_000_000, "3600s"),
    ],
)
def test_the_headers_show_the_rate(reset_ns: int, shown: str) -> None:
    """The limit, what remains of it, and the time until all of it is back, rounded up."""
    headers = rate_headers(Ticket(is_granted=True, limit=20, remaining=7, reset_ns=reset_ns))
    assert headers.decode().splitlines(keepends=True) == [
        "x-ratelimit-limit-requests: 20\r\n",
        "x-ratelimit-remaining-requests: 7\r\n",
        f"x-ratelimit-reset-requests: {shown}\r\n",
    ]


@pytest.mark.parametrize(
    ("wait_ns", "wait_s", "wait_ms"),
    [
        (1, 1, 1),
        (999_000_001, 1, 1000),
        (1_000_000_000, 1, 1000),
        (1_000_000_001, 2, 1001),
        (90_500_000_000, 91, 90500),
    ],
)
def test_a_refusal_says_how_long_to_wait(wait_ns: int, wait_s: int, wait_ms: int) -> None:
    """In whole seconds and in milliseconds, both rounded up; the message says what the key may do."""
    ticket = Ticket(is_granted=False, limit=20, remaining=0, reset_ns=wait_ns, wait_ns=wait_ns)
    refused = rate_exceeded(ticket, Rate(per_s=2.5, burst=20))
    assert dict(refused.headers) == {b"retry-after": b"%d" % wait_s, b"retry-after-ms": b"%d" % wait_ms}
    assert re.search(r"2\.5 requests a second.* 20 at once", refused.message)
