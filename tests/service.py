"""A real `cadenza serve` process in a folder of its own, with an account and a key made by the command line.

The process must be ready within READY_S and end within STOP_S of a SIGTERM; where it does not, the test fails and
shows what the process printed.
"""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

READY_S = 30.0
STOP_S = 30.0
CLI_S = 60.0
PORT_TRIES = 3
POLL_S = 0.02
RELOADED = '"the config was read again"'
EMAIL = "owner@example.org"
PASSWORD = "correct horse battery staple"
CHARACTER = "You are the character layer of the tests."
MEZZO_CHARACTER = "You are the character layer of mezzo alone."
CLASSES = ("mezzo", "forte", "fortissimo")
BYTECODE = Path(__file__).parents[1] / ".pytest_cache" / "bytecode"
DROPPED = {"CADENZA_CONFIG", "CADENZA_API_KEY", "COLUMNS", "PYTHONDONTWRITEBYTECODE"}


class RouteSpec(msgspec.Struct, frozen=True):
    """One route of a class, as the config file has it. It may be silent for so long, at first and later."""

    provider: str
    model: str = "loopback-large"
    order: int = 0
    silence_s: float = 20.0
    weight: int = 1
    continues: bool = False

    def toml(self, class_id: str) -> str:
        timeouts = f"connect_s = 5, first_token_s = {self.silence_s}, idle_s = {self.silence_s}"
        return (
            f"[[classes.{class_id}.routes]]\n"
            f'provider = "{self.provider}"\nmodel = "{self.model}"\norder = {self.order}\n'
            f"weight = {self.weight}\ncontinue = {str(self.continues).lower()}\n"
            f"context_tokens = 1_000_000\nmax_output_tokens = 131_072\ntimeouts = {{ {timeouts} }}\n"
        )


class ServiceSpec(msgspec.Struct, frozen=True):
    """What a test wants served: provider name -> address, class -> routes, any further TOML, and limits of its own."""

    providers: Mapping[str, str]
    routes: Mapping[str, Sequence[RouteSpec]]
    more_toml: str = ""
    limits: Mapping[str, float] = {}

    def toml(self) -> str:
        limits = {"requests_per_second": 10_000.0, "burst": 10_000, "concurrency": 10_000, **self.limits}
        parts = [
            '[store]\nurl = "sqlite:///./data/cadenza.db"\n',
            "\n".join(["[limits]", *(f"{name} = {value}" for name, value in limits.items()), ""]),
            f'[character]\ntext = "{CHARACTER}"\n',
            *(
                f'[providers.{name}]\nkind = "openai"\nbase_url = "{url}"\nretention = "zero"\n'
                for name, url in self.providers.items()
            ),
            *(route.toml(class_id) for class_id, routes in self.routes.items() for route in routes),
            self.more_toml,
        ]
        return "\n".join(parts)


def ordinary_spec(base_url: str) -> ServiceSpec:
    """Every class on one upstream, each as a model of its own; mezzo with a character of its own."""
    routes = {class_id: [RouteSpec("loopback", f"loopback-{class_id}")] for class_id in CLASSES}
    return ServiceSpec({"loopback": base_url}, routes, f'[classes.mezzo.character]\ntext = "{MEZZO_CHARACTER}"\n')


class Service:
    """`with Service(spec) as service` serves until the block ends; `stop` and `start` again keep its data."""

    def __init__(self, spec: ServiceSpec) -> None:
        self.spec = spec
        self.key = ""
        self.port = 0
        self._temporary = tempfile.TemporaryDirectory(prefix="cadenza-test-")
        self.folder = Path(self._temporary.name)
        self._config = self.folder / "cadenza.toml"
        self._log = self.folder / "process.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._config.write_text(self.spec.toml())
        with contextlib.ExitStack() as undo:
            undo.callback(self._temporary.cleanup)
            undo.callback(self.stop)
            self.start()
            self.cli("account", "create", EMAIL, "--credit", "5.00", "--password-stdin", given=PASSWORD)
            self.key = self.create_key()
            undo.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        try:
            self.stop()
        finally:
            self._temporary.cleanup()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def output(self) -> str:
        """What the process printed so far, on both of its outputs."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        for _ in range(PORT_TRIES):
            self.port = free_port()
            if self._start_on(self.port):
                return
        raise AssertionError(f"cadenza serve did not become ready:\n{self.output}")

    def stop(self) -> None:
        """End the process as an operator would. It must end by itself."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)
            raise AssertionError(f"cadenza serve did not end within {STOP_S} s of SIGTERM:\n{self.output}") from None

    def reload(self) -> None:
        """Have the config read again, which also makes every route fit again."""
        times = self.output.count(RELOADED)
        os.kill(self.pid, signal.SIGHUP)
        deadline = time.monotonic() + READY_S
        while self.output.count(RELOADED) == times:
            assert time.monotonic() < deadline, f"the config was not read again:\n{self.output}"
            time.sleep(POLL_S)

    def cli(self, *args: str, given: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one command beside the server."""
        command = [_program(), *args, "--config", str(self._config)]
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=CLI_S, env=environment(), check=False
        )
        assert not check or done.returncode == 0, f"cadenza {' '.join(args)}: {done.stderr}"
        return done

    def create_key(self, *options: str) -> str:
        return self.cli("key", "create", "--account", EMAIL, *options).stdout.strip()

    def rss_bytes(self) -> int:
        """The resident memory of the process and of its children."""
        return sum(_rss_bytes(pid) for pid in [self.pid, *_children(self.pid)])

    def files(self) -> Iterator[Path]:
        """Everything that the process has written, its output included."""
        return (path for path in self.folder.rglob("*") if path.is_file() and path != self._config)

    def _start_on(self, port: int) -> bool:
        """Whether the process became ready; False where it ended first, as it does when the port is taken."""
        command = [_program(), "serve", "--config", str(self._config), "--port", str(port)]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(), cwd=self.folder
            )
        self._process = process
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if _is_ready(port):
                return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
                self._process = None
                return False
        self.stop()
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def refusing_address() -> Iterator[str]:
    """A base address where every connection is refused: its port is taken, but nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _program() -> str:
    return str(Path(sys.executable).parent / "cadenza")


def environment(**variables: str) -> dict[str, str]:
    """What a process of ours is started with. Bytecode is kept in pytest's own cache: a start without any is slow."""
    kept = {name: value for name, value in os.environ.items() if name not in DROPPED}
    own = {"PYTHONPYCACHEPREFIX": str(BYTECODE), "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    return kept | own | variables


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(kilobytes) * 1024
