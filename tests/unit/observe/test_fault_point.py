"""The named steps at which a test may have the process killed: at that step, at that time, and else never."""

import signal
import subprocess
import sys

import pytest

from cadenza.observe import FaultPoint

PASS_SOME = """
import sys
from cadenza.observe import FaultPoint

at = FaultPoint(sys.argv[1])
for name in sys.argv[2:]:
    print(name, flush=True)
    at(name)
"""
WAIT_S = 30.0


def pass_steps(armed: str, *names: str) -> subprocess.CompletedProcess[str]:
    """A process of its own that passes these steps, saying each before it."""
    command = [sys.executable, "-c", PASS_SOME, armed, *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.mark.parametrize(
    ("armed", "passed"),
    [
        ("held", ["quoted", "held"]),
        ("quoted", ["quoted"]),
        ("held:1", ["quoted", "held"]),
        ("held:2", ["quoted", "held", "held"]),
    ],
)
def test_an_armed_step_kills_the_process(armed: str, passed: list[str]) -> None:
    """The process dies of SIGKILL at the step that was named, on the time that was named, and goes no further."""
    done = pass_steps(armed, "quoted", "held", "held", "settled")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.split() == passed


@pytest.mark.parametrize("armed", ["held:4", "hel", "holding"])
def test_a_step_that_is_not_reached_kills_nothing(armed: str) -> None:
    """A name that is only like it, or more times than there are, lets the process end in good order."""
    assert pass_steps(armed, "quoted", "held", "held").returncode == 0


def test_unarmed_it_does_nothing() -> None:
    """Where the environment names no step, every step is passed."""
    done = pass_steps("", "quoted", "held", "held", "settled")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["quoted", "held", "held", "settled"]


@pytest.mark.parametrize("armed", ["held:x", "held:1.5"])
def test_a_count_that_is_none_is_refused_at_once(armed: str) -> None:
    """A mistyped count is said at the start and does not quietly disarm the test."""
    with pytest.raises(ValueError, match="invalid literal"):
        FaultPoint(armed)
