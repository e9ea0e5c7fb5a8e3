"""The audited service: real `cadenza` processes, with folders, an environment and a log of their own."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from cadenza.core.errors import ControlError
from cadenza.parts.retention.client import CaseClient
from cadenza.process import end_with_parent

READY_S = 60.0
END_S = 30.0
POLL_S = 0.05
ADDRESS = re.compile(rb'"address":"127\.0\.0\.1:(\d+)"')
PROGRAM = (sys.executable, "-P", "-c", "from cadenza.cli import main; main()")
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
FOLDERS = ("store", "logs", "tmp", "home", "working")


class AuditedService:
    """`cadenza serve`, which can be started, killed, started again and stopped.

    Everything below `kept` is searched; `inputs` is what a user would have written, and is not.
    """

    def __init__(self, root: Path) -> None:
        self.inputs, self.kept = root / "inputs", root / "kept"
        self.store, self.logs, *self.others = (self.kept / name for name in FOLDERS)
        for folder in (self.inputs, self.store, self.logs, *self.others):
            folder.mkdir(parents=True, mode=0o700)
        self.port = self.pid = 0
        self._process: asyncio.subprocess.Process | None = None
        self._starts = 0

    def configure(self, toml: str, variables: Mapping[str, str]) -> None:
        """Write its config, and give it this environment: folders of its own, and the secrets that the config names."""
        (self.inputs / "cadenza.toml").write_text(toml)
        tmp, home, _ = map(str, self.others)
        own = {"HOME": home, "TMPDIR": tmp, "XDG_CACHE_HOME": f"{home}/.cache", "PYTHONDONTWRITEBYTECODE": "1"}
        kept = {name: value for name, value in os.environ.items() if name.lower() not in PROXIES}
        self._environ = {**kept, **own, **variables}

    async def start(self) -> None:
        """Start it, and return when it is ready."""
        self._starts += 1
        log = self.logs / f"serve-{self._starts}.log"
        self._process = await self._open(log, "serve")
        self.pid = self._process.pid
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                while self._process.returncode is None:
                    if found := ADDRESS.search(log.read_bytes()):
                        self.port = int(found[1])
                        with contextlib.suppress(OSError):
                            if (await CaseClient(port=self.port).send("GET", "/readyz")).status == 200:
                                return
                    await asyncio.sleep(POLL_S)
        last = "\n".join(log.read_text(errors="replace").splitlines()[-5:])  # it has served nothing
        raise ControlError(f"The audited service did not start:\n{last}")

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
                await asyncio.wait_for(self._process.wait(), END_S)
        await self.kill()

    async def run(self, *arguments: str) -> None:
        """Run another command of the program beside it. What it prints is in its log."""
        process = await self._open(self.logs / f"{arguments[0]}.log", *arguments)
        if await process.wait():
            raise ControlError(f"'cadenza {arguments[0]}' failed in the audit.")

    async def _open(self, log: Path, *arguments: str) -> asyncio.subprocess.Process:
        command = (*PROGRAM, *arguments, "--config", str(self.inputs / "cadenza.toml"))
        with log.open("wb") as output:
            return await asyncio.create_subprocess_exec(
                *command,
                cwd=self.others[-1],
                env=self._environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
