"""Work in the background: failures are logged, and do not end it."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable

import pytest

from cadenza.fleet.background import follow, repeat, running
from cadenza.observe import make_log
from cadenza.store.store import StoreRefused, StoreUnavailable

SECRET = "a sentence of a client"


def failing_first(error: Exception, done: asyncio.Event) -> Callable[[], Awaitable[None]]:
    """Work that raises the error once, and then sets `done`."""
    errors = [error]

    async def work() -> None:
        if errors:
            raise errors.pop()
        done.set()

    return work


@pytest.mark.parametrize("error", [StoreUnavailable("it is away"), StoreRefused("a rule"), RuntimeError(SECRET)])
async def test_work_is_repeated_after_an_error(error: Exception) -> None:
    """The log has the reason if it is the store's, and never the text of another error."""
    out, done = io.StringIO(), asyncio.Event()

    async with running(repeat(failing_first(error, done), 0.0, make_log(out))):
        await done.wait()
    [line] = map(json.loads, out.getvalue().splitlines())
    assert SECRET not in out.getvalue()
    assert line["event"] == ("internal error" if isinstance(error, RuntimeError) else line["event"])
    assert line.get("reason", "") == ("" if isinstance(error, RuntimeError) else str(error))


async def test_a_failed_notification_is_followed_again_without_another() -> None:
    """One notification is enough, even if the work fails at first."""
    changed, done = asyncio.Event(), asyncio.Event()
    changed.set()
    async with running(follow(changed, failing_first(StoreUnavailable("it is away"), done), make_log(io.StringIO()))):
        await done.wait()
    assert not changed.is_set()


async def test_a_loop_ends_with_its_block() -> None:
    """After the block the work is not done again."""
    times, done = 0, asyncio.Event()

    async def work() -> None:
        nonlocal times
        times += 1
        done.set()

    async with running(repeat(work, 0.0, make_log(io.StringIO()), at_once=True)):
        await done.wait()
    counted = times
    for _ in range(5):
        await asyncio.sleep(0)
    assert times == counted
