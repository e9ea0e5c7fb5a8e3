"""Far more requests at once than an account can pay for, in one process and in several.

The seed of a run is in its name or in its failure; the same seed makes the same requests.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from cadenza.core.records import Usage
from cadenza.ledger.rules import Held, Insufficient
from cadenza.ledger.writer import USUAL_TIMING, LedgerTiming
from cadenza.store.store import Store
from tests.store.forked import Fork
from tests.store.moves import (
    ALONE,
    HOUR_S,
    PATIENCE_S,
    PATIENT,
    PRICE,
    ProcessWriter,
    comes_true,
    counted,
    end_all,
    findings,
    fund,
    hold_all,
    make_hold,
    make_outcome,
    money,
    opened,
    register,
    reserves_of,
    writing,
)
from tests.store.rows import DOLLAR_NANO, run_sql
from tests.store.spenders import numbers, process

ONE_NANO = PRICE.quote(100, 16)  # held whole or not at all
REQUESTS = 500
PROCESSES = 4
SOON_S = 20.0
SEEDS = (11, 12)


@pytest.mark.parametrize("payable", [1, 77, 255, 256, 257, 430])
async def test_exactly_the_payable_requests_are_held(store: Store, payable: int) -> None:
    """Of 500 holds at once on credit for k, exactly k are taken, and settling them leaves exactly the rest."""
    rest_nano = random.Random(payable).randrange(ONE_NANO)
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


@pytest.mark.parametrize("payable", [90, 255, 300, 420])
async def test_several_writers_hold_exactly_the_payable_requests(store: Store, url: str, payable: int) -> None:
    """Three writers at once on credit for k hold k in total: what one of them has to spare is given to the others."""
    chance, rest_nano = random.Random(payable), 7
    await fund(store, payable * ONE_NANO + rest_nano)
    async with contextlib.AsyncExitStack() as stack:
        writers = [await stack.enter_async_context(writer_of(url)) for _ in range(3)]
        held: list[tuple[ProcessWriter, str]] = []

        async def request(number: int, writer: ProcessWriter) -> None:
            for _ in range(chance.randrange(30)):
                await asyncio.sleep(0)
            if isinstance(await writer.hold(make_hold(f"r{number}", allowance_tokens=16)), Held):
                held.append((writer, f"r{number}"))

        for wave in range(5):
            started = range(wave * 100, wave * 100 + 100)
            await asyncio.gather(*(request(number, chance.choice(writers)) for number in started))
            assert len(held) <= payable
        assert len(held) == payable
        assert await money(store) == (payable * ONE_NANO + rest_nano, payable * ONE_NANO)
        await asyncio.gather(*(writer.end(make_outcome(name, Usage(100, 16))) for writer, name in held))
    assert (await money(store), await findings(store)) == ((rest_nano, 0), [])


async def test_a_writer_that_falls_short_gets_what_another_has_to_spare(store: Store, url: str) -> None:
    """The other gives back all but what its request in flight holds, without being idle, and nothing is kept there."""
    await fund(store, DOLLAR_NANO)
    timing = msgspec.structs.replace(ALONE, ask_s=HOUR_S)
    async with writer_of(url, timing) as giver, writer_of(url, timing) as asker:
        await giver.hold(make_hold("g1"))
        spare_nano = (await reserves_of(store))[giver.presence.name] - PRICE.quote(100, 50)
        assert spare_nano > 0
        left_nano = DOLLAR_NANO - PRICE.quote(100, 50)
        all_of_it = make_hold("a1", prompt_tokens=left_nano // 10, allowance_tokens=0)
        held = await asker.hold(all_of_it)
        assert held == Held(left_nano, 0)
        assert await reserves_of(store) == {giver.presence.name: PRICE.quote(100, 50), asker.presence.name: left_nano}
        assert isinstance(await giver.hold(make_hold("g2")), Insufficient)
        await asyncio.gather(giver.end(make_outcome("g1")), asker.end(make_outcome("a1")))
    assert (await money(store), await findings(store)) == ((DOLLAR_NANO, 0), [])


async def test_a_process_that_does_not_answer_delays_a_refusal_briefly(store: Store) -> None:
    """A writer asks, waits for about `ask_s`, and then answers by the credit that is free."""
    await fund(store, 10 * ONE_NANO)
    async with writing(store, timing=ALONE) as (writer, metrics):
        await reserve_elsewhere(store, 10 * ONE_NANO, "TRUE")
        began_s = time.monotonic()
        assert await writer.hold(make_hold(allowance_tokens=16)) == Insufficient(0, ONE_NANO)
        assert USUAL_TIMING.ask_s <= time.monotonic() - began_s < SOON_S
        assert counted(metrics, "ledger_commits") <= 4
    assert await money(store) == (10 * ONE_NANO, 10 * ONE_NANO)


async def test_a_refusal_is_immediate_if_nobody_has_credit_to_spare(store: Store) -> None:
    """Another process holds the credit for requests in flight: there is nothing to wait for, and one commit answers."""
    await fund(store, ONE_NANO)
    timing = msgspec.structs.replace(ALONE, ask_s=PATIENCE_S)
    async with writing(store, timing=timing) as (writer, metrics):
        await reserve_elsewhere(store, ONE_NANO, "FALSE")
        assert await writer.hold(make_hold(allowance_tokens=16)) == Insufficient(0, ONE_NANO)
        assert counted(metrics, "ledger_commits") == 1


async def reserve_elsewhere(store: Store, amount_nano: int, has_spare: str) -> None:
    """Another process has reserved so much, and does not answer."""
    await register(store, "proc_silent")
    await run_sql(
        store,
        f"UPDATE accounts SET held_nano = {amount_nano}",
        f"INSERT INTO reserves VALUES ('acct_a', 'proc_silent', {amount_nano}, {has_spare}, FALSE)",
    )


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
            payable, rest_nano = chance.randrange(20, REQUESTS), chance.randrange(ONE_NANO)
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
            assert await all_is_given_back(store, f"rich{seed}"), f"seed {seed}"
            (poor_nano, poor_held_nano), (rich_nano, _) = [
                await money(store, f"{account}{seed}") for account in ("poor", "rich")
            ]
            assert charged_nano + poor_nano + rich_nano == 90 * ONE_NANO + DOLLAR_NANO, f"seed {seed}"
            assert poor_held_nano == 0, f"seed {seed}"
            assert await findings(store) == [], f"seed {seed}"


async def all_is_given_back(store: Store, account: str) -> bool:
    """Wait until the reserves of an account are idle."""

    async def is_so() -> bool:
        return (await money(store, account))[1] == 0

    return await comes_true(is_so)


@contextlib.asynccontextmanager
async def writer_of(url: str, timing: LedgerTiming = PATIENT) -> AsyncIterator[ProcessWriter]:
    """A writer with a store of its own, as another process has it."""
    async with opened(url, SOON_S) as store, writing(store, timing=timing) as (writer, _):
        yield writer


@contextlib.asynccontextmanager
async def spenders(url: str) -> AsyncIterator[list[Fork]]:
    times = f"{REQUESTS // PROCESSES}"
    async with contextlib.AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(process("spend", url, f"p{number}", times)) for number in range(PROCESSES)
        ]
        for one in running:
            await one.hear_word("ready")
        yield running


async def spend_at_once(running: list[Fork], seed: int, mix: str) -> tuple[int, int]:
    """Return how many requests all processes served, and the sum of their charges."""
    for one in running:
        one.tell(f"{seed} {mix}")
    served = [await numbers(one) for one in running]
    assert [len(said) for said in served] == [2] * PROCESSES, f"a process failed with seed {seed}"
    return sum(held for held, _ in served), sum(charged_nano for _, charged_nano in served)
