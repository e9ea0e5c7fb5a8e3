"""Other processes on the same store. Each waits, all loaded, for the word to go, so that they run at once."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from cadenza.store import keys, ledger
from cadenza.store.database import Database, migrate

ROOT = Path(__file__).parents[2]
WORK_S = 60.0


async def run_at_once(*works: tuple[str, ...]) -> list[str]:
    """What each process says at its end; a process that fails fails the test."""
    command = (sys.executable, "-m", "tests.store.processes")
    async with asyncio.timeout(WORK_S):
        started = [
            await asyncio.create_subprocess_exec(*command, *work, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE)
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
    db = Database(url)
    try:
        match name, words:
            case "migrate", ():
                return await migrate(db)
            case "grant", (account_id, amount_nano, times):
                return await grant_often(db, account_id, int(amount_nano), int(times))
            case "revoke", (key_id, now_ms):
                async with db.write() as conn:
                    return str(await keys.revoke(conn, key_id, int(now_ms)))
    finally:
        await db.close()
    raise ValueError(name)


async def grant_often(db: Database, account_id: str, amount_nano: int, times: int) -> str:
    balance_nano = 0
    for _ in range(times):
        async with db.write() as conn:
            balance_nano = await conn.run_sync(ledger.grant, account_id, amount_nano, "from another process", 0)
    return str(balance_nano)


if __name__ == "__main__":
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(asyncio.run(work(*sys.argv[1:])))
