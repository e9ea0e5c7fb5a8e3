"""Far more requests at once than the balance can pay for: exactly as many are served as it pays for."""

import asyncio
from collections import Counter

from tests.fault.conftest import Deploy
from tests.ledger_reader import estimate_tokens
from tests.loopback import LoopbackUpstream, Pause, Whole, usage_of
from tests.raw_client import ChatRequest, Reply, send
from tests.service import Deployment, ServiceProcess

REQUESTS = 300
PAID = 37
MAX_TOKENS = 16  # the least that is ever granted: no request can be fitted to a remainder
FIRST = 100  # every number has three digits, so every prompt has the same number of tokens
PROMPT_TOKENS = estimate_tokens(ChatRequest(FIRST).content)
HOLD_NANO = PROMPT_TOKENS * 1070 + MAX_TOKENS * 3450
MORE_TOKENS = 12  # that the upstream counts beyond ours
WORDS = ["all", " of", " it"]


def send_storm(deployment: Deployment, processes: list[ServiceProcess]) -> list[Reply]:
    """All requests at once, spread over the processes, half of them streams."""
    ports = [process.port for process in processes]

    async def run() -> list[Reply]:
        numbers = range(FIRST, FIRST + REQUESTS)
        requests = [ChatRequest(n, stream=n % 2 == 0, max_tokens=MAX_TOKENS) for n in numbers]
        sending = (send(ports[request.number % len(ports)], deployment.key, request) for request in requests)
        return await asyncio.gather(*sending)

    return asyncio.run(run())


def test_storm_serves_exactly_what_the_balance_pays_for(deploy: Deploy, upstream: LoopbackUpstream) -> None:
    """Of many requests at once to three processes as many are served as the balance pays for; the others are 402."""
    rest_nano = HOLD_NANO - 1
    deployment = deploy(PAID * HOLD_NANO + rest_nano)
    upstream.always(Whole(WORDS, usage_of(PROMPT_TOKENS, MAX_TOKENS)))
    replies = send_storm(deployment, deployment.start_many(3))
    assert Counter(reply.status for reply in replies) == {200: PAID, 402: REQUESTS - PAID}
    assert sum(reply.is_done for reply in replies) == PAID
    assert len(upstream.requests) == deployment.ledger.charges == PAID
    assert deployment.ledger.balance_nano == rest_nano
    deployment.ledger.check()


async def test_storm_never_holds_more_than_the_balance(deploy: Deploy, upstream: LoopbackUpstream) -> None:
    """While all credit is held nothing more is admitted, and what the replies did not cost is free again afterwards."""
    deployment, pause = deploy(PAID * HOLD_NANO), Pause()
    process = deployment.start()
    upstream.always(Whole(WORDS, usage_of(1, 1), pause))
    requests = [ChatRequest(FIRST + number, max_tokens=MAX_TOKENS) for number in range(REQUESTS)]
    replies = [asyncio.create_task(send(process.port, deployment.key, request)) for request in requests]
    while sum(reply.done() for reply in replies) < REQUESTS - PAID:
        await asyncio.wait([reply for reply in replies if not reply.done()], return_when=asyncio.FIRST_COMPLETED)
    assert deployment.ledger.held_nano == deployment.ledger.balance_nano == PAID * HOLD_NANO
    pause.release()
    assert Counter(reply.status for reply in await asyncio.gather(*replies)) == {200: PAID, 402: REQUESTS - PAID}
    assert deployment.ledger.balance_nano == PAID * (HOLD_NANO - 1070 - 3450)
    deployment.ledger.check()


async def test_the_last_credit_pays_for_replies_that_cost_more_than_was_held(
    deploy: Deploy, upstream: LoopbackUpstream
) -> None:
    """All credit is held, and the upstream counts more: each reply is whole, and is charged what was held for it."""
    deployment, pause = deploy(PAID * HOLD_NANO), Pause()
    process = deployment.start()
    upstream.always(Whole(WORDS, usage_of(PROMPT_TOKENS + MORE_TOKENS, MAX_TOKENS), pause))
    requests = [ChatRequest(FIRST + number, max_tokens=MAX_TOKENS, stream=number % 2 == 0) for number in range(PAID)]
    replies = [asyncio.create_task(send(process.port, deployment.key, request)) for request in requests]
    await asyncio.to_thread(upstream.wait_for_request, PAID)
    pause.release()
    assert Counter((reply.status, reply.is_done) for reply in await asyncio.gather(*replies)) == {(200, True): PAID}
    charged_nano = [row["cost_nano"] for row in deployment.ledger.query("SELECT cost_nano FROM usage")]
    assert charged_nano == [HOLD_NANO] * PAID
    assert deployment.ledger.balance_nano == 0
    assert process.metric("cadenza_ledger_short_nano_total") == PAID * MORE_TOKENS * 1070
    assert process.metric("cadenza_ledger_lost_total") == 0
    deployment.ledger.check()
