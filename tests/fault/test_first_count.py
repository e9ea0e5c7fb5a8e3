"""The tokenizer is loaded when something must be counted for the first time, and that first count is exact."""

import asyncio
import itertools
import signal
import time
from pathlib import Path

import pytest

from cadenza.ledger.timing import USUAL_TIMING
from tests.fault.conftest import Deploy
from tests.ledger_reader import cost_nano, delivered_cost_nano, estimate_tokens, usage_cost_nano
from tests.loopback import ROLE, LoopbackUpstream, Pause, Sse, Whole, said, usage_of
from tests.raw_client import ChatRequest, Reply, send
from tests.service import Deployment, ServiceProcess, wait_until

CREDIT_NANO = 10**10
WORDS = ["One", " two", " three", " four"]  # a token each
USAGE = usage_of(23, 9, 4)
STREAM = ChatRequest(1, stream=True)


def has_tokenizer(process: ServiceProcess) -> bool:
    return "rs_bpe" in Path(f"/proc/{process.pid}/maps").read_text()


def check_charged(deployment: Deployment, reply: Reply, status: int) -> None:
    """The prompt and what was delivered are charged by the local count."""
    wait_until(deployment.ledger.is_given_back, "the return of every reserve")
    row = deployment.ledger.rows()[STREAM.request_id]
    assert reply.text == "".join(WORDS)
    assert row.cost_nano == delivered_cost_nano("forte", STREAM.content, reply.chunks)
    assert row.cost_nano == cost_nano("forte", estimate_tokens(STREAM.content), len(WORDS))
    assert (row.status, row.estimated) == (status, True)
    deployment.ledger.check()


def test_requests_with_usage_load_no_tokenizer(deploy: Deploy, upstream: LoopbackUpstream) -> None:
    """Short prompts whose upstream sends usage, plain and streamed, with a limit and without, are not counted."""
    deployment = deploy(CREDIT_NANO)
    upstream.always(Whole(WORDS, USAGE))
    numbers, is_long = itertools.count(10), True
    while is_long:  # on a busy machine, a request may take so long that what it delivered is marked, and so counted
        process, before_nano, is_long = deployment.start(), deployment.ledger.balance_nano, False
        for max_tokens in (None, None, 50, 50):
            number, began_s = next(numbers), time.monotonic()
            request = ChatRequest(number, stream=number % 2 == 0, max_tokens=max_tokens)
            assert asyncio.run(send(process.port, deployment.key, request)).is_done
            is_long = is_long or time.monotonic() - began_s >= USUAL_TIMING.mark_after_s
        assert before_nano - deployment.ledger.balance_nano == 4 * usage_cost_nano("forte", USAGE)
    assert not has_tokenizer(process)
    upstream.always(Whole(WORDS, None))
    assert asyncio.run(send(process.port, deployment.key, ChatRequest(9))).is_done
    assert has_tokenizer(process)


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
