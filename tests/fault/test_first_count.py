"""The tokenizer is loaded by the start, and the first count of a process is exact."""

import asyncio
import contextlib
import signal
from pathlib import Path

import pytest

from tests.fault.conftest import Deploy
from tests.ledger_reader import cost_nano, delivered_cost_nano, estimate_tokens
from tests.loopback import ROLE, LoopbackUpstream, Pause, Sse, said
from tests.raw_client import ChatRequest, Reply, send
from tests.service import Deployment, ServiceProcess, wait_until

CREDIT_NANO = 10**10
WORDS = ["One", " two", " three", " four"]  # a token each
STREAM = ChatRequest(1, stream=True)


def check_charged(deployment: Deployment, reply: Reply, status: int) -> None:
    """The prompt and what was delivered are charged by the local count."""
    wait_until(deployment.ledger.is_given_back, "the return of every reserve")
    row = deployment.ledger.rows()[STREAM.request_id]
    assert reply.text == "".join(WORDS)
    assert row.cost_nano == delivered_cost_nano("forte", STREAM.content, reply.chunks)
    assert row.cost_nano == cost_nano("forte", estimate_tokens(STREAM.content), len(WORDS))
    assert (row.status, row.estimated) == (status, True)
    deployment.ledger.check()


def test_the_start_loads_the_tokenizer(deploy: Deploy, upstream: LoopbackUpstream) -> None:
    """A service that was just started loads it in a thread, before any request needs a count."""
    deployment = deploy(CREDIT_NANO)
    with contextlib.ExitStack() as stack:
        process = ServiceProcess(deployment.folder, deployment.folder / "start.log", variables={"PYTHONHASHSEED": "0"})
        stack.callback(process.stop)
        wait_until(lambda: "tiktoken" in Path(f"/proc/{process.pid}/maps").read_text(), "the tokenizer")


@pytest.mark.parametrize("stays", [False, True], ids=["leaves", "stays"])
def test_stop_writes_a_first_count(deploy: Deploy, upstream: LoopbackUpstream, stays: bool) -> None:
    """A service that is stopped as its client leaves, or stopped twice while it stays, writes the charge and ends."""
    deployment = deploy(CREDIT_NANO)
    process = deployment.start()
    upstream.script(Sse([ROLE, *map(said, WORDS), Pause()]))

    async def stop(reply: Reply) -> bool:
        if reply.text != "".join(WORDS):
            return False
        process.send_signal(signal.SIGTERM)
        if stays:
            await asyncio.to_thread(wait_until, process.is_draining, "the drain")
            process.send_signal(signal.SIGTERM)
        return not stays

    reply = asyncio.run(send(process.port, deployment.key, STREAM, stop))
    assert process.wait_until_ended() == 0
    check_charged(deployment, reply, 503 if stays else 499)
