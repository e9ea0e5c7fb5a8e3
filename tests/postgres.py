"""A temporary Postgres cluster on a unix socket, removed when its context ends.

If Postgres is missing and the tests run as root, Debian's package is installed; otherwise the test is skipped.
"""

import itertools
import os
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedRWPair
from pathlib import Path

from tests.debian import CannotInstall, install, skip_or_fail, wait_for_installation
from tests.migrated import migrate_store
from tests.processes import children, stopped

RUN_S = 120.0
INSTALL_S = 240.0
OWNER = "postgres"
TEMPLATE = "migrated"
PORT = 5432
SETTINGS = {
    "listen_addresses": "''",
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
    "shared_buffers": "32MB",
    "dynamic_shared_memory_type": "mmap",  # in the folder, so that a crash leaves nothing behind
}
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 * 2**30
FIRST_WITH_STRATEGIES = 15
PROTOCOL = struct.pack("!i", 3 << 16)


class Postgres:
    """A cluster, running unless it is stopped."""

    def __init__(self, programs: Path, folder: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        self.programs = programs
        self.folder = folder
        self.socket = folder / f".s.PGSQL.{settings.get('port', PORT)}"
        self._settings = settings
        self._numbers = itertools.count(1)
        self._has_template = False

    def make(self) -> None:
        """Make the cluster, which does not run yet."""
        data = self.folder / "data"
        run_as_owner([self.programs / "initdb", "-D", data, "-U", OWNER, "-A", "trust", "-N", "-E", "UTF8"])

    def start(self) -> None:
        settings = " ".join(f"-c {name}={value}" for name, value in self._settings.items())
        self._control("-l", self.folder / "log", "-o", f"-k {self.folder} {settings}", "start")

    def stop(self) -> None:
        """Stop at once, as a crash does: every connection is lost."""
        self._control("-m", "immediate", "stop")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All processes of the server are stopped for the block: nothing is answered and nothing is closed."""
        with stopped([self._pid, *children(self._pid)]):
            yield

    @contextmanager
    def database(self) -> Iterator[str]:
        """The address of a fresh, empty database."""
        with self._database_like("template1") as url:
            yield url

    @contextmanager
    def migrated_database(self) -> Iterator[str]:
        """The address of a fresh database with the newest schema: a copy of one that the real migrations made."""
        if not self._has_template:
            self._create(TEMPLATE, "template1")
            migrate_store(self._url(TEMPLATE))
            self._has_template = True
        with self._database_like(TEMPLATE) as url:
            yield url

    @contextmanager
    def _database_like(self, template: str) -> Iterator[str]:
        name = f"test_{next(self._numbers)}"
        self._create(name, template)
        yield self._url(name)
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _create(self, name: str, template: str) -> None:
        version = int((self.folder / "data" / "PG_VERSION").read_text())
        strategy = "STRATEGY file_copy" if version >= FIRST_WITH_STRATEGIES else ""
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} {strategy}")

    def execute(self, sql: str, database: str = OWNER) -> None:
        """Run a statement over a bare socket, which takes a tenth of the time of Postgres's programs."""
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rwb") as wire:
            connection.settimeout(RUN_S)
            connection.connect(str(self.socket))
            _send(wire, b"", PROTOCOL + f"user\0{OWNER}\0database\0{database}\0\0".encode())
            _wait_until_ready(wire)
            _send(wire, b"Q", sql.encode() + b"\0")
            _wait_until_ready(wire)

    def _url(self, name: str) -> str:
        return f"postgresql://{OWNER}@/{name}?host={self.folder}"

    @property
    def _pid(self) -> int:
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def _control(self, *words: str | Path) -> None:
        run_as_owner([self.programs / "pg_ctl", "-D", self.folder / "data", "-w", *words])


@contextmanager
def postgres_folder(*, in_memory: bool = True) -> Iterator[Path]:
    """A folder that belongs to the owner of Postgres, in memory if there is room."""
    has_room = in_memory and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN
    folder = Path(tempfile.mkdtemp(prefix="cadenza-pg-", dir=MEMORY if has_room else "/tmp"))
    try:
        if os.getuid() == 0:
            shutil.chown(folder, OWNER)
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def running_postgres(*, in_memory: bool = True) -> Iterator[Postgres]:
    programs = find_programs()
    with postgres_folder(in_memory=in_memory) as folder:
        server = Postgres(programs, folder)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _send(wire: BufferedRWPair, kind: bytes, body: bytes) -> None:
    wire.write(kind + struct.pack("!i", len(body) + 4) + body)
    wire.flush()


def _wait_until_ready(wire: BufferedRWPair) -> None:
    """Read messages until the one that says that the server is ready. An error fails the test."""
    kind = b""
    while kind != b"Z":
        kind, length = struct.unpack("!ci", wire.read(5))
        body = wire.read(length - 4)
        assert kind != b"E", body


def find_programs() -> Path:
    """The folder of Postgres's programs. Without them the test is skipped, and with CI=true it fails."""
    wait_for_installation()
    found = installed_programs()
    if found is None:
        try:
            install("postgresql", limit_s=INSTALL_S)
        except CannotInstall as reason:
            skip_or_fail(f"there is no initdb and pg_ctl on the PATH, and {reason}")
        found = installed_programs()
    if found is None:
        skip_or_fail("Postgres was installed, but initdb and pg_ctl are not where Debian puts them")
    return found


def installed_programs() -> Path | None:
    on_path = shutil.which("initdb")
    if on_path is not None and shutil.which("pg_ctl"):
        return Path(on_path).resolve().parent  # a link has only some of the programs beside it
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return versions[-1].parent if versions else None


def run_as_owner(command: Sequence[str | Path]) -> None:
    """Postgres refuses to run as root."""
    owner = OWNER if os.getuid() == 0 else None
    done = subprocess.run(
        command,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=RUN_S,
        user=owner,
        group=owner,
        extra_groups=[] if owner else None,
        check=False,
        text=True,
    )
    assert done.returncode == 0, f"{command[0]} failed: {done.stderr}"
