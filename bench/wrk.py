"""wrk, the cheapest load generator for plain requests. It aborts open requests at its end: only for fast gateways."""

import asyncio
import re
import shutil
from pathlib import Path

from bench.load import LoadResult
from bench.workload import PLAIN, Target, chat_body

RATE_MIN = 1000.0  # below this rate the aborted requests would distort the result
GRACE_S = 30
COUNTED = re.compile(r"(\d+) requests in ([\d.]+)(ms|s|m)\b")
REFUSED = re.compile(r"Non-2xx or 3xx responses: (\d+)")
SOCKET = re.compile(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


def is_installed() -> bool:
    return shutil.which("wrk") is not None


async def drive_wrk(target: Target, at_once: int, seconds: float, folder: Path) -> LoadResult:
    """Run wrk with one thread, on the core of this process."""
    script = folder / "plain.lua"
    script.write_text(_script(target))
    url = f"http://127.0.0.1:{target.port}{target.path}"
    whole_s = max(1, round(seconds))
    options = ["-t1", f"-c{at_once}", f"-d{whole_s}s", f"--timeout={GRACE_S}s", "-s", str(script)]
    process = await asyncio.create_subprocess_exec(
        "wrk", *options, url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(whole_s + GRACE_S):
            printed, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert not said, said.decode()  # wrk continues without its script if it cannot read it
    return read_output(printed.decode())


def read_output(printed: str) -> LoadResult:
    result = LoadResult()
    if counted := COUNTED.search(printed):
        refused = REFUSED.search(printed)
        result.errors["status not 200"] = int(refused[1]) if refused else 0
        result.good = int(counted[1]) - result.errors["status not 200"]
        result.seconds = float(counted[2]) * SECONDS[counted[3]]
    if socket := SOCKET.search(printed):
        result.errors["socket error"] = sum(int(number) for number in socket.groups())
    result.errors += type(result.errors)()  # drop zero counts
    return result


def _script(target: Target) -> str:
    headers = {"content-type": "application/json", **target.headers}
    lines = [f"wrk.headers[ {_lua(name)} ] = {_lua(value)}" for name, value in headers.items()]
    return "\n".join(['wrk.method = "POST"', f"wrk.body = {_lua(chat_body(target.model, PLAIN).decode())}", *lines])


def _lua(text: str) -> str:
    """A Lua string in long brackets."""
    assert "]==]" not in text
    return f"[==[{text}]==]"
