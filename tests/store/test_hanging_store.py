"""A store that hangs: callers learn soon that there is no answer, and what ended is charged once it works again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from cadenza.core.records import Usage
from cadenza.ledger.rules import Ended, HeldCredit
from cadenza.ledger.writer import LedgerWriter
from cadenza.store.schema import idempotency, reserves
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Store, StoreUnavailable
from tests.link import Link
from tests.postgres import OWNER, Postgres
from tests.store.aside import transaction
from tests.store.moves import (
    ALONE,
    ON_POSTGRES,
    QUIET,
    findings,
    fund,
    hold_all,
    make_hold,
    make_outcome,
    money,
    opened,
    writing,
)
from tests.store.rows import DOLLAR_NANO, rows_of

HASTY = msgspec.structs.replace(ALONE, wait_s=0.5)
SOON_S = 20.0  # far less than these stores wait by themselves
KEY = b"k" * 32


@contextlib.asynccontextmanager
async def hanging(kind: str, postgres: Postgres, url: str, link: Link) -> AsyncIterator[None]:
    """Nothing is answered during the block, and no connection is closed."""
    match kind:
        case "stalled link":
            link.stall()
            yield
            link.resume()
        case "stopped server":
            with postgres.frozen():
                yield
        case "locked row":
            async with transaction(url) as other:
                await other.rows("SELECT * FROM accounts FOR UPDATE")
                yield


async def no_answer(writer: LedgerWriter) -> None:
    """Neither a charge nor a hold is answered, and a reserve is not used any more. All are told so."""
    ending = writer.end(make_outcome("r1", Usage(100, 1)))
    with pytest.raises(StoreUnavailable, match="did not answer within"):
        await asyncio.wait_for(ending, SOON_S)
    for hold in (make_hold("late"), make_hold("keyed", key=KEY)):
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(writer.hold(hold), SOON_S)


async def check_recovery(store: Store, writer: LedgerWriter) -> None:
    """The charge is written once, and what was told to have failed holds nothing and has used no key."""
    await asyncio.wait_for(writer.drained(), SOON_S)
    assert isinstance(await writer.hold(make_hold("again", key=KEY)), HeldCredit)
    await writer.end(make_outcome("again"))
    assert await writer.end(make_outcome("r2", Usage(100, 1))) == Ended(1030)
    assert (await money(store))[0] == DOLLAR_NANO - 2 * 1030
    assert await rows_of(store, idempotency) == []


@pytest.mark.parametrize("kind", ["stalled link", "stopped server", "locked row"])
@ON_POSTGRES
async def test_a_postgres_that_hangs_is_answered_for_soon(rich: Store, url: str, postgres: Postgres, kind: str) -> None:
    """The bound of a request holds, however long the store itself would wait; the charge is written afterwards."""
    with Link(postgres.socket).running() as link:
        name = url.partition("@/")[2].partition("?")[0]
        async with (
            opened(f"postgresql://{OWNER}@127.0.0.1:{link.port}/{name}") as far,
            writing(far, timing=HASTY, bounds=QUIET) as (writer, _),
        ):
            await hold_all(writer, [make_hold("r1"), make_hold("r2")])
            async with hanging(kind, postgres, url, link):
                await no_answer(writer)
            await check_recovery(rich, writer)
    assert (await rows_of(rich, reserves), await findings(rich)) == ([], [])


async def test_a_locked_sqlite_file_is_answered_for_soon(sqlite_store: SqliteStore) -> None:
    """The same when another process holds the lock of the file."""
    await fund(sqlite_store, DOLLAR_NANO)
    url = f"sqlite:///{sqlite_store.path}"
    async with opened(url) as store, writing(store, timing=HASTY) as (writer, _):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        async with transaction(url):
            await no_answer(writer)
        await check_recovery(sqlite_store, writer)
    assert (await rows_of(sqlite_store, reserves), await findings(sqlite_store)) == ([], [])
