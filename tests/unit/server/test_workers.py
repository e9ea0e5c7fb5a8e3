"""Several workers: the parent replaces one that dies, and reports it. tests/cli runs whole services in workers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cadenza.server.server import STARTUP_FAILURE
from tests.unit.server.failing_service import EXIT_CODE, MARK
from tests.unit.server.recovering_service import MARKS

PROGRAM_S = 100
pytestmark = pytest.mark.slow(reason="starts several workers, and waits before it tries again")


def test_a_dead_worker_is_replaced_and_logged(tmp_path: Path) -> None:
    """The log names the process and its exit code; a worker that cannot start ends them all with its exit code."""
    finished = subprocess.run(
        [sys.executable, "-m", "tests.unit.server.failing_service"],
        env={**os.environ, MARK: str(tmp_path / "mark")},
        stderr=subprocess.PIPE,
        timeout=PROGRAM_S,
        check=False,
    )
    assert finished.returncode == STARTUP_FAILURE, finished.stderr
    [line] = map(json.loads, finished.stderr.splitlines())
    assert line["event"] == "a worker ended; starting another"
    assert line["exit_code"] == EXIT_CODE
    assert line["pid"] > 0


def test_a_worker_that_cannot_be_replaced_yet_is_tried_again(tmp_path: Path) -> None:
    """Once a worker has started, later ones that cannot are tried again after growing pauses, until one serves."""
    program = [sys.executable, "-m", "tests.unit.server.recovering_service"]
    environment = {**os.environ, MARKS: str(tmp_path)}
    with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout
        assert running.stdout.readline() == b"serving\n"
        running.send_signal(signal.SIGTERM)
        _, log = running.communicate(timeout=PROGRAM_S)
    assert running.returncode == 0, log
    lines = [json.loads(line) for line in log.splitlines()]
    assert [(line["event"], line.get("pause_s")) for line in lines] == [
        ("a worker ended; starting another", None),
        ("a worker could not start; trying again", 1.0),
        ("a worker could not start; trying again", 2.0),
    ]
