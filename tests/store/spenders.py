"""Processes with a ledger writer of their own on a shared store: some spend all at once, some hold and stay.

    python -m tests.store.spenders spend URL NAME TIMES   (then, for each round, a line: SEED MIX)
    python -m tests.store.spenders stay URL REQUEST DELIVERED
    python -m tests.store.spenders sweep URL

Each prints `ready` and waits for a line: `sweep` before its writer starts, the others after. `sweep` then sweeps until
another line. `stay` prints `held` when its credit is reserved and its mark is written, and waits for another line.
"""

import asyncio
import random
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cadenza.core.ledger import Ended, Held
from cadenza.core.records import Usage
from cadenza.store.address import open_store
from cadenza.store.processes import Bounds
from cadenza.store.store import Store
from cadenza.store.writer import LedgerWriter, Pace
from tests.environment import environment
from tests.store.moves import PATIENCE_S, Progress, make_hold, make_outcome, mark_of, writing

ROOT = Path(__file__).parents[2]
PROCESS_S = 60.0
PACE = Pace(mark_every_s=0.02, mark_after_s=0.0, sweep_every_s=0.1, ask_s=10.0)
BOUNDS = Bounds(beat_every_s=0.1, gap_s=3.0, dead_s=4.0)
PATIENT = Bounds(beat_every_s=0.1, gap_s=30.0, dead_s=40.0)  # of processes that live: a busy machine may hold them up


@asynccontextmanager
async def process(*words: str) -> AsyncIterator[Process]:
    """A process that is killed at the end of the block if it still runs."""
    command = (sys.executable, "-m", "tests.store.spenders", *words)
    started = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment(), stdin=PIPE, stdout=PIPE)
    try:
        async with asyncio.timeout(PROCESS_S):
            yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def hear(running: Process, word: str) -> None:
    assert running.stdout is not None
    said = (await running.stdout.readline()).decode().strip()
    assert said == word, said


async def tell(running: Process, words: str = "go") -> None:
    assert running.stdin is not None
    running.stdin.write(f"{words}\n".encode())
    await running.stdin.drain()


async def numbers(running: Process) -> list[int]:
    """Read the numbers of the next line that it prints."""
    assert running.stdout is not None
    return [int(number) for number in (await running.stdout.readline()).split()]


async def let_end(running: Process) -> None:
    await running.communicate(b"go\n")
    assert running.returncode == 0


async def spend(writer: LedgerWriter, name: str, times: int) -> None:
    """For each line of input run one round, and print how many requests were held and the sum of their charges."""
    say("ready")
    while words := await asyncio.to_thread(sys.stdin.readline):
        seed, mix = words.split()
        chance = random.Random(f"{name} {seed}")
        served = await asyncio.gather(*(request(writer, f"{name}-{n}", seed, mix, chance) for n in range(times)))
        say(f"{sum(held for held, _ in served)} {sum(charged_nano for _, charged_nano in served)}")


async def request(writer: LedgerWriter, name: str, seed: str, mix: str, chance: random.Random) -> tuple[int, int]:
    """Whole: one account, and each request uses all of its hold. Mixed: two accounts, and any outcome.

    Capped: a rich account, whose key has a spend cap, and each request uses all of its hold or more.
    """
    whole, completion_id = Usage(100, 16), f"{name}-{seed}"
    account = (chance.choice(["poor", "rich"]) if mix == "mixed" else "rich" if mix == "capped" else "poor") + seed
    hold = make_hold(completion_id, allowance_tokens=16, account=account, is_capped=mix == "capped")
    usage = chance.choice([whole, Usage(100, 3), Usage(100, 40), None]) if mix == "mixed" else whole
    if mix == "capped":
        usage = Usage(100, 40)
    if not isinstance(await writer.hold(hold), Held):
        return 0, 0
    ended = await writer.end(make_outcome(completion_id, usage, account=account))
    assert isinstance(ended, Ended)
    assert not ended.is_repeated
    assert not ended.is_lost
    return 1, ended.charged_nano


async def stay(store: Store, writer: LedgerWriter, completion_id: str, delivered_tokens: int) -> None:
    await writer.hold(make_hold(completion_id))
    writer.track(completion_id, Progress(delivered_tokens))
    await writer.mark()
    assert await mark_of(store, completion_id) == delivered_tokens
    say("held")
    await listen()


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


async def listen() -> None:
    await asyncio.to_thread(sys.stdin.readline)


async def main(work: str, url: str, *words: str) -> None:
    store = open_store(url, PATIENCE_S)
    try:
        if work == "sweep":
            say("ready")
            await listen()
        async with writing(store, pace=PACE, bounds=PATIENT if work == "spend" else BOUNDS) as (writer, _):
            match work, words:
                case "sweep", ():
                    await listen()
                case "spend", (name, times):
                    await spend(writer, name, int(times))
                case "stay", (completion_id, delivered_tokens):
                    say("ready")
                    await listen()
                    await stay(store, writer, completion_id, int(delivered_tokens))
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
