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
for name in ("quoted", "held", "held", "settled"):
    print(name, flush=True)
    at(name)
"""
WAIT_S = 100.0


@pytest.mark.parametrize(
    ("armed", "reached", "code"), [("held:2", 3, -signal.SIGKILL), ("hel", 4, 0), ("held:3", 4, 0)]
)
def test_an_armed_step_kills_the_process(armed: str, reached: int, code: int) -> None:
    """The process dies of SIGKILL at the named time that the step is reached, or not at all if it never is."""
    command = [sys.executable, "-c", PROGRAM, armed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, len(done.stdout.split())) == (code, reached)


def test_a_malformed_count_is_refused_at_once() -> None:
    """A mistyped count raises an error at the start and does not silently disarm the test."""
    with pytest.raises(ValueError, match="invalid literal"):
        FaultPoint("held:x")
