"""Turns: one task at a time, owners in turn, a bounded queue, and nothing lost when a task is cancelled."""

import asyncio

import pytest

from cadenza.children.turns import CpuBudget, OverBudget, QueueFull, TurnLimits, Turns

LIMITS = TurnLimits(waiting_max=6, waiting_per_owner_max=3, wait_s=60)


class Line:
    """Tasks that take turns. Each runs until it is released, and `ran` has their owners in the order of their turns."""

    def __init__(self, limits: TurnLimits = LIMITS) -> None:
        self.turns = Turns(limits)
        self.ran: list[str] = []
        self._running: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def task(self, owner: str) -> None:
        async with self.turns.turn(owner):
            self.ran.append(owner)
            released = asyncio.Event()
            self._running.put_nowait(released)
            await released.wait()

    async def release(self) -> None:
        """Let the running task end."""
        (await self._running.get()).set()

    async def start(self, *owners: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.task(owner)) for owner in owners]
        await asyncio.sleep(0)
        return tasks


async def finish(line: Line, tasks: list[asyncio.Task[None]]) -> None:
    for _ in tasks:
        await line.release()
    await asyncio.gather(*tasks)


async def test_one_task_runs_at_a_time() -> None:
    """The second begins when the first has ended."""
    line = Line()
    tasks = await line.start("a", "b")
    assert line.ran == ["a"]
    await finish(line, tasks)
    assert line.ran == ["a", "b"]


async def test_owners_take_turns() -> None:
    """An owner that has many tasks waiting does not delay the one task of another."""
    line = Line()
    await finish(line, await line.start("a", "a", "a", "a", "b", "c"))
    assert line.ran == ["a", "a", "b", "c", "a", "a"]


@pytest.mark.parametrize(("owners", "refused"), [("aaaa", "a"), ("aabbccd", "e")])
async def test_the_queue_is_bounded_for_each_owner_and_in_all(owners: str, refused: str) -> None:
    """A task beyond the bound is refused at once; those that wait are served."""
    line = Line()
    tasks = await line.start(*owners)
    with pytest.raises(QueueFull):
        await line.task(refused)
    await finish(line, tasks)
    again = await line.start(*owners)
    assert not any(task.done() for task in again)  # those that were served have left their places
    await finish(line, again)


async def test_an_unbounded_wait_ignores_the_bounds() -> None:
    """It gets its turn although the queue is full."""
    line = Line(TurnLimits(waiting_max=0, waiting_per_owner_max=0, wait_s=0))
    tasks = await line.start("a")
    with pytest.raises(QueueFull):
        await line.task("b")

    async def wait() -> None:
        async with line.turns.turn("b", is_bounded=False):
            line.ran.append("b")

    waiting = asyncio.create_task(wait())
    await finish(line, tasks)
    await waiting
    assert line.ran == ["a", "b"]


async def test_a_wait_has_a_limit() -> None:
    """A task whose turn does not come in time is refused, and leaves no gap behind."""
    line = Line(TurnLimits(wait_s=0.01))
    first = await line.start("a")
    with pytest.raises(QueueFull):
        await line.task("b")
    await finish(line, first)
    await finish(line, await line.start("c"))
    assert line.ran == ["a", "c"]


async def test_a_cancelled_task_gives_up_its_place() -> None:
    """Waiting or running, a cancelled task lets the next one run."""
    line = Line()
    running, waiting, last = await line.start("a", "b", "c")
    waiting.cancel()
    running.cancel()
    await asyncio.wait({running, waiting})
    await asyncio.sleep(0)
    await line.release()  # of the task that was cancelled while it ran
    await line.release()
    await last
    assert line.ran == ["a", "c"]


async def test_a_task_cancelled_as_its_turn_comes_passes_it_on() -> None:
    """The turn that it was just given goes to the next task."""
    line = Line()
    async with line.turns.turn("a"):
        chosen, last = await line.start("b", "c")
    chosen.cancel()  # it was given its turn, but has not run yet
    await asyncio.wait({chosen})
    await line.release()
    await last
    assert line.ran == ["c"]


async def test_the_owner_that_used_the_least_goes_first() -> None:
    """With however many tasks waiting, an owner that used more CPU time than another comes behind it."""
    line = Line()
    tasks = await line.start("hog", "hog", "hog", "medium", "light")
    line.turns.charge("hog", 3.0)
    line.turns.charge("medium", 1.0)
    await finish(line, tasks)
    assert line.ran == ["hog", "light", "medium", "hog", "hog"]


async def test_an_owner_that_used_up_its_budget_is_refused_while_others_are_there() -> None:
    """What it has in the queue is refused too, and is told when to try again; another owner is served."""
    line = Line(TurnLimits(cpu=CpuBudget(burst_s=2, per_s=0.5)))
    tasks = await line.start("hog", "hog", "hog", "light")
    line.turns.charge("hog", 4.0)
    await line.release()
    await line.release()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert line.ran == ["hog", "light"]
    assert [type(one) for one in done] == [type(None), OverBudget, OverBudget, type(None)]
    with pytest.raises(OverBudget) as refused:
        await line.task("hog")
    assert 3.0 < refused.value.retry_s <= 4.0


async def test_an_owner_that_used_less_finds_a_place_in_a_full_queue() -> None:
    """The newest task of the owner that used the most is refused instead."""
    line = Line()
    tasks = await line.start(*"aaaabbb")
    line.turns.charge("a", 1.0)
    line.turns.charge("b", 2.0)
    tasks += await line.start("light")
    await asyncio.sleep(0)
    for _ in range(7):
        await line.release()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [place for place, one in enumerate(done) if isinstance(one, QueueFull)] == [6]
    assert line.ran == [*"a", "light", *"aaabb"]


async def test_an_urgent_task_has_no_budget() -> None:
    """A task that must not be refused gets its turn from an owner that has used up its CPU time."""
    line = Line(TurnLimits(cpu=CpuBudget(burst_s=2, per_s=0.5)))
    line.turns.charge("hog", 4.0)
    tasks = await line.start("light")

    async def urgent() -> None:
        async with line.turns.turn("hog", is_bounded=False):
            line.ran.append("hog")

    waiting = asyncio.create_task(urgent())
    await asyncio.sleep(0)
    await finish(line, tasks)
    await waiting
    assert line.ran == ["light", "hog"]


async def test_urgent_tasks_take_no_places() -> None:
    """However many of them an owner has, a task of another owner waits for a turn and is not refused."""
    line = Line()

    async def urgent() -> None:
        async with line.turns.turn("hog", is_bounded=False):
            line.ran.append("hog")

    tasks = await line.start("hog")
    line.turns.charge("hog", 1.0)
    waiting = [asyncio.create_task(urgent()) for _ in range(2 * LIMITS.waiting_max)]
    await asyncio.sleep(0)
    await finish(line, tasks + await line.start("light"))
    await asyncio.gather(*waiting)
    assert line.ran[:3] == ["hog", "light", "hog"]


async def test_a_turn_is_not_given_to_a_task_that_was_just_cancelled() -> None:
    """The running task ends in the instant in which a waiting one is cancelled: the one behind it runs."""
    line = Line()
    async with line.turns.turn("a"):
        cancelled, last = await line.start("b", "c")
        cancelled.cancel()
    await asyncio.wait({cancelled})
    await finish(line, [last])
    assert line.ran == ["c"]
