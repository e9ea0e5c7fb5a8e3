"""Processes with a ledger writer of their own on a shared store: some spend all at once, some hold and stay.

    process("spend", URL, NAME, TIMES)     (then, for each round, it is told SEED MIX)
    process("stay", URL, REQUEST, DELIVERED)
    process("sweep", URL)

Each says `ready` and waits to be told: `sweep` before its writer starts, the others after. `sweep` then sweeps until it
is told again. `stay` says `held` when its credit is reserved and its mark is written, and waits again.
"""

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from multiprocessing.connection import Connection

from cadenza.core.records import Usage
from cadenza.fleet.presence import HeartbeatBounds
from cadenza.ledger.rules import Ended, HeldCredit
from cadenza.ledger.timing import LedgerTiming
from cadenza.ledger.writer import LedgerWriter
from cadenza.store.address import open_store
from cadenza.store.store import Store
from tests.store.forked import Fork, forked, listen
from tests.store.moves import PATIENCE_S, Progress, make_hold, make_outcome, mark_of, writing

TIMING = LedgerTiming(wait_s=PATIENCE_S, mark_every_s=0.02, mark_after_s=0.0, sweep_every_s=0.1, ask_s=10.0)
BOUNDS = HeartbeatBounds(heartbeat_every_s=0.1, gap_s=4.0, dead_s=6.0)
PATIENT = HeartbeatBounds(heartbeat_every_s=0.1, gap_s=30.0, dead_s=40.0)  # a busy machine may delay live ones


def process(*words: str) -> AbstractAsyncContextManager[Fork]:
    """A process that is killed at the end of the block if it still runs."""
    return forked(main, *words)


async def numbers(running: Fork) -> list[int]:
    """Wait for the numbers that it says next."""
    return [int(number) for number in (await running.on_message()).split()]


async def spend(line: Connection, writer: LedgerWriter, name: str, times: int) -> None:
    """Each time that it is told, run one round, and say how many requests were held and the sum of their charges."""
    line.send("ready")
    while True:
        seed, mix = (await listen(line)).split()
        chance = random.Random(f"{name} {seed}")
        served = await asyncio.gather(*(request(writer, f"{name}-{n}", seed, mix, chance) for n in range(times)))
        line.send(f"{sum(held for held, _ in served)} {sum(charged_nano for _, charged_nano in served)}")


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
    if not isinstance(await writer.hold(hold), HeldCredit):
        return 0, 0
    ended = await writer.end(make_outcome(completion_id, usage, account=account))
    assert isinstance(ended, Ended)
    assert not ended.is_repeated
    assert not ended.is_lost, (ended, hold, usage)
    return 1, ended.charged_nano


async def stay(line: Connection, store: Store, writer: LedgerWriter, completion_id: str, delivered_tokens: int) -> None:
    await writer.hold(make_hold(completion_id))
    writer.track(completion_id, Progress(delivered_tokens))
    await writer.mark()
    assert await mark_of(store, completion_id) == delivered_tokens
    line.send("held")
    await listen(line)


async def main(line: Connection, work: str, url: str, *words: str) -> None:
    store = open_store(url, PATIENCE_S)
    try:
        if work == "sweep":
            line.send("ready")
            await listen(line)
        async with writing(store, timing=TIMING, bounds=PATIENT if work == "spend" else BOUNDS) as (writer, _):
            match work, words:
                case "sweep", ():
                    await listen(line)
                case "spend", (name, times):
                    await spend(line, writer, name, int(times))
                case "stay", (completion_id, delivered_tokens):
                    line.send("ready")
                    await listen(line)
                    await stay(line, store, writer, completion_id, int(delivered_tokens))
    finally:
        await store.close()
