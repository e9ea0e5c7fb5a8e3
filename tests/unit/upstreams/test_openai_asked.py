"""When a request counts as handed to an upstream: once it is written to a connection, and not before."""

import pytest

from cadenza.core.records import Route
from cadenza.upstreams.base import Ask, Fault
from cadenza.upstreams.openai import OpenAIUpstream
from tests.loopback import Close, Good, LoopbackUpstream, Raw
from tests.unit.http.peer import refusing_port
from tests.unit.upstreams.asks import MESSAGE, RecordingSink, route


def asking(asked: list[Route | None]) -> Ask:
    return Ask([MESSAGE], {}, None, stream=False, on_asked=asked.append)


async def test_a_written_request_is_asked(upstream: LoopbackUpstream) -> None:
    """The route is told once."""
    asked: list[Route | None] = []
    endpoint, to = OpenAIUpstream(upstream.base_url), route()
    reply = await endpoint.open(to, asking(asked))
    await reply.deliver(RecordingSink())
    await reply.close()
    await endpoint.stop()
    assert asked == [to]


async def test_a_refused_connection_is_not_asked() -> None:
    """Nobody was given the request."""
    asked: list[Route | None] = []
    with refusing_port() as port, pytest.raises(Fault):
        await OpenAIUpstream(f"http://127.0.0.1:{port}/v1").open(route(), asking(asked))
    assert asked == []


async def test_a_kept_connection_that_is_closed_is_not_asked(upstream: LoopbackUpstream) -> None:
    """The request goes out on another connection, and only that one counts."""
    asked: list[Route | None] = []
    endpoint, to = OpenAIUpstream(upstream.base_url), route()
    upstream.script(Good(), Raw([Close()]), Good())
    for _ in range(2):
        reply = await endpoint.open(to, asking(asked))
        await reply.deliver(RecordingSink())
        await reply.close()
    await endpoint.stop()
    assert asked == [to, to, None, to]
