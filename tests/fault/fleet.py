"""Real `cadenza serve` processes that share one SQLite store, to be killed, starved and started again.

The account and its key are made by the same code that the command line uses. Every wait is bounded and fails with what
the process printed.
"""

import asyncio
import contextlib
import http.client
import itertools
import re
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Self

from cadenza.control.accounts import create_account
from cadenza.control.keys import KeyOrder, create_key
from cadenza.store.database import Database, migrate
from tests.cli.program import PROGRAM, run
from tests.fault.books import Books
from tests.service import CLASSES, RouteSpec, ServiceSpec, environment

EMAIL = "owner@example.org"
PASSWORD = "correct horse battery staple"
READY_S = 30.0
END_S = 30.0
POLL_S = 0.01
PORT = re.compile(r"API +http://127\.0\.0\.1:(\d+)/v1\n")


class Node:
    """One process of a fleet."""

    _scribe: subprocess.Popen[bytes] | None = None  # writes what the process prints, where it does not do so itself

    def __init__(self, folder: Path, number: int, fault_point: str, *, has_piped_log: bool) -> None:
        self.port = 0
        self._log = folder / f"node-{number}.log"
        armed = {"CADENZA_FAULT_POINT": fault_point} if fault_point else {}
        command = [str(PROGRAM), "serve", "--config", str(folder / "cadenza.toml"), "--port", "0"]
        with contextlib.ExitStack() as files:
            log: IO[bytes] = files.enter_context(self._log.open("wb"))
            if has_piped_log:
                self._scribe = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log)
                assert self._scribe.stdin
                log = files.enter_context(self._scribe.stdin)
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment(**armed), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        wait_until(lambda: self._process.poll() is not None or self._is_ready(), "the service being ready", READY_S)
        assert self._process.poll() is None, f"cadenza serve ended:\n{self.output}"

    def wait_until_killed(self) -> None:
        """By its own fault point."""
        assert self._process.wait(END_S) == -signal.SIGKILL, self.output

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(END_S)
        if self._scribe:
            self._scribe.wait(END_S)

    def stop(self) -> None:
        """As an operator would; it must end by itself."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"cadenza serve did not end within {END_S} s of SIGTERM:\n{self.output}") from None

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_until_ended(self, within_s: float = END_S) -> int:
        """Its exit code."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"cadenza serve did not end within {within_s} s:\n{self.output}") from None

    @property
    def rss_bytes(self) -> int:
        """Its resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def is_listening(self) -> bool:
        try:
            return self.get("/healthz")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=END_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, name: str) -> int:
        found = re.search(rf"^{name} ([0-9.e+]+)$", self.get("/metrics")[1], re.MULTILINE)
        assert found, name
        return int(float(found[1]))

    def _has_port(self) -> bool:
        """The system chose it, and the screen shows it."""
        if not self.port and (found := PORT.search(self.output)):
            self.port = int(found[1])
        return self.port != 0

    def _is_ready(self) -> bool:
        try:
            return self._has_port() and self.get("/readyz")[0] == 200
        except OSError:
            return False


class Fleet:
    """A store with one account, and the processes that serve from it; all of them end with the block."""

    def __init__(self, upstream_url: str, credit_nano: int, spec: ServiceSpec | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="cadenza-fault-")
        self.folder = Path(self._temporary.name)
        self.store = self.folder / "data" / "cadenza.db"
        self.books = Books(self.store)
        self.nodes: list[Node] = []
        self._numbers = itertools.count(1)
        routes = {class_id: [RouteSpec("loopback", f"loopback-{class_id}")] for class_id in CLASSES}
        self._spec = spec or ServiceSpec({"loopback": upstream_url}, routes)
        self._credit_nano = credit_nano
        self.key = ""

    def __enter__(self) -> Self:
        (self.folder / "cadenza.toml").write_text(self._spec.toml())
        self.key = asyncio.run(self._make_store())
        return self

    def __exit__(self, *_exc: object) -> None:
        for node in self.nodes:
            node.kill()
        self._temporary.cleanup()

    def start(self, fault_point: str = "", *, has_piped_log: bool = False) -> Node:
        """One more process, ready; it kills itself at the fault point. Its log is a file, or a pipe into one."""
        node = self.begin(fault_point, has_piped_log=has_piped_log)
        node.wait_until_ready()
        return node

    def begin(self, fault_point: str = "", *, has_piped_log: bool = False) -> Node:
        """One more process, which is starting."""
        node = Node(self.folder, next(self._numbers), fault_point, has_piped_log=has_piped_log)
        self.nodes.append(node)
        return node

    def start_many(self, count: int) -> list[Node]:
        with ThreadPoolExecutor(count) as at_once:
            return list(at_once.map(lambda _: self.start(), range(count)))

    def cli(self, *args: str) -> subprocess.CompletedProcess[str]:
        """One command beside the servers."""
        done = run(self.folder, *args, "--config", str(self.folder / "cadenza.toml"))
        assert done.returncode == 0, f"cadenza {' '.join(args)}: {done.stdout}{done.stderr}"
        return done

    async def _make_store(self) -> str:
        db = Database(f"sqlite:///{self.store}")
        try:
            await migrate(db)
            now_ms = time.time_ns() // 1_000_000
            await create_account(db, EMAIL, PASSWORD, self._credit_nano, "forte", now_ms)
            return (await create_key(db, EMAIL, KeyOrder("fault"), now_ms))[0]
        finally:
            await db.close()


def wait_until(happened: Callable[[], bool], what: str, within_s: float = 10.0) -> None:
    """For what no event tells: the state of another process."""
    deadline_s = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        time.sleep(POLL_S)
