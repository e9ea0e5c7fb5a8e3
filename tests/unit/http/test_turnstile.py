"""The turnstile: a few requests are started in each turn of the loop, in the order in which they came."""

import asyncio
from collections.abc import Callable

from cadenza.http.connections import Turnstile


async def next_turn() -> None:
    await asyncio.sleep(0)


def stopped() -> float:
    """A clock that stands still, as that of a loop does during a turn."""
    return 7.0


def enter(turnstile: Turnstile, start: Callable[[], None]) -> None:
    """As a connection does."""
    if turnstile.pass_now():
        start()
    else:
        turnstile.wait(start)


async def test_a_few_are_started_in_each_turn() -> None:
    """Up to the number of a turn start at once; each later turn starts as many of those that wait."""
    turnstile, started = Turnstile(3, stopped), list[int]()
    for number in range(8):
        enter(turnstile, lambda number=number: started.append(number))  # type: ignore[misc]
    assert started == [0, 1, 2]
    await next_turn()
    assert started == [0, 1, 2, 3, 4, 5]
    await next_turn()
    assert started == list(range(8))


async def test_nobody_overtakes() -> None:
    """Whoever comes while others wait is started after them."""
    turnstile, started = Turnstile(2, stopped), list[str]()
    for name in ("a", "b", "c", "d", "e"):
        enter(turnstile, lambda name=name: started.append(name))  # type: ignore[misc]
    await next_turn()
    enter(turnstile, lambda: started.append("late"))
    while len(started) < 6:
        await next_turn()
    assert started == ["a", "b", "c", "d", "e", "late"]


async def test_time_passes_without_turns() -> None:
    """In each millisecond a few are started without waiting."""
    now_s = 7.0
    turnstile, started = Turnstile(2, lambda: now_s), list[int]()
    for number in range(6):
        now_s += 0.001 * (number % 2 == 0)
        enter(turnstile, lambda number=number: started.append(number))  # type: ignore[misc]
        assert started[-1] == number
