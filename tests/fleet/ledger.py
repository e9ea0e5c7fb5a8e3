"""The store of a fleet as an operator and an auditor see it: straight from Postgres, with arithmetic of their own."""

import contextlib
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from cadenza.control.account.accounts import get_owner
from cadenza.control.keys import KeyOrder, create_key
from cadenza.control.money.credit import give_credit
from cadenza.core.records import COMMAND_LINE
from cadenza.ledger.check import find_violations
from cadenza.parts.postgres.session import ANNOUNCE
from cadenza.store.store import Store
from tests.fleet.cluster import connect
from tests.migrated import run_aside, with_store
from tests.service import EMAIL, now_ms, wait_until

IDLE_S = 60.0
COPY_ACCOUNT = """
    INSERT INTO accounts (id, email, password_hash, preferred_class, created_at)
    SELECT $1, $2, password_hash, preferred_class, created_at FROM accounts WHERE email = $3"""
ROWS = """
    SELECT request_id, completion_id, status, cost_nano, estimated, provider, prompt_tokens, completion_tokens
    FROM usage ORDER BY started_at"""
STILL_HELD = """
    SELECT (SELECT COALESCE(SUM(held_nano), 0) FROM accounts),
    (SELECT COUNT(*) FROM reserves WHERE amount_nano > 0), (SELECT COUNT(*) FROM marks)"""
ASK_BACK = "UPDATE reserves SET is_asked = TRUE WHERE has_spare"

T = TypeVar("T")


class Row(msgspec.Struct, frozen=True):
    """The metering row of one request."""

    request_id: str
    completion_id: str
    status: int
    cost_nano: int
    estimated: bool
    provider: str
    prompt_tokens: int
    completion_tokens: int

    @property
    def is_swept(self) -> bool:
        """Another process charged it, because its own was dead; the provider is then unknown."""
        return self.status == 500 and self.provider == ""


class FleetLedger:
    """One database, which is read and changed beside the gateways."""

    def __init__(self, url: str) -> None:
        self.url = url

    def move(self, url: str) -> None:
        """Read and change another copy of the database from now on."""
        self.url = url

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        async def run() -> list[tuple[Any, ...]]:
            async with self.session() as connection:
                return [tuple(row) for row in await connection.fetch(sql, *values)]

        return run_aside(run)

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        """A connection of our own, beside the gateways."""
        connection = await connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    def control(self, work: Callable[[Store], Awaitable[T]]) -> T:
        return run_aside(lambda: with_store(self.url, work))

    def create_account(self, credit_nano: int) -> str:
        """The email address of a new account."""
        email = f"account-{secrets.token_hex(8)}@example.org"
        self.query(COPY_ACCOUNT, f"acct_{secrets.token_hex(12)}", email, EMAIL)
        if credit_nano:
            self.give_credit(email, credit_nano)
        return email

    def give_credit(self, email: str, amount_nano: int) -> None:
        self.control(lambda store: give_credit(store, email, amount_nano, "for a test", now_ms(), COMMAND_LINE))

    def create_key(self, email: str, **limits: float) -> str:
        """`limits` are the key's own `requests_per_second` and `burst`."""
        order = KeyOrder("test", **limits)  # type: ignore[arg-type]

        async def create(store: Store) -> str:
            return (await create_key(store, await get_owner(store, email), order, now_ms()))[0]

        return self.control(create)

    def balance_nano(self, email: str) -> int:
        return self.balances_nano()[email]

    def balances_nano(self) -> dict[str, int]:
        """By email address."""
        return {email: int(nano) for email, nano in self.query("SELECT email, balance_nano FROM accounts")}

    def rows(self) -> dict[str, list[Row]]:
        """The metering rows by the request id that the client sent."""
        found = defaultdict[str, list[Row]](list)
        for row in self.query(ROWS):
            found[row[0]].append(Row(*row))
        return found

    def still_held(self) -> tuple[int, ...]:
        """Held nano-dollars, reserves and marks."""
        return tuple(int(number) for number in self.query(STILL_HELD)[0])

    def marked_tokens(self) -> int:
        """The delivered tokens that are marked for all running requests."""
        return int(self.query("SELECT COALESCE(SUM(delivered_tokens), 0) FROM marks")[0][0])

    def wait_until_nothing_is_held(self, within_s: float = IDLE_S) -> None:
        """Wait until every reserve was given back. Processes are asked for theirs, as another process would."""
        try:
            wait_until(self._is_nothing_held, "nothing being held", within_s)
        except AssertionError:
            raise AssertionError(f"still held (nano-dollars, reserves, marks): {self.still_held()}") from None

    def _is_nothing_held(self) -> bool:
        if not any(self.still_held()):
            return True
        self.query(ASK_BACK)
        self.query(ANNOUNCE)
        return False

    def check(self) -> None:
        """Nothing is held, the ledger check finds nothing, and no account was ever below zero."""
        self.wait_until_nothing_is_held()
        assert self.control(find_violations) == []
        balances_nano = defaultdict[str, int](int)
        for entry_id, account_id, amount_nano in self.query(
            "SELECT id, account_id, amount_nano FROM entries ORDER BY id"
        ):
            balances_nano[account_id] += amount_nano
            assert balances_nano[account_id] >= 0, f"below zero at entry {entry_id}"

    def processes(self) -> int:
        """The processes that the store knows: those that live, and those that died and were not swept yet."""
        return int(self.query("SELECT COUNT(*) FROM processes")[0][0])
