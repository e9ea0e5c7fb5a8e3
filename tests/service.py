"""Real `cadenza serve` processes on a store of their own, with one account and a key made by the code of control/.

A process must become ready within READY_S and end within END_S of a signal; if it does not, the test fails and shows
what the process printed.
"""

import contextlib
import functools
import http.client
import itertools
import re
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Self, TypeVar

from sqlalchemy import text

from cadenza.control.account.accounts import create_account, get_owner
from cadenza.control.keys import CapOrder, KeyOrder, create_key
from cadenza.control.money.credit import give_credit
from cadenza.core.money import format_dollars
from cadenza.core.records import COMMAND_LINE, Cap
from cadenza.fleet.changes import make_change
from cadenza.store.statements import Statement
from cadenza.store.store import Store
from tests.environment import environment
from tests.forked import Process, run_program, start_program
from tests.ledger_reader import LedgerReader
from tests.migrated import STORE_WAIT_S, checkpointed_bytes, copy_migrated_store, run_aside, with_store
from tests.processes import children, command_of
from tests.service_config import ServiceSpec

READY_S = 120.0
END_S = 120.0
WAIT_S = 120.0
CLI_S = 120.0
POLL_S, POLL_S_MAX = 0.01, 0.2
RELOADED = '"the config was reloaded"'
EMAIL = "owner@example.org"
PASSWORD = "correct horse battery staple"
# Of it, for tests that sign in: as the site makes it, and one that costs little to check.
PASSWORD_HASH = "$argon2id$v=19$m=65536,t=3,p=4$44Jz1ooPX479lOUmSG2arw$1/DJdJmSuthKhajSvyT227I4FIC/fi/zH5NtCzqC/IA"
CHEAP_HASH = "$argon2id$v=19$m=8,t=1,p=1$1/7l9EZP4aMbZ38GrsAOvw$2RZB7SEELR5uuSSnA7TT1vlsUGD5GslfWH1qo1Tp3wY"
CREDIT_NANO = 5 * 10**9
PORT = re.compile(r"API +http://\S+:(\d+)/v1\n")
COPY_ACCOUNT = """
    INSERT INTO accounts (id, email, password_hash, preferred_class, created_at)
    SELECT ?, ?, coalesce(?, password_hash), ?, created_at FROM accounts WHERE email = ?"""

SUSPEND = Statement(text("UPDATE accounts SET suspended_at = :at WHERE email = :email"))

T = TypeVar("T")


class Serving:
    """A running `cadenza serve` on a port that the system chose. What it prints goes into a file."""

    def __init__(self, process: Process, printed: Path) -> None:
        self.port = 0
        self.process = process
        self._printed = printed

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        """What the process printed so far."""
        return self._printed.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.process.poll() is not None or self._is_ready(), "the service being ready", READY_S)
        assert self.process.poll() is None, f"cadenza serve ended:\n{self.output}"

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=END_S)
        try:
            connection.request("GET", path, headers=dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, name: str) -> int:
        found = re.search(rf"^{name} ([0-9.e+]+)$", self.get("/metrics")[1], re.MULTILINE)
        assert found, name
        return int(float(found[1]))

    def _is_ready(self) -> bool:
        if not self.port and (found := PORT.search(self.output)):
            self.port = int(found[1])
        try:
            return self.port != 0 and self.get("/readyz")[0] == 200
        except OSError:
            return False


