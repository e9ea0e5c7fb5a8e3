"""Many streams at once whose upstream is killed in their middle: each is told, or goes on elsewhere with no seam.

$CADENZA_STREAMS says how many; the figures are shown.
"""

import asyncio
import os
import time
from collections.abc import Callable

import pytest

from tests.fault.books import delivered_cost_nano, usage_cost_nano
from tests.fault.crowd import WORDS, Crowd, Manner
from tests.fault.fleet import Fleet, Node, wait_until
from tests.fault.load import allow_many_files
from tests.fault.wire import Ask, Seen, send
from tests.service import RouteSpec, ServiceSpec

STREAMS = int(os.environ.get("CADENZA_STREAMS") or 300)
CREDIT_NANO = 10**13
WORD_S = STREAMS / 1500  # so many words a second are said in all
BEGIN_S = 60.0
STREAM_BYTES_MAX = 150_000
TOKENIZER_BYTES = 80 * 2**20  # it is loaded by the first count
GAUGES = ("cadenza_slots_taken", "cadenza_requests_in_flight")
LIMITS = {"concurrency": 4 * STREAMS}  # a route whose ceiling is far away does not lower it when it is slow
DYING = Manner(word_s=WORD_S, holds_after=len(WORDS) - 2)  # killed while some streams flow and others wait

pytestmark = pytest.mark.timeout(120 + STREAMS // 5)


def stream_all(fleet: Fleet, node: Node, happens: Callable[[], None]) -> list[Seen]:
    """All streams at once; it happens when the first word of each has come, and none has ended."""
    left, has_begun = {*range(STREAMS)}, asyncio.Event()

    async def one(ask: Ask) -> Seen:
        async def note(seen: Seen) -> bool:
            if ask.number in left and WORDS[0].encode() in seen.raw:
                left.discard(ask.number)
                if not left:
                    has_begun.set()
            return False

        return await send(node.port, fleet.key, ask, note)

    async def run() -> list[Seen]:
        replies = [asyncio.create_task(one(Ask(number, stream=True))) for number in range(STREAMS)]
        beginning = asyncio.create_task(has_begun.wait())
        ended, _ = await asyncio.wait([beginning, *replies], timeout=BEGIN_S, return_when=asyncio.FIRST_COMPLETED)
        assert ended == {beginning}, f"{len(left)} streams have not begun"
        await asyncio.to_thread(happens)
        return await asyncio.gather(*replies)

    return asyncio.run(run())


def check_freed(fleet: Fleet, node: Node, providers: list[str]) -> None:
    """Every slot, place and hold is given back, and the ledger is proven."""
    gauges = [*GAUGES, *(rf'cadenza_route_in_flight\{{model="{name}",provider="{name}"\}}' for name in providers)]
    wait_until(lambda: all(node.metric(gauge) == 0 for gauge in gauges), "every slot and place being free")
    wait_until(lambda: fleet.books.open_holds == 0, "the end of every hold")
    fleet.books.prove()
    assert fleet.cli("ledger", "check").stdout.startswith("The ledger holds")


def test_killed_upstream_is_told_to_every_stream(capsys: pytest.CaptureFixture[str]) -> None:
    """Every client gets an error event and no [DONE], and pays for the words that it got; nothing is left behind."""
    allow_many_files()
    with Crowd(DYING) as crowd:
        spec = ServiceSpec({"crowd": crowd.base_url}, {"forte": [RouteSpec("crowd", "crowd")]}, limits=LIMITS)
        with Fleet("", CREDIT_NANO, spec) as fleet:
            node = fleet.start()
            before_bytes, began_s = node.rss_bytes, time.monotonic()
            replies = stream_all(fleet, node, crowd.kill)
            took_s, more_bytes = time.monotonic() - began_s, node.rss_bytes - before_bytes
            with capsys.disabled():
                print(f"\n{STREAMS} streams, killed: {took_s:.1f} s, {more_bytes / 2**20:.1f} MiB more", end="")  # noqa: T201
            check_freed(fleet, node, ["crowd"])
            rows = fleet.books.rows()
            for number, seen in enumerate(replies):
                ask = Ask(number, stream=True)
                assert "".join(WORDS).startswith(seen.text)
                assert not seen.is_done
                assert seen.events[-1]["error"]["type"] == "api_error"
                assert rows[ask.shown_id].cost_nano == delivered_cost_nano("forte", ask.content, seen.chunks) > 0
            assert more_bytes < STREAMS * STREAM_BYTES_MAX + TOKENIZER_BYTES
            assert node.get("/healthz")[0] == 200


def test_killed_upstream_is_followed_by_another_with_no_seam(capsys: pytest.CaptureFixture[str]) -> None:
    """Where another route can go on with an answer, every stream of a killed upstream ends whole, and costs as told."""
    allow_many_files()
    with Crowd(DYING) as crowd, Crowd(Manner()) as other:
        providers = {"crowd": crowd.base_url, "other": other.base_url}
        routes = [RouteSpec("crowd", "crowd"), RouteSpec("other", "other", order=1, continues=True)]
        spec = ServiceSpec(providers, {"forte": routes}, limits=LIMITS)
        with Fleet("", CREDIT_NANO, spec) as fleet:
            node, began_s = fleet.start(), time.monotonic()
            replies = stream_all(fleet, node, crowd.kill)
            with capsys.disabled():
                print(f"\n{STREAMS} streams, continued: {time.monotonic() - began_s:.1f} s", end="")  # noqa: T201
            check_freed(fleet, node, ["crowd", "other"])
            assert [seen.text for seen in replies] == ["".join(WORDS)] * STREAMS
            assert all(seen.is_done for seen in replies)
            assert other.counts().served == STREAMS
            rows = fleet.books.rows()
            for number, seen in enumerate(replies):
                assert seen.usage["completion_tokens"] == len(WORDS)
                assert rows[Ask(number).shown_id].cost_nano == usage_cost_nano("forte", seen.usage)
