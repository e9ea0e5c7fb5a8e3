"""The fault point: it kills the process at the named step, the named time that it is reached, and never else."""

import signal
import subprocess
import sys

import pytest

from cadenza.observe import FaultPoint

PROGRAM = """
import sys
from cadenza.observe import FaultPoint

at = FaultPoint(sys.argv[1])
for name in sys.argv[2:]:
    print(name, flush=True)
    at(name)
"""
WAIT_S = 100.0


def run_steps(armed: str, *names: str) -> subprocess.CompletedProcess[str]:
    """Run a process that reaches these steps and prints the name of each before it."""
    command = [sys.executable, "-c", PROGRAM, armed, *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.mark.parametrize(
    ("armed", "reached"),
    [
        ("held", ["quoted", "held"]),
        ("quoted", ["quoted"]),
        ("held:1", ["quoted", "held"]),
        ("held:2", ["quoted", "held", "held"]),
    ],
)
def test_an_armed_step_kills_the_process(armed: str, reached: list[str]) -> None:
    """The process dies of SIGKILL at the named step, the named time that it is reached."""
    done = run_steps(armed, "quoted", "held", "held", "settled")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.split() == reached


@pytest.mark.parametrize("armed", ["held:4", "hel", "holding"])
def test_a_step_that_is_not_reached_kills_nothing(armed: str) -> None:
    """Another name, or a count that is never reached, lets the process end normally."""
    assert run_steps(armed, "quoted", "held", "held").returncode == 0


def test_a_fault_point_that_is_not_armed_does_nothing() -> None:
    """If the environment names no step, the process reaches all of them."""
    done = run_steps("", "quoted", "held", "held", "settled")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["quoted", "held", "held", "settled"]


@pytest.mark.parametrize("armed", ["held:x", "held:1.5"])
def test_a_malformed_count_is_refused_at_once(armed: str) -> None:
    """A mistyped count raises an error at the start and does not silently disarm the test."""
    with pytest.raises(ValueError, match="invalid literal"):
        FaultPoint(armed)
