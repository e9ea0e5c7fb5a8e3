"""Other processes on the same store. Each loads, says `ready` and waits for a line, so that they run at once."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from cadenza.store import keys, ledger
from cadenza.store.address import open_store
from cadenza.store.migrate import migrate
from cadenza.store.store import Store
from tests.environment import environment

ROOT = Path(__file__).parents[2]
WORK_S = 60.0


async def run_at_once(*works: tuple[str, ...]) -> list[str]:
    """Return what each process prints at its end. A process that fails fails the test."""
    command = (sys.executable, "-m", "tests.store.processes")
    async with asyncio.timeout(WORK_S):
        started = [
            await asyncio.create_subprocess_exec(
                *command, *work, cwd=ROOT, env=environment(), stdin=PIPE, stdout=PIPE, stderr=PIPE
            )
            for work in works
        ]
        for process in started:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        ended = await asyncio.gather(*(process.communicate(b"go\n") for process in started))
    for process, (_, complaint) in zip(started, ended, strict=True):
        assert process.returncode == 0, complaint.decode()
    return [said.decode().strip() for said, _ in ended]


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
            lambda tx: ledger.grant(tx, account_id, amount_nano, "from another process", 0)
        )
    return str(balance_nano)


if __name__ == "__main__":
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(asyncio.run(work(*sys.argv[1:])))
