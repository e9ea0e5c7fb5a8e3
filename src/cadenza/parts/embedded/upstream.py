"""SmolLM2, or any GGUF file, on llama.cpp in a supervised child process, behind the protocol of every upstream.

The child listens on a loopback port with a random key and ends with this process. If it dies, it is started again
after a backoff. Requests that arrive while the model loads wait for it, up to the route's first-token timeout.
The child always streams, also for a non-streaming request: a slow machine then runs into no timeout while it writes.
"""

import asyncio
import math
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from cadenza.core.faults import FaultKind
from cadenza.core.records import Route
from cadenza.http.flow import timeout_at
from cadenza.observe import Log
from cadenza.parts.embedded import Ready, Start
from cadenza.parts.embedded.kind import bundled_model
from cadenza.parts.embedded.tool_calls import ANSWER_TOKENS, CALL_TOKENS, open_with_tools
from cadenza.process import cpu_quotas
from cadenza.upstreams.base import Ask, Fault, OpenReply, Probe
from cadenza.upstreams.dialects import DIALECTS
from cadenza.upstreams.openai import OpenAIUpstream

SLOTS = 2
BACKOFF_S_MIN = 0.5
BACKOFF_S_MAX = 30.0
STEADY_S = 60.0  # a child that lived this long resets the backoff
STOP_S = 5.0
CHILD_VARIABLES = {"PATH", "HOME", "TMPDIR", "TZ", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}
CHILD_VARIABLES |= {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS"}
CHILD_PREFIXES = ("LC_", "PYTHON")
STDERR_BYTES = 2000  # the end of llama.cpp's messages, kept for the log if the model does not load

# For requests that do not set these fields. At llama.cpp's own temperature of 0.8 a small model rambles. A repetition
# penalty makes it worse: it also counts the words of the question, which the answer needs.
SAMPLING = {"temperature": msgspec.Raw(b"0.2"), "top_p": msgspec.Raw(b"0.9")}


class LoadedModel(msgspec.Struct, frozen=True):
    """A loaded model: the endpoint of its server, and whether its chat template has a form for tools."""

    endpoint: OpenAIUpstream
    knows_tools: bool


class EmbeddedUpstream:
    """A model on this machine."""

    def __init__(self, log: Log, context_tokens: int, model_path: Path | None = None) -> None:
        self._log = log
        self._context_tokens = context_tokens
        self._model_path = model_path or bundled_model()
        self._model: LoadedModel | None = None  # None while it loads
        self._loaded = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._supervisor = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        if self._supervisor:
            self._supervisor.cancel()
            with suppress(asyncio.CancelledError):
                await self._supervisor

    async def open(self, route: Route, ask: Ask) -> OpenReply:
        try:
            async with timeout_at(asyncio.get_running_loop().time() + route.timeouts.first_token_s):
                await self._loaded.wait()
        except TimeoutError:
            raise Fault(FaultKind.TIMED_OUT) from None
        assert self._model
        return await ask_model(self._model, route, ask)

    async def probe(self) -> Probe:
        if not self._model_path:
            return Probe(reachable=False, detail="the embedded model is not installed")
        if not self._model_path.is_file():
            return Probe(reachable=False, detail=f"there is no model file at {self._model_path}")
        return Probe(reachable=True, detail=f"runs {self._model_path.name} on this machine")

    async def _supervise(self) -> None:
        loop, backoff_s = asyncio.get_running_loop(), BACKOFF_S_MIN
        while True:
            started_s = loop.time()
            code = await self._run_child()
            is_steady = loop.time() - started_s > STEADY_S
            backoff_s = BACKOFF_S_MIN if is_steady else min(backoff_s * 2, BACKOFF_S_MAX)
            self._log.warning("the embedded model's process ended; starting it again", code=code, pause_s=backoff_s)
            await asyncio.sleep(backoff_s)

    async def _run_child(self) -> int:
        """Run the child until it ends, and return its exit code. The child never outlives this coroutine."""
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cadenza.parts.embedded.child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(os.environ),
            close_fds=True,
            start_new_session=True,
        )
        try:
            await self._load(child)
            return await child.wait()
        finally:
            model, self._model = self._model, None
            self._loaded.clear()
            if model:
                await model.endpoint.stop()
            await _end(child)

    async def _load(self, child: asyncio.subprocess.Process) -> None:
        assert self._model_path, "a start checks that the packages are installed"
        assert child.stdin
        assert child.stdout
        assert child.stderr
        key = secrets.token_urlsafe(32)
        threads = model_threads(usable_cores(), cpu_quotas())
        start = Start(str(self._model_path), key, SLOTS, self._context_tokens, ANSWER_TOKENS, threads)
        child.stdin.write(msgspec.json.encode(start) + b"\n")
        messages = asyncio.create_task(_last_bytes(child.stderr))
        line = await child.stdout.readline()
        if not line:
            self._log.error("the embedded model did not load", model=self._model_path.name, said=await messages)
            return
        ready = msgspec.json.decode(line, type=Ready)
        endpoint = OpenAIUpstream(f"{ready.url}/v1", key, DIALECTS["llamacpp"])
        self._model = LoadedModel(endpoint, ready.knows_tools)
        self._loaded.set()
        self._log.info("the embedded model is ready", model=self._model_path.name, threads=threads)


async def ask_model(model: LoadedModel, route: Route, ask: Ask) -> OpenReply:
    """Send the ask, with defaults for the fields that the request does not set."""
    ask = msgspec.structs.replace(ask, sampling=SAMPLING | ask.sampling, stream=True)
    if ask.tools and not model.knows_tools:
        return await open_with_tools(model.endpoint, route, ask)
    usual_tokens = CALL_TOKENS if ask.tools else ANSWER_TOKENS
    max_tokens = ask.client_limit or min(usual_tokens, ask.max_tokens or usual_tokens)
    return await model.endpoint.open(route, msgspec.structs.replace(ask, max_tokens=max_tokens))


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What Python and llama.cpp need. Everything else stays here: the keys of providers are in the environment."""
    return {
        name: value for name, value in environ.items() if name in CHILD_VARIABLES or name.startswith(CHILD_PREFIXES)
    }


async def _last_bytes(stream: asyncio.StreamReader) -> str:
    """The last bytes that the child writes. It writes only while it loads, before any request can reach it."""
    kept = b""
    while read := await stream.read(65536):
        kept = (kept + read)[-STDERR_BYTES:]
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


def model_threads(cores: int, quotas: list[float]) -> int:
    """At least 1. `quotas` are limits on CPU time, in cores."""
    return max(math.floor(min([cores, *quotas])) - 1, 1)


def usable_cores() -> int:
    """The cores that the scheduler may give to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
