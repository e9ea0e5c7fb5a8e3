"""A real store with one account, one key and some credit, and the writers of its ledger."""

import io
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Table, select, text

from cadenza.core.codes import digest_key, display_prefix, make_key
from cadenza.core.money import Price
from cadenza.core.records import SCOPES, Outcome, Principal
from cadenza.fleet.presence import Presence
from cadenza.http.headers import Headers
from cadenza.ledger import check, credit
from cadenza.ledger.rules import Hold
from cadenza.ledger.timing import USUAL_TIMING, LedgerTiming
from cadenza.ledger.writer import LedgerWriter
from cadenza.observe import Observer, make_log
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.statements import Statement, Values
from cadenza.store.store import WAIT_S, Row, StoreUnavailable, T, Transaction
from cadenza.store.tables import accounts, keys
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.keys import NewKey
from tests.migrated import copy_migrated_store

ACCOUNT_ID = "acct_a"
KEY_ID = "key_a"
EMAIL = "owner@example.org"
PRINCIPAL = Principal(KEY_ID, ACCOUNT_ID, frozenset(SCOPES), "forte")
FORTE = Price(1_070, 3_450)
FUNDED_NANO = 5_000_000_000
FUNDS = Statement(text("SELECT balance_nano, held_nano FROM accounts WHERE email = :email"))


class WatchedStore(SqliteStore):
    """A SQLite store that notes its small reads, and that takes no transaction while it is down."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "cadenza.db", WAIT_S)
        self.statements = list[Statement]()  # of the small reads
        self.is_down = False

    @property
    def reads(self) -> int:
        return len(self.statements)

    async def row(self, statement: Statement, values: Values) -> Row | None:
        self.statements.append(statement)
        return await super().row(statement, values)

    async def transact(self, work: Callable[[Transaction], T], **how: Any) -> T:
        if self.is_down:
            raise StoreUnavailable("The store is down.")
        return await super().transact(work, **how)


class RecordingObserver(Observer):
    """Keeps the outcomes and the log lines that were recorded."""

    def __init__(self) -> None:
        self.written = io.StringIO()
        super().__init__(make_log(self.written))
        self.outcomes: list[Outcome] = []

    def record(self, outcome: Outcome, charged_nano: int = 0, cost_nano: int | None = None) -> None:
        self.outcomes.append(outcome)
        super().record(outcome, charged_nano, cost_nano)

    @property
    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.written.getvalue().splitlines()]

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


class FundedStore:
    """The store, the secret of its one key, and what it says about the account."""

    def __init__(self, store: WatchedStore, secret: str) -> None:
        self.store = store
        self.secret = secret
        self.observer = RecordingObserver()

    @property
    def key_headers(self) -> Headers:
        return [(b"authorization", b"Bearer " + self.secret.encode())]

    async def funds(self) -> tuple[int, int]:
        """The balance, and how much of it is held, with the spare part of reserves."""
        found = await self.store.row(FUNDS, {"email": EMAIL})
        assert found
        return found[0], found[1]

    async def rows(self, table: Table) -> list[dict[str, Any]]:
        names = table.columns.keys()
        return [dict(zip(names, row, strict=True)) for row in await self.store.rows(Statement(select(table)), {})]

    @asynccontextmanager
    async def writer(self, timing: LedgerTiming = USUAL_TIMING) -> AsyncIterator[LedgerWriter]:
        """A running writer, as one process has it. The credit that it leaves reserved is freed by the next one."""
        presence = Presence(self.store)
        writer = LedgerWriter(self.store, self.observer, presence, timing)
        await presence.start()
        await writer.start()
        try:
            yield writer
        finally:
            await writer.stop()
            await presence.stop()


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[WatchedStore]:
    """An empty store with the schema."""
    copy_migrated_store(folder / "cadenza.db")
    store = WatchedStore(folder)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def open_funded_store(folder: Path, credit_nano: int) -> AsyncIterator[FundedStore]:
    """Whatever the test does, the ledger must be consistent at the end."""
    async with open_store(folder) as store:
        secret = await add_account_and_key(store)
        if credit_nano:
            await store.transact(lambda tx: credit.grant(tx, ACCOUNT_ID, credit_nano, "", 1))
        yield FundedStore(store, secret)
        assert await check.find_violations(store) == []


async def add_account_and_key(store: WatchedStore) -> str:
    """Add the account and return the secret of its new key."""
    await store.transact(lambda tx: accounts.add(tx, Account(ACCOUNT_ID, EMAIL, "forte", 0, 0, 1), "hash"))
    return await add_key(store, NewKey(KEY_ID, ACCOUNT_ID, "", "", frozenset(), 1, None))


async def add_key(store: WatchedStore, key: NewKey) -> str:
    """Add the key, with the prefix of a new secret, and return the secret."""
    secret = make_key()
    key = msgspec.structs.replace(key, prefix=display_prefix(secret))
    await store.transact(lambda tx: keys.add(tx, key, digest_key(secret.encode())))
    return secret


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def make_hold(
    completion_id: str = "chatcmpl-one",
    *,
    prompt_tokens: int = 100,
    allowance_tokens: int = 1_000,
    price: Price = FORTE,
    started_at: int | None = None,
    is_counted: bool = True,
    idempotency_digest: bytes | None = None,
) -> Hold:
    return Hold(
        completion_id=completion_id,
        account_id=ACCOUNT_ID,
        key_id=KEY_ID,
        class_id="forte",
        version=1,
        prompt_tokens=prompt_tokens,
        allowance_tokens=allowance_tokens,
        price=price,
        stream=False,
        started_at=now_ms() if started_at is None else started_at,
        is_counted=is_counted,
        request_id=f"req-of-{completion_id}",
        idempotency_digest=idempotency_digest,
    )
