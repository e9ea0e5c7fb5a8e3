"""The processes that run the tests lose none of them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.workers import Line, run_in_workers

def pytest_runtestloop(session):
    groups = {}
    for item in session.items:
        groups.setdefault(item.path, []).append(item)
    half = len(groups) // 2
    run_in_workers(session, [Line([*groups.values()][:half], 1), Line([*groups.values()][half:], 1)])
    return True
"""
PASSES = """
def test_passes(tmp_path):
    (tmp_path / "own").mkdir()
"""
FAILS = """
def test_fails():
    print("shown")
    assert 1 == 2
"""
DIES = """
import os

def test_dies():
    os._exit(0)

def test_comes_too_late():
    pass
"""


def run(folder: Path, *files: str) -> tuple[int, str]:
    """The exit code of pytest, and what it printed."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    for number, text in enumerate(files):
        (folder / f"test_{number}.py").write_text(text)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:schemathesis",
        "--rootdir",
        folder,
        folder,
    ]
    bare = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout


def test_reports_of_all_workers_are_counted(tmp_path: Path) -> None:
    """What passes, fails and is printed in any process is in the report of the run."""
    code, printed = run(tmp_path, PASSES, FAILS, PASSES, FAILS)
    assert code == 1
    assert "2 failed, 2 passed" in printed
    assert printed.count("\nshown\n") == 2
    assert "test_1.py::test_fails" in printed
    assert run(tmp_path, PASSES, PASSES, PASSES, PASSES)[0] == 0


def test_a_worker_that_dies_fails_the_run(tmp_path: Path) -> None:
    """And so do the tests that it did not come to, though its exit code is that of success."""
    code, printed = run(tmp_path, PASSES, DIES)
    assert code == 1
    assert "its process died" in printed
    assert "2 tests did not end" in printed
