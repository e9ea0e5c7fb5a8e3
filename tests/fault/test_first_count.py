"""The tokenizer is loaded when something must be counted for the first time, and that count is exact as any other."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.fault.books import cost_nano, delivered_cost_nano, estimate_tokens, usage_cost_nano
from tests.fault.conftest import StartFleet
from tests.fault.fleet import Fleet, Node, wait_until
from tests.fault.replies import ROLE, Whole, counts
from tests.fault.wire import Ask, Seen, leave_after, send
from tests.loopback import Close, LoopbackUpstream, Pause, Sse, said

CREDIT_NANO = 10**10
WORDS = ["One", " two", " three", " four"]  # a token each
USAGE = counts(23, 9, 4)
STREAM = Ask(1, stream=True)


def has_tokenizer(node: Node) -> bool:
    return "rs_bpe" in Path(f"/proc/{node.pid}/maps").read_text()


def check_charged(fleet: Fleet, seen: Seen, status: int) -> None:
    """Prompt and delivered, by our own count."""
    wait_until(lambda: fleet.books.open_holds == 0, "the end of every hold")
    row = fleet.books.rows()[STREAM.shown_id]
    assert seen.text == "".join(WORDS)
    assert row.cost_nano == delivered_cost_nano("forte", STREAM.content, seen.chunks)
    assert row.cost_nano == cost_nano("forte", estimate_tokens(STREAM.content), len(WORDS))
    assert (row.status, row.estimated) == (status, True)
    fleet.books.prove()


def test_requests_that_the_upstream_counts_load_no_tokenizer(
    make_fleet: StartFleet, upstream: LoopbackUpstream
) -> None:
    """Short prompts with a usage, whole and streamed, with a limit and without one, are served without a count."""
    fleet = make_fleet(CREDIT_NANO)
    node = fleet.start()
    upstream.always(Whole(WORDS, USAGE))
    for number, max_tokens in enumerate((None, None, 50, 50)):
        ask = Ask(number, stream=number % 2 == 0, max_tokens=max_tokens)
        assert asyncio.run(send(node.port, fleet.key, ask)).is_done
    assert CREDIT_NANO - fleet.books.balance_nano == 4 * usage_cost_nano("forte", USAGE)
    assert not has_tokenizer(node)
    upstream.always(Whole(WORDS, None))
    assert asyncio.run(send(node.port, fleet.key, Ask(9))).is_done
    assert has_tokenizer(node)


def test_client_that_leaves_is_the_first_to_be_counted(make_fleet: StartFleet, upstream: LoopbackUpstream) -> None:
    """Whoever leaves before anything was counted pays exactly for what it got."""
    fleet = make_fleet(CREDIT_NANO)
    node = fleet.start()
    upstream.script(Sse([ROLE, *map(said, WORDS), Pause()]))
    seen = asyncio.run(send(node.port, fleet.key, STREAM, leave_after("".join(WORDS))))
    check_charged(fleet, seen, 499)
    assert has_tokenizer(node)


def test_stream_that_breaks_off_is_the_first_to_be_counted(make_fleet: StartFleet, upstream: LoopbackUpstream) -> None:
    """A stream that its upstream cuts before anything was counted is charged exactly for what was delivered."""
    fleet = make_fleet(CREDIT_NANO)
    node = fleet.start()
    upstream.script(Sse([ROLE, *map(said, WORDS), Close()]))
    seen = asyncio.run(send(node.port, fleet.key, STREAM))
    assert not seen.is_done
    check_charged(fleet, seen, 502)
    assert has_tokenizer(node)


@pytest.mark.parametrize("is_staying", [False, True], ids=["leaves", "stays"])
def test_stop_writes_what_is_first_counted_then(
    make_fleet: StartFleet, upstream: LoopbackUpstream, is_staying: bool
) -> None:
    """A service that is told to stop as a client leaves, or to stop at once while one stays, ends with its charge."""
    fleet = make_fleet(CREDIT_NANO)
    node = fleet.start()
    upstream.script(Sse([ROLE, *map(said, WORDS), Pause()]))

    async def leave(seen: Seen) -> bool:
        if seen.text != "".join(WORDS):
            return False
        node.send_signal(signal.SIGTERM)
        if is_staying:
            await asyncio.to_thread(wait_until, lambda: node.get("/readyz")[0] == 503, "the drain")
            node.send_signal(signal.SIGTERM)
        return not is_staying

    seen = asyncio.run(send(node.port, fleet.key, STREAM, leave))
    assert node.wait_until_ended() == 0
    check_charged(fleet, seen, 503 if is_staying else 499)
