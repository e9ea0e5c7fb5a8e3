"""A real store with one account, one key and some credit, and the real writer of its ledger."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import text

from cadenza.core.apikey import digest_key, display_prefix, make_key
from cadenza.core.money import Price
from cadenza.core.rates import Rate
from cadenza.core.records import Route, Usage
from cadenza.gateway.compose import Character
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.limits import Limits
from cadenza.observe import Observer, make_log
from cadenza.routing.catalogue import Catalogue
from cadenza.routing.dispatch import Dispatcher
from cadenza.store import accounts, audit, keys, ledger
from cadenza.store.accounts import Account
from cadenza.store.database import Database, migrate
from cadenza.store.keys import NewKey
from cadenza.store.ledger import End, Hold
from cadenza.store.writer import LedgerWriter

WAIT_S = 10.0
ACCOUNT = "acct_a"
EMAIL = "owner@example.org"
KEY = "key_a"
FORTE = Price(1_070, 3_450)
LIMITS = Limits(Rate(10_000, 10_000), 100)
NOW_MS = 1_800_000_000_000


class Nothing:
    """A request that has delivered nothing."""

    has_delivered = False

    async def count(self) -> Usage:
        return Usage(0, 0, estimated=True)


class Books:
    """What the account has, and everything that the ledger says of it."""

    def __init__(self, db: Database, secret: str) -> None:
        self.db = db
        self.secret = secret
        self.written = io.StringIO()
        self.observer = Observer(make_log(self.written))
        self.writer = LedgerWriter(db, self.observer)

    async def account(self) -> Account:
        async with self.db.read() as conn:
            found = await accounts.find_by_email(conn, EMAIL)
        assert found
        return found

    async def rows(self, table: str) -> list[dict[str, Any]]:
        async with self.db.read() as conn:
            return [dict(row) for row in (await conn.execute(text(f"SELECT * FROM {table}"))).mappings()]

    async def findings(self) -> list[audit.Finding]:
        async with self.db.read() as conn:
            return await audit.check(conn)

    async def until_written(self) -> None:
        """Returns once all that ends is durable: it is counted first, and then the end of nobody comes last."""
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*self.writer._endings)
            await self.writer.end(End("chatcmpl-nobody", ACCOUNT, None, "", "", 499, None, 0, NOW_MS))

    async def start_anew(self) -> None:
        """As the next process does, after one that has stopped."""
        self.writer = LedgerWriter(self.db, self.observer)
        await self.writer.start()

    async def charge(self, request_id: str, usage: Usage, started_at: int = NOW_MS) -> None:
        """A request from its hold to its charge."""
        await self.writer.hold(hold(request_id, started_at=started_at), Nothing())
        await self.writer.end(End(request_id, ACCOUNT, usage, "acme", "acme-large", 200, 5, 9, started_at + 9))

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.written.getvalue().splitlines()]


def hold(
    request_id: str = "chatcmpl-one",
    *,
    prompt_tokens: int = 100,
    allowance_tokens: int = 1000,
    started_at: int | None = None,
    idempotency_digest: bytes | None = None,
) -> Hold:
    return Hold(
        request_id=request_id,
        account_id=ACCOUNT,
        key_id=KEY,
        class_id="forte",
        prompt_tokens=prompt_tokens,
        allowance_tokens=allowance_tokens,
        price=FORTE,
        stream=False,
        started_at=time.time_ns() // 1_000_000 if started_at is None else started_at,
        shown_id=f"req-of-{request_id}",
        idempotency_digest=idempotency_digest,
    )


@asynccontextmanager
async def open_books(folder: Path, credit_nano: int) -> AsyncIterator[Books]:
    """Whatever was done with them, the books must be right in the end."""
    db = Database(f"sqlite:///{folder}/books.db")
    await migrate(db)
    secret = make_key()
    async with db.write() as conn:
        await accounts.insert(conn, Account(ACCOUNT, EMAIL, "forte", 0, 0, 1), "hash")
        key = NewKey(KEY, ACCOUNT, "", display_prefix(secret), frozenset(), 1, None)
        await keys.insert(conn, key, digest_key(secret.encode()))
        if credit_nano:
            await conn.run_sync(ledger.grant, ACCOUNT, credit_nano, "a gift", 1)
    books = Books(db, secret)
    await books.writer.start()
    yield books
    await books.writer.stop()
    findings = await books.findings()
    await db.close()
    assert findings == []


def gateway_on(db: Database) -> Gateway:
    """A gateway for what needs no upstream."""
    observer = Observer(make_log(io.StringIO()))
    catalogue = Catalogue({"forte": (Route("acme", "m", 9, 9),)}, {"forte": Character("Be brief.")}, {"forte": FORTE})
    dispatcher = Dispatcher({}, observer, ceiling=100)
    return Gateway(db, catalogue, dispatcher, LedgerWriter(db, observer), LIMITS, observer)
