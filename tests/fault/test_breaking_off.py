"""Replies that break off: the client leaves at every chunk, the upstream dies at every byte. What was delivered is
charged, nothing where nothing was; no hold is left, and the next request is served.
"""

import asyncio
from collections.abc import Sequence

from tests.fault.books import Row, cost_nano, delivered_cost_nano, estimate_tokens, usage_cost_nano
from tests.fault.conftest import StartFleet
from tests.fault.fleet import Fleet, Node, wait_until
from tests.fault.replies import ROLE, STOP, Numbered, Whole, counts
from tests.fault.wire import Ask, Seen, leave_after, send
from tests.loopback import Close, Cut, Event, LoopbackUpstream, Pause, Raw, Reply, Request, Reset, Sse, said

CREDIT_NANO = 10**10
WORDS = ["Each", " of", " these", " words", " is", " a", " token", " and", " so", " are", " 火", "花", "."]
LAST_WORDS = WORDS[-3:]
USAGE = counts(31, 17, 5)


def send_all(fleet: Fleet, node: Node, asks: Sequence[Ask]) -> list[Seen]:
    """One after the other: a route that fails and fails is asked by one request at a time."""

    async def run() -> list[Seen]:
        return [await send(node.port, fleet.key, ask) for ask in asks]

    return asyncio.run(run())


def terse(words: Sequence[str]) -> Sse:
    """As few bytes as a counted stream can have."""
    spoken: list[Event] = [{"choices": [{"delta": {"content": word}}]} for word in words]
    return Sse([*spoken, {"choices": [{"finish_reason": "stop"}]}, {"usage": USAGE}])


def body_bytes(reply: Reply) -> int:
    _, *body = reply.steps(Request("POST", "/", {}, b"{}"))
    return sum(len(step) for step in body if isinstance(step, bytes))


def prove(fleet: Fleet) -> dict[str, Row]:
    """The rows of all requests, once every hold is ended and the ledger is proven."""
    wait_until(lambda: fleet.books.open_holds == 0, "the end of every hold")
    fleet.books.prove()
    rows = fleet.books.rows()
    assert CREDIT_NANO - fleet.books.balance_nano == sum(row.cost_nano or 0 for row in rows.values())
    return rows


def test_client_that_leaves_at_any_chunk_pays_for_what_it_got(
    make_fleet: StartFleet, upstream: LoopbackUpstream
) -> None:
    """Whoever leaves after so many chunks pays the prompt and the tokens of just those; after none, nothing."""
    others = upstream.open_connections  # what services of other tests keep
    fleet = make_fleet(CREDIT_NANO)
    node = fleet.start()
    asks = [Ask(number, stream=True) for number in range(len(WORDS) + 1)]
    pauses = [Pause() for _ in asks]
    upstream.always(
        Numbered(
            {ask.number: Sse([ROLE, *map(said, WORDS[: ask.number]), pauses[ask.number], STOP]) for ask in asks},
        )
    )

    async def leave(ask: Ask) -> Seen:
        if ask.number:
            return await send(node.port, fleet.key, ask, leave_after("".join(WORDS[: ask.number])))

        async def is_time(_seen: Seen) -> bool:
            await asyncio.to_thread(pauses[ask.number].wait_until_reached)
            return True

        return await send(node.port, fleet.key, ask, is_time)

    async def run() -> list[Seen]:
        return await asyncio.gather(*map(leave, asks))

    replies = asyncio.run(run())
    rows = prove(fleet)
    for ask, seen in zip(asks, replies, strict=True):
        assert seen.text == "".join(WORDS[: ask.number])
        row = rows[ask.shown_id]
        assert row.cost_nano == delivered_cost_nano("forte", ask.content, seen.chunks), ask
        assert (row.status, row.state) == (499, "settled" if ask.number else "released"), ask
    wait_until(lambda: upstream.open_connections <= others, "every connection to the upstream being closed")


def test_client_that_leaves_before_a_plain_reply_pays_nothing(
    make_fleet: StartFleet, upstream: LoopbackUpstream
) -> None:
    """A reply that is not streamed and whose client left before it was there costs nothing."""
    fleet, pause = make_fleet(CREDIT_NANO), Pause()
    node = fleet.start()
    upstream.script(Raw([pause]))

    async def is_time(_seen: Seen) -> bool:
        await asyncio.to_thread(pause.wait_until_reached)
        return True

    assert asyncio.run(send(node.port, fleet.key, Ask(1), is_time)).raw == b""
    assert prove(fleet)["fault-1"].cost_nano == 0


