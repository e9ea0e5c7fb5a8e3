"""The programs behind a fleet: a fresh Postgres with full durability, Valkey or Redis, and links that delay."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.postgres import OWNER, installed_programs, run_as_owner

from bench.gateways.base import free_port
from bench.gateways.install import ROOT
from bench.machine import CannotRun, ProcessTree

READY_S = 20.0
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


def url_of(socket_path: Path) -> str:
    return f"postgresql://{OWNER}@/postgres?host={socket_path.parent}"


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
        tree.wait_for_port(port, READY_S)
        yield port


@contextlib.contextmanager
def link(target: str, round_trip_ms: float, folder: Path) -> Iterator[int]:
    """A link to a port or a unix socket that adds this round-trip time; yields its port."""
    port = free_port()
    command = [sys.executable, "-m", "bench.link", str(port), target, str(round_trip_ms / 2)]
    with ProcessTree(command, None, folder / "link.log", {"PYTHONPATH": str(ROOT)}) as tree:
        tree.wait_for_port(port, READY_S)
        yield port
