"""Other processes on the same store. Each says `ready` and waits to be told, so that they run at once."""

from contextlib import AsyncExitStack
from multiprocessing.connection import Connection

from sqlalchemy import text

from cadenza.ledger import credit
from cadenza.store.address import open_store
from cadenza.store.migrate import migrate
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import keys
from tests.store.forked import forked, listen

WORK_S = 60.0
CHANGE = Statement(text("UPDATE epochs SET number = number + 1"))


async def run_at_once(*works: tuple[str, ...]) -> list[str]:
    """Return what each process says at its end. A process that fails fails the test."""
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(forked(main, *work)) for work in works]
        for process in started:
            await process.hear_word("ready")
        for process in started:
            process.tell()
        said = [await process.on_message() for process in started]
        assert [await process.wait() for process in started] == [0] * len(works)
    return said


async def main(line: Connection, *words: str) -> None:
    line.send("ready")
    await listen(line)
    line.send(await work(*words))


async def work(name: str, url: str, *words: str) -> str:
    store = open_store(url, WORK_S)
    try:
        match name, words:
            case "migrate", ():
                return await migrate(store)
            case "grant", (account_id, amount_nano, times):
                return await grant_often(store, account_id, int(amount_nano), int(times))
            case "revoke", (key_id, now_ms):
                return str(await store.transact(lambda tx: keys.revoke(tx, key_id, int(now_ms))))
    finally:
        await store.close()
    raise ValueError(name)


async def grant_often(store: Store, account_id: str, amount_nano: int, times: int) -> str:
    balance_nano = 0
    for _ in range(times):
        balance_nano = await store.transact(
            lambda tx: credit.grant(tx, account_id, amount_nano, "from another process", 0)
        )
    return str(balance_nano)


def announce(tx: Transaction) -> None:
    """Change something, and wake every watcher."""
    tx.change(CHANGE, {})
    tx.announce()
