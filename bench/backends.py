"""The programs behind a fleet: a fresh Postgres with full durability, Valkey or Redis, and links that delay."""

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.postgres import OWNER, installed_programs, run_as_owner

from bench.gateways.base import free_port
from bench.gateways.install import ROOT
from bench.machine import CannotRun, ProcessTree

READY_S = 20.0
POLL_S = 0.02
CONNECTIONS_MAX = 200
VALKEY_PID = "valkey.pid"
SHARED_PROGRAMS = ("valkey-server", "redis-server")


@contextlib.contextmanager
def postgres() -> Iterator[Path]:
    """A cluster on a unix socket; yields the socket's path. Commits are durable, as those of SQLite are."""
    programs = installed_programs()
    if programs is None:
        raise CannotRun("Postgres is not installed: there is no initdb")
    folder = Path(tempfile.mkdtemp(prefix="cadenza-bench-pg-", dir="/tmp"))
    control: list[str | Path] = [programs / "pg_ctl", "-D", folder / "data", "-w"]
    try:
        if os.getuid() == 0:
            shutil.chown(folder, OWNER)
        run_as_owner([programs / "initdb", "-D", folder / "data", "-U", OWNER, "-A", "trust", "-N", "-E", "UTF8"])
        settings = f"-k {folder} -c listen_addresses='' -c max_connections={CONNECTIONS_MAX}"
        run_as_owner([*control, "-l", folder / "log", "-o", settings, "start"])
        try:
            yield folder / ".s.PGSQL.5432"
        finally:
            run_as_owner([*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def valkey(folder: Path) -> Iterator[int]:
    """Valkey, or Redis, without persistence; yields its port."""
    program = next(filter(None, map(shutil.which, SHARED_PROGRAMS)), None)
    if program is None:
        raise CannotRun(f"none of {', '.join(SHARED_PROGRAMS)} is installed")
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    command += ["--pidfile", str(folder / VALKEY_PID)]
    with ProcessTree(command, None, folder / "valkey.log") as tree:
        _wait_for_port(port, tree)
        yield port


@contextlib.contextmanager
def link(target: str, round_trip_ms: float, folder: Path) -> Iterator[int]:
    """A link to a port or a unix socket that adds this round-trip time; yields its port."""
    port = free_port()
    command = [sys.executable, "-m", "bench.link", str(port), target, str(round_trip_ms / 2)]
    with ProcessTree(command, None, folder / "link.log", {"PYTHONPATH": str(ROOT)}) as tree:
        _wait_for_port(port, tree)
        yield port


def _wait_for_port(port: int, tree: ProcessTree) -> None:
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s and tree.is_running:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(POLL_S)
    raise CannotRun(f"a program behind the fleet did not start: {tree.log_tail()}")
