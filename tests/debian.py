"""Installs programs from Debian's packages, if the tests run as root; one process at a time."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

INSTALL_S = 200.0
SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # where Debian puts servers
UPDATE_S = 120.0
LOCK = Path(tempfile.gettempdir()) / "cadenza-apt.lock"


class CannotInstall(Exception):
    """The program cannot be installed; the message says why."""


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test because this machine lacks something. With CI=true that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def find_or_install(program: str, package: str) -> str:
    """The path of a program. If it cannot be installed the test is skipped, and with CI=true that is a failure."""
    if not shutil.which(program, path=SYSTEM_PATH):
        try:
            install(package, limit_s=INSTALL_S)
        except CannotInstall as reason:
            skip_or_fail(f"{program} is missing: {reason}")
    found = shutil.which(program, path=SYSTEM_PATH)
    assert found
    return found


def install(*packages: str, limit_s: float) -> None:
    if os.getuid() != 0 or not shutil.which("apt-get"):
        raise CannotInstall(f"installing {' and '.join(packages)} needs root and apt-get")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands = ((["update"], UPDATE_S), (["install", "-y", "--no-install-recommends", *packages], limit_s))
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes, and apt-get does not wait for another
        try:
            for command, command_s in commands:
                subprocess.run(
                    ["apt-get", "-qq", *command],
                    env=quiet,
                    capture_output=True,
                    check=True,
                    timeout=command_s,
                    text=True,
                )
        except subprocess.TimeoutExpired as late:
            raise CannotInstall(f"apt-get {late.cmd[2]} took more than {late.timeout:.0f} s") from None
        except subprocess.CalledProcessError as failed:
            last = failed.stderr.strip().rpartition("\n")[2]
            raise CannotInstall(f"apt-get {failed.cmd[2]} failed: {last}") from None
