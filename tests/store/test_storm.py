"""The overdraft storm: far more requests at once than an account can pay for, in one process and over several.

The seed of a run is in its name or in its failure; the same seed asks for the same things.
"""

import asyncio
import contextlib
import random
from asyncio.subprocess import Process
from collections.abc import AsyncIterator

import pytest

from cadenza.core.records import Usage
from cadenza.store.database import Database
from cadenza.store.ledger import Held, Insufficient
from tests.store.moves import (
    PRICE,
    Progress,
    end_all,
    findings,
    fund,
    hold_all,
    make_end,
    make_hold,
    money,
    writing,
)
from tests.store.rows import DOLLAR_NANO
from tests.store.spenders import hear, numbers, process, tell

ONE_NANO = PRICE.quote(100, 16)  # a request that is held whole or not at all
REQUESTS = 500
PROCESSES = 4
SEEDS = (11, 12)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_exactly_what_can_be_paid_is_held(db: Database, seed: int) -> None:
    """Of 500 holds at once on credit for k, exactly k are taken, and settling them all leaves what arithmetic says."""
    chance = random.Random(seed)
    payable, rest_nano = chance.randrange(1, REQUESTS), chance.randrange(ONE_NANO)
    await fund(db, payable * ONE_NANO + rest_nano)
    wanted = [make_hold(f"r{number}", allowance_tokens=16) for number in range(REQUESTS)]
    async with writing(db) as (writer, _):
        answers = await hold_all(writer, wanted)
        assert await money(db) == (payable * ONE_NANO + rest_nano, payable * ONE_NANO)
        held = [hold for hold, answer in zip(wanted, answers, strict=True) if isinstance(answer, Held)]
        await end_all(writer, (make_end(hold.request_id, Usage(100, 16)) for hold in held))
    assert len(held) == payable
    assert answers.count(Insufficient(rest_nano, ONE_NANO)) == REQUESTS - payable
    assert (await money(db), await findings(db)) == ((rest_nano, 0), [])


@pytest.mark.parametrize("seed", [1, 2])
async def test_callers_who_come_and_go_leave_no_hold(db: Database, seed: int) -> None:
    """Requests that are cancelled at any moment of a storm give back what they held, and pay for what they used."""
    chance = random.Random(seed)
    await fund(db, 60 * ONE_NANO)
    charged_nano = 0
    async with writing(db) as (writer, _):

        async def request(number: int) -> None:
            nonlocal charged_nano
            if isinstance(await writer.hold(make_hold(f"r{number}", allowance_tokens=16), Progress()), Held):
                charged_nano += PRICE.quote(100, 1)
                await writer.end(make_end(f"r{number}", Usage(100, 1)))

        running = [asyncio.create_task(request(number)) for number in range(200)]
        for task in chance.sample(running, 120):
            for _ in range(chance.randrange(40)):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait(running)
    assert (await money(db), await findings(db)) == ((60 * ONE_NANO - charged_nano, 0), [])


async def test_several_processes_share_what_can_be_paid(db: Database, url: str) -> None:
    """Four processes at once on credit for k: k are served in all, wherever, and the balance is what is left."""
    async with spenders(url) as running:
        for seed in SEEDS:
            chance = random.Random(seed)
            payable, rest_nano = chance.randrange(20, REQUESTS // 2), chance.randrange(ONE_NANO)
            await fund(db, payable * ONE_NANO + rest_nano, f"poor{seed}")
            held, charged_nano = await spend_at_once(running, seed, "whole")
            assert (held, charged_nano) == (payable, payable * ONE_NANO), f"seed {seed}"
            assert await money(db, f"poor{seed}") == (rest_nano, 0), f"seed {seed}"
            assert await findings(db) == [], f"seed {seed}"


async def test_several_processes_charge_what_they_say(db: Database, url: str) -> None:
    """Settled below, at and above the hold and released, on two accounts: charges and balances add up to the grants."""
    async with spenders(url) as running:
        for seed in SEEDS:
            await fund(db, 90 * ONE_NANO, f"poor{seed}")
            await fund(db, DOLLAR_NANO, f"rich{seed}")
            _, charged_nano = await spend_at_once(running, seed, "mixed")
            (poor_nano, poor_held_nano), (rich_nano, rich_held_nano) = [
                await money(db, f"{account}{seed}") for account in ("poor", "rich")
            ]
            assert charged_nano + poor_nano + rich_nano == 90 * ONE_NANO + DOLLAR_NANO, f"seed {seed}"
            assert (poor_held_nano, rich_held_nano) == (0, 0), f"seed {seed}"
            assert await findings(db) == [], f"seed {seed}"


@contextlib.asynccontextmanager
async def spenders(url: str) -> AsyncIterator[list[Process]]:
    times = f"{REQUESTS // PROCESSES}"
    async with contextlib.AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(process("spend", url, f"p{number}", times)) for number in range(PROCESSES)
        ]
        for one in running:
            await hear(one, "ready")
        yield running


async def spend_at_once(running: list[Process], seed: int, mix: str) -> tuple[int, int]:
    """How many requests all of them served, and what they charged."""
    for one in running:
        await tell(one, f"{seed} {mix}")
    served = [await numbers(one) for one in running]
    assert [len(said) for said in served] == [2] * PROCESSES, f"a process failed with seed {seed}"
    return sum(held for held, _ in served), sum(charged_nano for _, charged_nano in served)
