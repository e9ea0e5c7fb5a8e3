"""Keys that are none against a real store: how many of them are ever looked up, one after the other and at once."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cadenza.core.apikey import digest_key, display_prefix, make_key
from cadenza.core.errors import CadenzaError
from cadenza.core.rates import Rate
from cadenza.gateway.auth import authenticate
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.limits import STRANGERS_IN_ALL, STRANGERS_OF_ONE_ADDRESS
from cadenza.store import accounts, keys
from cadenza.store.accounts import Account
from cadenza.store.database import Database, migrate
from cadenza.store.keys import NewKey
from cadenza.store.statements import Statement, Values
from tests.unit.gateway.books import gateway_on
from tests.unit.gateway.clients import Client

HOME = "192.0.2.1"
FLOOD = 1000
AT_ONCE = 32  # look-ups that may be under way when the limit is reached


class CountingDatabase(Database):
    """A real store that counts how often it is asked."""

    reads = 0

    async def row(self, statement: Statement, values: Values) -> tuple[Any, ...] | None:
        self.reads += 1
        return await super().row(statement, values)


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[CountingDatabase]:
    database = CountingDatabase(f"sqlite:///{tmp_path}/cadenza.db")
    await migrate(database)
    yield database
    await database.close()


@pytest.fixture
async def good(db: CountingDatabase) -> str:
    """A live key."""
    secret = make_key()
    async with db.write() as conn:
        await accounts.insert(conn, Account("acct_a", "owner@example.org", "mezzo", 0, 0, 0), "hash")
        key = NewKey("key_a", "acct_a", "", display_prefix(secret), frozenset(), 1, None)
        await keys.insert(conn, key, digest_key(secret.encode()))
    return secret


async def ask(gw: Gateway, key: str, address: str = HOME) -> int:
    """The status that a request with this key is let in or turned away with."""
    exchange = Client(address).exchange([(b"authorization", b"Bearer " + key.encode())])
    try:
        await authenticate(gw, exchange, "inference")
    except CadenzaError as error:
        return error.status
    return 200


async def flood_until_refused(gw: Gateway) -> None:
    for _ in range(FLOOD):
        if await ask(gw, make_key()) == 429:
            return
    raise AssertionError("a flood was never refused")


@contextmanager
def at_most(db: CountingDatabase, rate: Rate) -> Iterator[None]:
    """What runs inside asks the store no more often than this rate allows in the time that it takes."""
    asked_before, started_s = db.reads, time.monotonic()
    yield
    earned = rate.per_s * (time.monotonic() - started_s)
    assert db.reads - asked_before <= rate.burst + earned + AT_ONCE


async def test_most_of_a_flood_never_reaches_the_store(db: CountingDatabase) -> None:
    """Of a thousand unknown keys one after the other the store is asked for the burst of an address and little more."""
    gw, before = gateway_on(db), db.reads
    with at_most(db, STRANGERS_OF_ONE_ADDRESS):
        statuses = Counter([await ask(gw, make_key()) for _ in range(FLOOD)])
    asked = db.reads - before
    assert asked >= STRANGERS_OF_ONE_ADDRESS.burst
    assert statuses == {401: asked, 429: FLOOD - asked}


async def test_flood_at_once_gets_no_further(db: CountingDatabase) -> None:
    """A thousand unknown keys in the same instant are bounded just as those that come one after the other."""
    gw = gateway_on(db)
    with at_most(db, STRANGERS_OF_ONE_ADDRESS):
        statuses = Counter(await asyncio.gather(*(ask(gw, make_key()) for _ in range(FLOOD))))
    assert statuses.keys() == {401, 429}


async def test_one_unknown_key_many_times_at_once_gets_no_further(db: CountingDatabase) -> None:
    """The same holds where all of them are the same key."""
    gw, key = gateway_on(db), make_key()
    with at_most(db, STRANGERS_OF_ONE_ADDRESS):
        statuses = Counter(await asyncio.gather(*(ask(gw, key) for _ in range(FLOOD))))
    assert 401 in statuses
    assert statuses.keys() <= {401, 429}


async def test_flood_at_once_from_everywhere_is_bounded(db: CountingDatabase) -> None:
    """Unknown keys in the same instant from as many addresses are bounded by the limit of all."""
    gw = gateway_on(db)
    addresses = (f"10.{number >> 8}.{number & 255}.1" for number in range(2 * STRANGERS_IN_ALL.burst))
    with at_most(db, STRANGERS_IN_ALL):
        statuses = Counter(await asyncio.gather(*(ask(gw, make_key(), address) for address in addresses)))
    assert 401 in statuses
    assert statuses.keys() <= {401, 429}


async def test_a_dead_key_that_insists_is_looked_up_once(db: CountingDatabase) -> None:
    """The same unknown key is 401 every time, and the store is asked for the first."""
    gw, key, before = gateway_on(db), make_key(), db.reads
    assert {await ask(gw, key) for _ in range(300)} == {401}
    assert db.reads - before == 1


async def test_what_cannot_be_a_key_never_reaches_the_store(db: CountingDatabase) -> None:
    """Mistyped keys are 401, however many, and the store is not asked."""
    gw, before = gateway_on(db), db.reads
    mistyped = [make_key()[:-1] + "-" for _ in range(300)] + ["", "sk-cdz-", "x" * 5000]
    assert {await ask(gw, key) for key in mistyped} == {401}
    assert db.reads == before


async def test_good_key_is_served_in_the_flood_of_its_own_address(db: CountingDatabase, good: str) -> None:
    """A key that was served before is let in between unknown_keys, one after the other and at once."""
    gw = gateway_on(db)
    assert await ask(gw, good) == 200
    await flood_until_refused(gw)
    assert await ask(gw, good) == 200
    together = await asyncio.gather(*(ask(gw, good if number % 2 else make_key()) for number in range(200)))
    assert set(together[1::2]) == {200}


async def test_new_key_is_served_beside_a_flood_from_elsewhere(db: CountingDatabase, good: str) -> None:
    """A key that was never seen is let in while another address is held off."""
    gw = gateway_on(db)
    await flood_until_refused(gw)
    assert await ask(gw, good, "198.51.100.7") == 200


async def test_good_keys_at_once_are_all_served(db: CountingDatabase, good: str) -> None:
    """Two hundred first requests of one good key in the same instant are let in, whatever unknown_keys may do."""
    gw = gateway_on(db)
    assert set(await asyncio.gather(*(ask(gw, good) for _ in range(200)))) == {200}


async def test_revoked_key_is_401_at_once_and_costs_one_look_up(db: CountingDatabase, good: str) -> None:
    """The request after the revocation asks the store; those after it are answered from memory."""
    gw = gateway_on(db)
    assert await ask(gw, good) == 200
    async with db.write() as conn:
        await keys.revoke(conn, "key_a", 1)
    before = db.reads
    assert {await ask(gw, good) for _ in range(50)} == {401}
    assert db.reads - before == 1
