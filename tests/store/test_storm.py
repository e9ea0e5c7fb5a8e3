"""Far more requests at once than an account can pay for, in one process and in several.

The seed of a run is in its name or in its failure; the same seed makes the same requests.
"""

import asyncio
import contextlib
import random
from asyncio.subprocess import Process
from collections.abc import AsyncIterator

import pytest

from cadenza.core.records import Usage
from cadenza.store.ledger import Held, Insufficient
from cadenza.store.store import Store
from tests.store.moves import (
    PRICE,
    end_all,
    findings,
    fund,
    hold_all,
    make_hold,
    make_outcome,
    money,
    writing,
)
from tests.store.rows import DOLLAR_NANO
from tests.store.spenders import hear, numbers, process, tell

ONE_NANO = PRICE.quote(100, 16)  # held whole or not at all
REQUESTS = 500
PROCESSES = 4
SEEDS = (11, 12)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_exactly_the_payable_requests_are_held(store: Store, seed: int) -> None:
    """Of 500 holds at once on credit for k, exactly k are taken, and settling them leaves exactly the rest."""
    chance = random.Random(seed)
    payable, rest_nano = chance.randrange(1, REQUESTS), chance.randrange(ONE_NANO)
    await fund(store, payable * ONE_NANO + rest_nano)
    wanted = [make_hold(f"r{number}", allowance_tokens=16) for number in range(REQUESTS)]
    async with writing(store) as (writer, _):
        answers = await hold_all(writer, wanted)
        assert await money(store) == (payable * ONE_NANO + rest_nano, payable * ONE_NANO)
        held = [hold for hold, answer in zip(wanted, answers, strict=True) if isinstance(answer, Held)]
        await end_all(writer, (make_outcome(hold.completion_id, Usage(100, 16)) for hold in held))
    assert len(held) == payable
    assert answers.count(Insufficient(rest_nano, ONE_NANO)) == REQUESTS - payable
    assert (await money(store), await findings(store)) == ((rest_nano, 0), [])


@pytest.mark.parametrize("seed", [1, 2])
async def test_cancelled_callers_leave_no_hold(store: Store, seed: int) -> None:
    """Requests that are cancelled at any moment give back what they held and pay for what they used."""
    chance = random.Random(seed)
    await fund(store, 60 * ONE_NANO)
    charged_nano = 0
    async with writing(store) as (writer, _):

        async def request(number: int) -> None:
            nonlocal charged_nano
            if isinstance(await writer.hold(make_hold(f"r{number}", allowance_tokens=16)), Held):
                charged_nano += PRICE.quote(100, 1)
                await writer.end(make_outcome(f"r{number}", Usage(100, 1)))

        running = [asyncio.create_task(request(number)) for number in range(200)]
        for task in chance.sample(running, 120):
            for _ in range(chance.randrange(40)):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait(running)
    assert (await money(store), await findings(store)) == ((60 * ONE_NANO - charged_nano, 0), [])


async def test_several_processes_share_the_credit(store: Store, url: str) -> None:
    """Four processes at once on credit for k: k are served in total, and the balance is the rest."""
    async with spenders(url) as running:
        for seed in SEEDS:
            chance = random.Random(seed)
            payable, rest_nano = chance.randrange(20, REQUESTS // 2), chance.randrange(ONE_NANO)
            await fund(store, payable * ONE_NANO + rest_nano, f"poor{seed}")
            held, charged_nano = await spend_at_once(running, seed, "whole")
            assert (held, charged_nano) == (payable, payable * ONE_NANO), f"seed {seed}"
            assert await money(store, f"poor{seed}") == (rest_nano, 0), f"seed {seed}"
            assert await findings(store) == [], f"seed {seed}"


async def test_the_charges_of_several_processes_add_up(store: Store, url: str) -> None:
    """Settled below, at and above the hold and released, on two accounts: charges and balances add up to the grants."""
    async with spenders(url) as running:
        for seed in SEEDS:
            await fund(store, 90 * ONE_NANO, f"poor{seed}")
            await fund(store, DOLLAR_NANO, f"rich{seed}")
            _, charged_nano = await spend_at_once(running, seed, "mixed")
            (poor_nano, poor_held_nano), (rich_nano, rich_held_nano) = [
                await money(store, f"{account}{seed}") for account in ("poor", "rich")
            ]
            assert charged_nano + poor_nano + rich_nano == 90 * ONE_NANO + DOLLAR_NANO, f"seed {seed}"
            assert (poor_held_nano, rich_held_nano) == (0, 0), f"seed {seed}"
            assert await findings(store) == [], f"seed {seed}"


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
    """Return how many requests all processes served, and the sum of their charges."""
    for one in running:
        await tell(one, f"{seed} {mix}")
    served = [await numbers(one) for one in running]
    assert [len(said) for said in served] == [2] * PROCESSES, f"a process failed with seed {seed}"
    return sum(held for held, _ in served), sum(charged_nano for _, charged_nano in served)
