"""The overdraft storm: far more requests at once than the balance pays for. Exactly those are served that it pays."""

import asyncio
from collections import Counter

import pytest

from tests.fault.books import account_list, dollars_nano, estimate_tokens
from tests.fault.conftest import StartFleet
from tests.fault.fleet import Fleet, Node
from tests.fault.replies import Whole, counts
from tests.fault.wire import Ask, Seen, send
from tests.loopback import LoopbackUpstream, Pause

REQUESTS = 500
PAID = 37
MAX_TOKENS = 16  # the least that is ever granted: no request can be fitted to a rest
FIRST = 100  # every number has three digits, so every prompt has the same tokens
HOLD_NANO = estimate_tokens(Ask(FIRST).content) * 1070 + MAX_TOKENS * 3450
ALL_OF_IT = Whole(["all", " of", " it"], counts(estimate_tokens(Ask(FIRST).content), MAX_TOKENS))


def storm(fleet: Fleet, nodes: list[Node]) -> list[Seen]:
    """All at once, spread over the nodes, half of them streams."""
    ports = [node.port for node in nodes]

    async def run() -> list[Seen]:
        asks = [Ask(FIRST + number, stream=number % 2 == 0, max_tokens=MAX_TOKENS) for number in range(REQUESTS)]
        return await asyncio.gather(*(send(ports[ask.number % len(ports)], fleet.key, ask) for ask in asks))

    return asyncio.run(run())


@pytest.mark.parametrize("processes", [1, 3])
def test_storm_serves_exactly_what_the_balance_pays_for(
    make_fleet: StartFleet, upstream: LoopbackUpstream, processes: int
) -> None:
    """Of 500 requests at once exactly those are served that the balance can pay; all others are 402, for nothing."""
    rest_nano = HOLD_NANO - 1
    fleet = make_fleet(PAID * HOLD_NANO + rest_nano)
    upstream.always(ALL_OF_IT)
    replies = storm(fleet, fleet.start_many(processes))
    assert Counter(seen.status for seen in replies) == {200: PAID, 402: REQUESTS - PAID}
    assert sum(seen.is_done for seen in replies) == PAID
    assert len(upstream.requests) == fleet.books.charges == PAID
    assert fleet.books.balance_nano == rest_nano
    fleet.books.prove()
    assert fleet.cli("ledger", "check").stdout.startswith("The ledger holds")


def test_storm_with_long_replies_never_holds_more_than_there_is(
    make_fleet: StartFleet, upstream: LoopbackUpstream
) -> None:
    """While all the credit is held nothing more is admitted, and what the replies did not cost is free again."""
    fleet, pause = make_fleet(PAID * HOLD_NANO), Pause()
    node = fleet.start()
    upstream.always(Whole(["all", " of", " it"], counts(1, 1), pause))

    async def run() -> list[Seen]:
        asks = [Ask(FIRST + number, max_tokens=MAX_TOKENS) for number in range(REQUESTS)]
        replies = [asyncio.create_task(send(node.port, fleet.key, ask)) for ask in asks]
        while sum(reply.done() for reply in replies) < REQUESTS - PAID:
            await asyncio.wait([reply for reply in replies if not reply.done()], return_when=asyncio.FIRST_COMPLETED)
        listed = account_list((await asyncio.to_thread(fleet.cli, "account", "list", "--json")).stdout)
        assert dollars_nano(listed["held"]) == dollars_nano(listed["balance"]) == PAID * HOLD_NANO
        pause.release()
        return await asyncio.gather(*replies)

    assert Counter(seen.status for seen in asyncio.run(run())) == {200: PAID, 402: REQUESTS - PAID}
    assert fleet.books.balance_nano == PAID * (HOLD_NANO - 1070 - 3450)
    fleet.books.prove()
