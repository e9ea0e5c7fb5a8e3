"""A system that takes fewer limits of a process than Linux does: macOS on Apple silicon."""

import base64
import re
import resource
from pathlib import Path

from tests.fault.conftest import Deploy
from tests.loopback import LoopbackUpstream, Whole, usage_of
from tests.processes import read_of
from tests.raw_client import MESSAGES, RawClient
from tests.service import ServiceProcess

WARNING = '"event":"the system refuses limits of a process"'
LIKE_MACOS = f"""
import importlib.util

spec = importlib.util.spec_from_file_location("resource", {resource.__file__!r})
real = importlib.util.module_from_spec(spec)
spec.loader.exec_module(real)
globals().update(vars(real))
real.setrlimit(RLIMIT_NOFILE, (256, real.getrlimit(RLIMIT_NOFILE)[1]))
ACCEPTED = {{RLIMIT_AS: range(382 * 2**30, 2**63), RLIMIT_NOFILE: range(10_241)}}


def setrlimit(kind, limits):
    if limits[0] != RLIM_INFINITY and limits[0] not in ACCEPTED.get(kind, range(2**63)):
        raise ValueError("current limit exceeds maximum limit")
    real.setrlimit(kind, limits)
"""


def limits_of(pid: int) -> dict[str, str]:
    """The soft limits of a process."""
    found = re.findall(rb"^Max (.+?) {2,}(\S+)", read_of(pid, "limits"), re.MULTILINE)
    return {name.decode(): limit.decode() for name, limit in found}


def test_limits_that_the_system_refuses_are_done_without(
    deploy: Deploy, upstream: LoopbackUpstream, tmp_path: Path
) -> None:
    """Large bodies and files are read, one line of the log names the refused limits, and all others are set."""
    (tmp_path / "resource.py").write_text(LIKE_MACOS)
    upstream.always(Whole(["Read."], usage_of(9000, 1)))
    deployment = deploy(10**10)
    process = ServiceProcess(deployment.folder, tmp_path / "log", variables={"PYTHONPATH": str(tmp_path)})
    deployment.processes.append(process)
    process.wait_until_ready()
    assert limits_of(process.pid)["open files"] == "10240"

    client = RawClient(process.port, deployment.key)
    large = {"role": "user", "content": "word " * 250_000}
    file_data = f"data:text/plain;base64,{base64.b64encode(b'The answer is 42.').decode()}"
    part = {"type": "file", "file": {"filename": "a.txt", "file_data": file_data}}
    for messages in (MESSAGES, [large], [{"role": "user", "content": [{"type": "text", "text": "Read it."}, part]}]):
        assert client.chat(messages=messages).status == 200, process.output
    children = [
        limits_of(pid)
        for module in ("gateway.large.child", "parts.protocols.child", "parts.grounding.files.child")
        for pid in process.children(f"cadenza.{module}")
    ]
    assert len(children) >= 2
    for child in children:
        assert child["address space"] == "unlimited"
        assert (child["open files"], child["file size"], child["core file size"]) == ("0", "0", "0")
        assert child["cpu time"].isdecimal()
    assert process.output.count(WARNING) == 1
    assert '"limits":["RLIMIT_AS","RLIMIT_NOFILE"]' in process.output