def test_upstream_that_dies_at_any_byte_of_a_stream(make_fleet: StartFleet, upstream: LoopbackUpstream) -> None:
    """A stream cut at any byte is whole and charged as counted, or broken off and charged as delivered."""
    fleet, whole = make_fleet(CREDIT_NANO), terse(LAST_WORDS)
    node = fleet.start()
    length = body_bytes(whole)
    upstream.always(Numbered({size: Cut(whole, size, Reset() if size % 2 else Close()) for size in range(length + 1)}))
    asks = [Ask(size, stream=True) for size in range(length + 1)]
    replies = send_all(fleet, node, asks)
    assert len(upstream.requests) == len(asks)
    rows = prove(fleet)
    for ask, seen in zip(asks, replies, strict=True):
        check_cut_stream(ask, seen, rows[ask.shown_id])
    assert not replies[0].is_done
    assert rows[asks[-2].shown_id].cost_nano == usage_cost_nano("forte", USAGE)
    assert 0 < sum(row.status == 502 and row.cost_nano != 0 for row in rows.values()) < length
    upstream.reset()
    assert asyncio.run(send(node.port, fleet.key, Ask(length + 1, stream=True))).is_done


def check_cut_stream(ask: Ask, seen: Seen, row: Row) -> None:
    """The charge is what the client was told and, where it was told nothing, what the client got."""
    if seen.is_done:
        assert seen.text == "".join(LAST_WORDS), ask
        assert row.cost_nano == usage_cost_nano("forte", seen.usage), ask
        own_nano = delivered_cost_nano("forte", ask.content, seen.chunks)
        assert row.cost_nano == (own_nano if row.estimated else usage_cost_nano("forte", USAGE)), ask
        assert row.status == 200, ask
    else:
        assert seen.status == (200 if seen.chunks else 502), ask
        assert seen.status == 502 or seen.events[-1]["error"]["type"] == "api_error", ask
        assert row.cost_nano == delivered_cost_nano("forte", ask.content, seen.chunks), ask
        assert row.status == 502, ask


def test_upstream_that_dies_at_any_byte_of_a_plain_reply(make_fleet: StartFleet, upstream: LoopbackUpstream) -> None:
    """A plain reply is charged as counted where every byte of it came, and costs nothing where one is missing."""
    fleet, whole = make_fleet(CREDIT_NANO), Whole(WORDS, USAGE)
    node = fleet.start()
    length = body_bytes(whole)
    upstream.always(Numbered({size: Cut(whole, size) for size in range(length + 1)}))
    asks = [Ask(size) for size in range(length + 1)]
    replies = send_all(fleet, node, asks)
    assert len(upstream.requests) == len(asks)
    rows = prove(fleet)
    assert [seen.status for seen in replies] == [502] * length + [200]
    assert [rows[ask.shown_id].cost_nano for ask in asks] == [0] * length + [usage_cost_nano("forte", USAGE)]
    upstream.reset()
    assert asyncio.run(send(node.port, fleet.key, Ask(length + 1))).is_done


def test_uncounted_text_costs_the_same_however_it_comes(make_fleet: StartFleet, upstream: LoopbackUpstream) -> None:
    """Without a count of the upstream, a text costs its tokens: plain, streamed whole, or letter by letter."""
    fleet, text = make_fleet(CREDIT_NANO), "Each of these words is a token."
    node = fleet.start()
    pauses = [Pause() for _ in text]
    letters = [event for letter, pause in zip(text, pauses, strict=True) for event in (said(letter), pause)]
    upstream.always(
        Numbered({0: Whole([text], None), 1: Whole([text], None), 2: Sse([ROLE, *letters, STOP])}),
    )

    async def go_on(seen: Seen) -> bool:
        """A letter that came lets the next one go, so that no two come together."""
        for pause in pauses[: len(seen.text)]:
            pause.release()
        return False

    async def run() -> list[Seen]:
        asks = (Ask(0), Ask(1, stream=True), Ask(2, stream=True))
        return [await send(node.port, fleet.key, ask, go_on if ask.number == 2 else None) for ask in asks]

    assert [seen.text for seen in asyncio.run(run())] == [text] * 3
    due_nano = delivered_cost_nano("forte", Ask(0).content, [text])
    assert {name: row.cost_nano for name, row in prove(fleet).items()} == dict.fromkeys(
        ("fault-0", "fault-1", "fault-2"), due_nano
    )


def test_upstream_that_says_more_than_was_allowed_is_not_paid_for_it(
    make_fleet: StartFleet, upstream: LoopbackUpstream
) -> None:
    """However the reply ends, in full, cut off or left, the output that is charged is at most `max_tokens`."""
    fleet, max_tokens = make_fleet(CREDIT_NANO), 4
    node = fleet.start()
    begun = [ROLE, *map(said, WORDS)]
    upstream.always(Numbered({0: Sse([*begun, STOP]), 1: Sse([*begun, Close()]), 2: Sse([*begun, Pause()])}))
    asks = [Ask(number, stream=True, max_tokens=max_tokens) for number in range(3)]

    async def run() -> list[Seen]:
        ways = (None, None, leave_after("".join(WORDS)))
        return await asyncio.gather(
            *(send(node.port, fleet.key, ask, way) for ask, way in zip(asks, ways, strict=True))
        )

    assert [seen.is_done for seen in asyncio.run(run())] == [True, False, False]
    rows = prove(fleet)
    due_nano = cost_nano("forte", estimate_tokens(asks[0].content), max_tokens)
    assert [rows[ask.shown_id].cost_nano for ask in asks] == [due_nano] * len(asks)