class ServiceProcess(Serving):
    """One `cadenza serve` from a deployment's folder. Its log is a file, or a pipe into one."""

    def __init__(
        self,
        folder: Path,
        log: Path,
        fault_point: str = "",
        *,
        has_piped_log: bool = False,
        port: int = 0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start it. Port 0 means any free one; `variables` are further variables of its environment."""
        self._log_writer: subprocess.Popen[bytes] | None = None
        armed = dict(variables or {}) | ({"CADENZA_FAULT_POINT": fault_point} if fault_point else {})
        command = [program(), "serve", "--config", str(folder / "cadenza.toml"), "--port", str(port)]
        with contextlib.ExitStack() as files:
            out: IO[bytes] = files.enter_context(log.open("wb"))
            if has_piped_log:
                self._log_writer = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=out)
                assert self._log_writer.stdin
                out = files.enter_context(self._log_writer.stdin)
            process = start_program(command, folder, environment(**armed), out, is_typed=bool(variables))
        super().__init__(process, log)

    @property
    def rss_bytes(self) -> int:
        """The resident memory of the process and of its children."""
        return sum(_rss_bytes(pid) for pid in [self.pid, *children(self.pid)])

    def children(self, module: str) -> list[int]:
        """Its child processes that run this module."""
        name = module.encode()
        return [pid for pid in children(self.pid) if name in command_of(pid)]

    def wait_until_killed(self) -> None:
        """Wait until its fault point has killed it."""
        assert self.process.wait(END_S) == -signal.SIGKILL, self.output

    def wait_until_ended(self) -> int:
        """The exit code."""
        try:
            return self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"cadenza serve did not end within {END_S} s:\n{self.output}") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(END_S)
        if self._log_writer:
            self._log_writer.wait(END_S)

    def stop(self) -> None:
        """End it as an operator does. It must end by itself."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.wait_until_ended()
            except AssertionError:
                self.kill()
                raise

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def reload(self) -> None:
        """Have the config read again, which also makes every route healthy again."""
        times = self.output.count(RELOADED)
        self.send_signal(signal.SIGHUP)
        wait_until(lambda: self.output.count(RELOADED) > times, "the config being read again")

    def is_draining(self) -> bool:
        return self.get("/readyz")[0] == 503


class Deployment:
    """A folder with a config and a store, and the processes that serve from it, which are killed at the end.

    The store has one account, EMAIL, with a key.
    """

    def __init__(self, spec: ServiceSpec, credit_nano: int = CREDIT_NANO) -> None:
        self.spec = spec
        self.key = ""
        self.processes: list[ServiceProcess] = []
        self._temporary = tempfile.TemporaryDirectory(prefix="cadenza-test-")
        self.folder = Path(self._temporary.name)
        self.config = self.folder / "cadenza.toml"
        self.store = self.folder / "data" / "cadenza.db"
        self.ledger = LedgerReader(self.store)
        self._credit_nano = credit_nano
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        self.config.write_text(self.spec.toml())
        self.store.parent.mkdir()
        self.store.write_bytes(_store_with_account())
        self.give_credit(EMAIL, self._credit_nano)
        self.key = self.create_key()
        return self

    def __exit__(self, *_exc: object) -> None:
        for process in self.processes:
            process.kill()
        self._temporary.cleanup()

    def start(self, fault_point: str = "", *, has_piped_log: bool = False) -> ServiceProcess:
        """Start one more process and wait until it is ready. It kills itself at the fault point."""
        process = self.begin(fault_point, has_piped_log=has_piped_log)
        process.wait_until_ready()
        return process

    def begin(self, fault_point: str = "", *, has_piped_log: bool = False) -> ServiceProcess:
        """Start one more process without waiting for it."""
        log = self.folder / f"process-{next(self._numbers)}.log"
        process = ServiceProcess(self.folder, log, fault_point, has_piped_log=has_piped_log)
        self.processes.append(process)
        return process

    def start_many(self, count: int) -> list[ServiceProcess]:
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(lambda _: self.start(), range(count)))

    def create_key(
        self, email: str = EMAIL, scopes: tuple[str, ...] = (), cap: Cap | None = None, **limits: float
    ) -> str:
        """`limits` are the key's own `requests_per_second` and `burst`."""
        capped = CapOrder(format_dollars(cap.limit_nano), cap.period) if cap else None
        order = KeyOrder("test", scopes=scopes, cap=capped, **limits)  # type: ignore[arg-type]

        async def create(db: Store) -> str:
            return (await create_key(db, await get_owner(db, email), order, now_ms()))[0]

        return _with_store(self.store, create)

    def create_account(self, credit_nano: int, preferred_class: str = "forte", *, has_costly_hash: bool = False) -> str:
        """The email address of one more account. Its password is that of the first, but costs little to check.

        A costly hash is the first account's.
        """
        email = f"account-{secrets.token_hex(8)}@example.org"
        password_hash = None if has_costly_hash else CHEAP_HASH
        values = (f"acct_{secrets.token_hex(12)}", email, password_hash, preferred_class, EMAIL)
        with contextlib.closing(sqlite3.connect(self.store, timeout=STORE_WAIT_S)) as store, store:
            store.execute(COPY_ACCOUNT, values)
        self.give_credit(email, credit_nano)
        return email

    def suspend(self, email: str, *, is_suspended: bool = True) -> None:
        values = {"email": email, "at": now_ms() if is_suspended else None}
        _with_store(self.store, lambda db: make_change(db, lambda tx: tx.change(SUSPEND, values)))

    def give_credit(self, email: str, amount_nano: int) -> None:
        if amount_nano:
            _with_store(
                self.store, lambda db: give_credit(db, email, amount_nano, "for a test", now_ms(), COMMAND_LINE)
            )

    def cli(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run one command in a process of its own."""
        command = [program(), *args, "--config", str(self.config)]
        return run_program(command, self.folder, environment(), limit_s=CLI_S)

    def files(self) -> Iterator[Path]:
        """Every file that the processes have written, their logs included."""
        return (path for path in self.folder.rglob("*") if path.is_file() and path != self.config)


class Service(Deployment):
    """A deployment with one process: it serves until the block ends, and must then stop by itself."""

    def __enter__(self) -> Self:
        super().__enter__()
        with contextlib.ExitStack() as undo:
            undo.callback(super().__exit__)
            self.start()
            undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.stop()
        finally:
            super().__exit__(*exc)

    @property
    def process(self) -> ServiceProcess:
        return self.processes[-1]

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return "".join(process.output for process in self.processes)

    def stop(self) -> None:
        self.process.stop()

    def reload(self) -> None:
        self.process.reload()


@functools.cache
def _store_with_account() -> bytes:
    """The newest schema and the first account, made once in each test process."""
    with tempfile.TemporaryDirectory(prefix="cadenza-store-") as folder:
        store = Path(folder) / "cadenza.db"
        copy_migrated_store(store)
        _with_store(store, lambda db: create_account(db, EMAIL, 0, "forte", now_ms(), password_hash=PASSWORD_HASH))
        return checkpointed_bytes(store)


def _with_store(path: Path, work: Callable[[Store], Awaitable[T]]) -> T:
    return run_aside(lambda: with_store(f"sqlite:///{path}", work))


def wait_until(happened: Callable[[], bool], what: str, within_s: float = WAIT_S) -> None:
    """Poll for a state of another process, for which there is no event: the longer it takes, the more rarely."""
    began_s = time.monotonic()
    while not happened():
        waited_s = time.monotonic() - began_s
        assert waited_s < within_s, f"not within {within_s} s: {what}"
        time.sleep(min(max(POLL_S, waited_s / 10), POLL_S_MAX))


@contextlib.contextmanager
def refusing_address() -> Iterator[str]:
    """A base address where every connection is refused: its port is bound, but nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


def program() -> str:
    return str(Path(sys.executable).parent / "cadenza")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(kilobytes) * 1024
