"""A lane: its child is replaced when it dies or serves another owner, and nothing of it is left behind."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from cadenza.children.confine import ChildLimits
from cadenza.children.lane import LOOK_S, Lane, LaneSettings
from cadenza.children.process import Child, Died, TooHeavy
from cadenza.children.seccomp import this_machine
from cadenza.children.turns import CpuBudget, OverBudget, TurnLimits
from tests.unit.http.raw_client import until

PROBE = "tests.unit.children.probe"
LIMITS = ChildLimits(cpu_s=10, memory_bytes=512 * 1024 * 1024)
WAIT_S = 100.0


@pytest.fixture
async def lane() -> AsyncIterator[Lane]:
    lane = Lane(LaneSettings(PROBE, LIMITS, WAIT_S))
    yield lane
    await lane.stop()


async def process(lane: Lane, owner: str = "owner") -> int:
    return int(await lane.run(owner, b"say the process"))


def exists(pid: int) -> bool:
    """Also if it is a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_child_serves_one_task_after_the_other(lane: Lane) -> None:
    """It is started once, whoever asks."""
    assert await process(lane) == await process(lane, "other")


async def test_an_idle_child_is_ended() -> None:
    """Its memory is returned without a zombie, and the next task gets a new child."""
    lane = Lane(LaneSettings(PROBE, LIMITS, WAIT_S, idle_s=0.01))
    first = await process(lane)
    await until(lambda: not exists(first))
    assert await process(lane) != first
    await lane.stop()


async def test_a_lane_may_keep_owners_apart() -> None:
    """A child that may have been taken over by one owner's task does not see the tasks of the next."""
    lane = Lane(LaneSettings(PROBE, LIMITS, WAIT_S, is_shared=False))
    first = await process(lane, "a")
    assert await process(lane, "a") == first
    second = await process(lane, "b")
    assert second != first
    assert not exists(first)
    await lane.stop()
    assert not exists(second)


@pytest.mark.slow(reason="uses up the limits of a child process")
@pytest.mark.parametrize(
    "how", ["use CPU time", "abort", "crash", "divide by zero", "lose its memory", "call another system"]
)
async def test_a_task_that_takes_too_much_is_told_from_a_failure(lane: Lane, how: str) -> None:
    """The child is gone without a zombie, and the next task gets a new one."""
    first = await process(lane)
    with pytest.raises(TooHeavy):
        await lane.run("owner", how.encode())
    assert not exists(first)
    assert await process(lane) != first


@pytest.mark.parametrize("how", ["exit", "announce a huge reply", "report a sandbox again", "be killed"])
async def test_a_child_that_fails_is_replaced(lane: Lane, how: str) -> None:
    """It ends by itself, is killed, or breaks the protocol: the task fails, and the next gets a new one."""
    first = await process(lane)
    with pytest.raises(Died):
        await lane.run("owner", how.encode())
    assert not exists(first)
    assert await process(lane)


async def test_a_child_that_is_killed_while_it_waits_is_replaced(lane: Lane) -> None:
    """The next task finds it dead, leaves no zombie, and runs in a new one."""
    first = await process(lane)
    os.kill(first, signal.SIGKILL)
    second = await process_of_new_child(lane)
    assert second != first
    assert not exists(first)


async def process_of_new_child(lane: Lane) -> int:
    """A task that reaches the dying child in its last moment fails; the one after that does not."""
    try:
        return await process(lane)
    except Died:
        return await process(lane)


async def test_a_cancelled_task_ends_its_child(lane: Lane) -> None:
    """There is no other way to stop it; nothing is left of it, even if it was only just started."""
    first = await process(lane)
    for delay_s in (0.0, 0.01, 0.1):
        task = asyncio.create_task(lane.run("owner", b"use CPU time"))
        await asyncio.sleep(delay_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not exists(first)
    assert await process(lane) != first


async def test_no_other_owner_comes_between_the_tasks_of_a_turn() -> None:
    """So a request with several tasks needs one child, even if owners are kept apart."""
    lane = Lane(LaneSettings(PROBE, LIMITS, WAIT_S, is_shared=False))
    async with lane.turn("a") as run:
        first = int(await run(b"say the process", ()))
        other = asyncio.create_task(process(lane, "b"))
        await asyncio.sleep(0)
        assert int(await run(b"say the process", ())) == first
        assert not other.done()
    assert await other != first
    await lane.stop()


async def test_a_task_may_not_hold_the_child_while_others_wait() -> None:
    """It ends after `held_s` by the clock, and its owner has used up its budget. Alone it may go on."""
    lane = Lane(LaneSettings(PROBE, LIMITS, WAIT_S, held_s=0.01))
    hog = asyncio.create_task(lane.run("hog", b"use CPU time"))
    done, _ = await asyncio.wait({hog}, timeout=3 * LOOK_S)
    assert not done
    assert await process(lane, "light")
    with pytest.raises(OverBudget):
        await hog
    with pytest.raises(OverBudget):
        await process(lane, "hog")
    await lane.stop()


@pytest.mark.slow(reason="uses up the limits of a child process")
@pytest.mark.skipif(this_machine() is None, reason="only Linux tells the CPU time of a child")
@pytest.mark.parametrize("how", ["use CPU time", "exit", "leave"])
async def test_an_owner_pays_for_what_its_tasks_use(how: str) -> None:
    """For CPU time, and for the start of the next child if its task ended the one before, or its client left."""
    budget = CpuBudget(burst_s=0.02, per_s=0.0001)
    lane = Lane(LaneSettings(PROBE, LIMITS, WAIT_S, TurnLimits(cpu=budget)))
    try:
        for _ in range(3):
            await process(lane, "light")  # what the system uses for so small a task is not worth mentioning
        if how == "leave":
            leaving = asyncio.create_task(lane.run("hog", b"use CPU time"))
            await asyncio.sleep(0.05)
            leaving.cancel()
            await asyncio.wait({leaving})
        else:
            with pytest.raises((TooHeavy, Died)):
                await lane.run("hog", how.encode())
        with pytest.raises(OverBudget):
            await process(lane, "hog")
        assert await process(lane, "light")
    finally:
        await lane.stop()


async def test_the_cpu_time_of_a_child_that_is_being_ended_can_be_taken() -> None:
    """Also if the end was cancelled: a process has no CPU clock any more once another thread waited for it."""
    child = await Child.start(LIMITS, PROBE)
    pid = int(await child.exchange(b"say the process"))
    ending = asyncio.create_task(child.end())
    await asyncio.sleep(0)
    ending.cancel()
    while exists(pid):
        assert child.take_cpu_s() >= 0
    assert child.take_cpu_s() >= 0
