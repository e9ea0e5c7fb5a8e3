"""Installs programs from Debian's packages, if the tests run as root; one process at a time.

A run of all tests begins to install everything that is missing when it starts, in one process beside the tests. A test
that needs a program waits for it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

INSTALL_S = 200.0
ALL_S = 270.0
SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # where Debian puts servers
UPDATE_S = 120.0
LOCK = Path(tempfile.gettempdir()) / "cadenza-apt.lock"
PACKAGES = {  # a program of each, or where a file of it is
    "binutils": "objdump",
    "chromium-headless-shell": "chromium-headless-shell",
    "git": "git",
    "libfaketime": "/usr/lib/*/faketime/libfaketime.so.1",
    "nginx-light": "nginx",
    "nodejs": "node",
    "npm": "npm",
    "pgbouncer": "pgbouncer",
    "postgresql": "/usr/lib/postgresql/*/bin/initdb",
    "prometheus": "prometheus",
    "redis-server": "redis-server",
    "systemd": "systemd-analyze",
    "valgrind": "valgrind",
    "wrk": "wrk",
}


class CannotInstall(Exception):
    """The program cannot be installed; the message says why."""


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test because this machine lacks something. With CI=true that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def find_or_install(program: str, package: str) -> str:
    """The path of a program. If it cannot be installed the test is skipped, and with CI=true that is a failure."""
    if not installed(program):
        try:
            install(package, limit_s=INSTALL_S)
        except CannotInstall as reason:
            skip_or_fail(f"{program} is missing: {reason}")
    found = installed(program)
    assert found
    return found


def installed(program: str) -> str | None:
    """The path of a program, unless it is missing."""
    wait_for_installation()
    return shutil.which(program, path=SYSTEM_PATH)


def wait_for_installation() -> None:
    """Wait until no process installs packages: a program that is unpacked cannot always be used yet."""
    if _may_install():
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)


def begin_to_install_all() -> None:
    """Start to install all packages that are missing, and do not wait. It goes on if the tests end before."""
    if _may_install() and any(map(_is_missing, PACKAGES)):
        command = [sys.executable, "-m", "tests.debian"]
        subprocess.Popen(
            command,
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def install(*packages: str, limit_s: float) -> None:
    """Install those that are still missing when no other process installs any more."""
    if not _may_install():
        raise CannotInstall(f"installing {' and '.join(packages)} needs root and apt-get")
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes, and apt-get does not wait for another
        if missing := [package for package in packages if _is_missing(package)]:
            _run_apt(missing, limit_s)


def _run_apt(packages: list[str], limit_s: float) -> None:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands = ((["update"], UPDATE_S), (["install", "-y", "--no-install-recommends", *packages], limit_s))
    try:
        for command, command_s in commands:
            subprocess.run(
                ["apt-get", "-qq", *command], env=quiet, capture_output=True, check=True, timeout=command_s, text=True
            )
    except subprocess.TimeoutExpired as late:
        raise CannotInstall(f"apt-get {late.cmd[2]} took more than {late.timeout:.0f} s") from None
    except subprocess.CalledProcessError as failed:
        last = failed.stderr.strip().rpartition("\n")[2]
        raise CannotInstall(f"apt-get {failed.cmd[2]} failed: {last}") from None


def _may_install() -> bool:
    return os.getuid() == 0 and shutil.which("apt-get") is not None


def _is_missing(package: str) -> bool:
    sign = PACKAGES[package]
    if sign.startswith("/"):
        return not any(Path("/").glob(sign[1:]))
    return shutil.which(sign, path=SYSTEM_PATH) is None


if __name__ == "__main__":
    install(*PACKAGES, limit_s=ALL_S)
