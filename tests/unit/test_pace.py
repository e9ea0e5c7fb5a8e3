"""Long work on the event loop, and what it leaves to others."""

import asyncio
import itertools

import pytest

from cadenza.clock import elapsed_s
from cadenza.pace import Pace

STEP_S = 0.01


async def test_steps_take_turns_and_half_of_the_time_at_most() -> None:
    """Between two steps that share a pace, whoever makes them, there is a pause at least as long as the first."""
    pace, steps = Pace(), list[tuple[float, float]]()

    async def work() -> None:
        for _ in range(2):
            async with pace:
                began_s = elapsed_s()
                while elapsed_s() < began_s + STEP_S:
                    pass
                steps.append((began_s, elapsed_s()))

    await asyncio.gather(work(), work())
    pauses = [after[0] - before[1] for before, after in itertools.pairwise(steps)]
    assert len(pauses) == 3
    assert min(pauses) > STEP_S * 0.9  # timers may be a millisecond early


async def test_a_step_that_fails_ends_its_turn() -> None:
    """The next one begins."""
    pace = Pace()
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            async with pace:
                raise ValueError("broken")
