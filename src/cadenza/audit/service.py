"""The audited service: real `cadenza` processes, with a folder, an environment and a log of their own."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from cadenza.audit.client import AuditClient
from cadenza.core.errors import ControlError
from cadenza.process import end_with_parent

READY_S = 60.0
END_S = 30.0
COMMAND_S = 60.0
POLL_S = 0.05
ADDRESS = re.compile(rb'"address":"127\.0\.0\.1:(\d+)"')
PROGRAM = (sys.executable, "-P", "-c", "from cadenza.cli import main; main()")
PROXIES = ("http_proxy", "https_proxy", "all_proxy")


class AuditFolders(msgspec.Struct, frozen=True):
    """The folders of an audit. Everything below `kept` is searched; `inputs` is what a user would have written."""

    root: Path

    @property
    def inputs(self) -> Path:
        return self.root / "inputs"

    @property
    def kept(self) -> Path:
        return self.root / "kept"

    @property
    def store(self) -> Path:
        return self.kept / "store"

    @property
    def index(self) -> Path:
        return self.kept / "index"

    @property
    def logs(self) -> Path:
        return self.kept / "logs"

    @property
    def temporary(self) -> Path:
        return self.kept / "tmp"

    @property
    def home(self) -> Path:
        return self.kept / "home"

    @property
    def working(self) -> Path:
        return self.kept / "working"

    @property
    def others(self) -> tuple[Path, ...]:
        """Where nothing at all should be."""
        return self.temporary, self.home, self.working

    @property
    def config(self) -> Path:
        return self.inputs / "cadenza.toml"

    def make(self) -> None:
        for folder in (self.inputs, self.store, self.index, self.logs, *self.others):
            folder.mkdir(parents=True, mode=0o700)


class CommandEnded(msgspec.Struct, frozen=True):
    """How a command ended. What it printed is in its log."""

    code: int
    log: Path


class AuditedService:
    """`cadenza serve`, which can be started, killed, started again and stopped."""

    def __init__(self, folders: AuditFolders, environ: Mapping[str, str], variables: Mapping[str, str]) -> None:
        self._folders = folders
        self._environ = _environment(folders, environ, variables)
        self._process: asyncio.subprocess.Process | None = None
        self._starts = 0
        self.port = 0

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    async def start(self) -> None:
        """Start it, and return when it is ready."""
        self._starts += 1
        log = self._folders.logs / f"serve-{self._starts}.log"
        self._process = await self._run(log, "serve")
        try:
            async with asyncio.timeout(READY_S):
                while not await self._is_ready(log):
                    if self._process.returncode is not None:
                        raise ControlError(f"The audited service did not start:\n{_last_lines(log)}")
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise ControlError(f"The audited service was not ready in time:\n{_last_lines(log)}") from None

    async def kill(self) -> None:
        """End it and its children at once, without a chance to clean up."""
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    async def stop(self) -> None:
        """End it as an operator does; if it does not, kill it."""
        if self._process and self._process.returncode is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await self._process.wait()
        await self.kill()

    async def run(self, name: str, *arguments: str) -> CommandEnded:
        """Run another command of the program beside it."""
        log = self._folders.logs / f"{name}.log"
        process = await self._run(log, *arguments)
        try:
            async with asyncio.timeout(COMMAND_S):
                return CommandEnded(await process.wait(), log)
        except TimeoutError:
            raise ControlError(f"'cadenza {name}' did not end in {COMMAND_S:.0f} s.") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _run(self, log: Path, *arguments: str) -> asyncio.subprocess.Process:
        with log.open("wb") as output:
            return await asyncio.create_subprocess_exec(
                *PROGRAM,
                *arguments,
                "--config",
                str(self._folders.config),
                cwd=self._folders.working,
                env=self._environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    async def _is_ready(self, log: Path) -> bool:
        if not (found := ADDRESS.search(log.read_bytes())):  # noqa: ASYNC240 never waits
            return False
        self.port = int(found[1])
        with contextlib.suppress(OSError, TimeoutError):
            return (await AuditClient(self.port).get("/readyz")).status == 200
        return False


def _environment(folders: AuditFolders, environ: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process, with the secrets of the config replaced, and with folders of its own."""
    kept = {name: value for name, value in environ.items() if name.lower() not in PROXIES}
    own = {"HOME": folders.home, "TMPDIR": folders.temporary, "XDG_CACHE_HOME": folders.home / ".cache"}
    return {**kept, **{name: str(path) for name, path in own.items()}, **variables, "PYTHONDONTWRITEBYTECODE": "1"}


def _last_lines(log: Path) -> str:
    """What a service that did not start printed. It has served nothing, so it can be shown."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-5:])
