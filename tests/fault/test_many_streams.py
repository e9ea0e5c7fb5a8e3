"""Many streams at once whose upstream is killed in the middle: each ends with an error, or continues elsewhere.

$CADENZA_STREAMS says how many; the figures are shown.
"""

import asyncio
import os
import time
from collections.abc import Callable

import pytest

from tests.fault.upstream_process import WORDS, Behaviour, UpstreamProcess
from tests.ledger_reader import delivered_cost_nano, usage_cost_nano
from tests.load import allow_many_files
from tests.raw_client import ChatRequest, Reply, send
from tests.service import Deployment, ServiceProcess, wait_until
from tests.service_config import RouteSpec, ServiceSpec

STREAMS = int(os.environ.get("CADENZA_STREAMS") or 200)
CREDIT_NANO = 10**13
STREAM_BYTES_MAX = 150_000
TOKENIZER_BYTES = 80 * 2**20  # loaded by the first count
GAUGES = ("cadenza_slots_taken", "cadenza_requests_in_flight")
LIMITS = {"concurrency": 4 * STREAMS}  # a route far below its ceiling does not lower it when it is slow
DYING = Behaviour(word_s=0.1, holds_after=len(WORDS) - 2)  # killed while some streams flow and others wait

pytestmark = [pytest.mark.timeout(600 + STREAMS), pytest.mark.slow(reason="hundreds of streams at once")]


def stream_all(deployment: Deployment, process: ServiceProcess, happens: Callable[[], None]) -> list[Reply]:
    """All streams at once; this happens when the first word of each has arrived and none has ended."""
    left, have_begun = {*range(STREAMS)}, asyncio.Event()

    async def one(request: ChatRequest) -> Reply:
        async def note(reply: Reply) -> bool:
            if request.number in left and WORDS[0].encode() in reply.raw:
                left.discard(request.number)
                if not left:
                    have_begun.set()
            return False

        return await send(process.port, deployment.key, request, note)

    async def run() -> list[Reply]:
        replies = [asyncio.create_task(one(ChatRequest(number, stream=True))) for number in range(STREAMS)]
        beginning = asyncio.create_task(have_begun.wait())
        ended, _ = await asyncio.wait([beginning, *replies], return_when=asyncio.FIRST_COMPLETED)
        assert ended == {beginning}, f"{len(left)} streams have not begun"
        await asyncio.to_thread(happens)
        return await asyncio.gather(*replies)

    return asyncio.run(run())


def check_released(deployment: Deployment, process: ServiceProcess, providers: list[str]) -> None:
    """Every slot and hold is released, and the ledger holds."""
    gauges = [*GAUGES, *(rf'cadenza_route_in_flight\{{model="{name}",provider="{name}"\}}' for name in providers)]
    wait_until(lambda: all(process.metric(gauge) == 0 for gauge in gauges), "every slot being free")
    wait_until(deployment.ledger.is_given_back, "the return of every reserve")
    deployment.ledger.check()


def test_every_stream_of_a_killed_upstream_gets_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Every client gets an error event and no [DONE], and pays for the words that it got; nothing leaks."""
    allow_many_files()
    with UpstreamProcess(DYING) as dying:
        spec = ServiceSpec({"dying": dying.base_url}, {"forte": [RouteSpec("dying", "dying")]}, limits=LIMITS)
        with Deployment(spec, CREDIT_NANO) as deployment:
            process = deployment.start()
            before_bytes, began_s = process.rss_bytes, time.monotonic()
            replies = stream_all(deployment, process, dying.kill)
            took_s, more_bytes = time.monotonic() - began_s, process.rss_bytes - before_bytes
            with capsys.disabled():
                print(f"\n{STREAMS} streams, killed: {took_s:.1f} s, {more_bytes / 2**20:.1f} MiB more", end="")  # noqa: T201
            check_released(deployment, process, ["dying"])
            rows = deployment.ledger.rows()
            for number, reply in enumerate(replies):
                request = ChatRequest(number, stream=True)
                assert "".join(WORDS).startswith(reply.text)
                assert not reply.is_done
                assert reply.events[-1]["error"]["type"] == "api_error"
                cost_nano = rows[request.request_id].cost_nano
                assert cost_nano == delivered_cost_nano("forte", request.content, reply.chunks) > 0
            assert more_bytes < STREAMS * STREAM_BYTES_MAX + TOKENIZER_BYTES
            assert process.get("/healthz")[0] == 200


def test_every_stream_of_a_killed_upstream_is_continued(capsys: pytest.CaptureFixture[str]) -> None:
    """If another route can continue an answer, every stream of a killed upstream ends whole and costs its usage."""
    allow_many_files()
    with UpstreamProcess(DYING) as dying, UpstreamProcess(Behaviour()) as other:
        providers = {"dying": dying.base_url, "other": other.base_url}
        routes = [RouteSpec("dying", "dying"), RouteSpec("other", "other", order=1, continues=True)]
        spec = ServiceSpec(providers, {"forte": routes}, limits=LIMITS)
        with Deployment(spec, CREDIT_NANO) as deployment:
            process, began_s = deployment.start(), time.monotonic()
            replies = stream_all(deployment, process, dying.kill)
            with capsys.disabled():
                print(f"\n{STREAMS} streams, continued: {time.monotonic() - began_s:.1f} s", end="")  # noqa: T201
            check_released(deployment, process, ["dying", "other"])
            assert [reply.text for reply in replies] == ["".join(WORDS)] * STREAMS
            assert all(reply.is_done for reply in replies)
            assert other.counts().served == STREAMS
            rows = deployment.ledger.rows()
            for number, reply in enumerate(replies):
                assert reply.usage["completion_tokens"] == len(WORDS)
                assert rows[ChatRequest(number).request_id].cost_nano == usage_cost_nano("forte", reply.usage)
