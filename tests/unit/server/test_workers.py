"""Several workers: the parent replaces one that dies, and reports it. tests/cli runs whole services in workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

from cadenza.server.server import STARTUP_FAILURE
from tests.unit.server.failing_service import EXIT_CODE, MARK

PROGRAM_S = 100


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
