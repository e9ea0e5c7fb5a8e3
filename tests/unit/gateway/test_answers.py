"""Pings: a stream that has nothing to send tells its client that it lives, also before its reply begins."""

import asyncio
import gc
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest

from cadenza.core.errors import CadenzaError, InsufficientCredit, InvalidRequest, RateLimited, UpstreamFailed
from cadenza.core.records import Usage
from cadenza.gateway.answers import CHAT_ERRORS, PING_S, Answers, ErrorShape, Pings
from cadenza.http.events import PING, EventReader
from cadenza.http.exchange import Exchange
from cadenza.upstreams.base import Piece
from tests.unit.gateway.client import WAIT_S, Client, let_tasks_run
from tests.unit.gateway.funded_store import FORTE, FUNDED_NANO, FundedStore, open_funded_store
from tests.unit.gateway.gateways import running_api
from tests.unit.gateway.scripted_upstream import ScriptedUpstream

EVERY_S = 0.02
SEVERAL_S = 6 * EVERY_S
NO_TIME_S = 1e-9
CONTENT = b"data: content\n\n"

Serve = Callable[[Exchange, Answers], Awaitable[None]]


async def served(client: Client, serve: Serve, *, is_wanted: bool = True) -> None:
    """Serve a request with a heartbeat; an error is rendered as at the edge of the request."""
    exchange = client.open()
    answers, pings = Answers(exchange, "r1"), Pings(EVERY_S)
    try:
        if is_wanted:
            pings.start(answers)
        async with asyncio.timeout(WAIT_S):
            await serve(exchange, answers)
    except CadenzaError as error:
        answers.fail(error)
    finally:
        pings.stop(answers)


@pytest.fixture
def errors() -> ErrorShape:
    return CHAT_ERRORS


def test_an_error_ends_an_unfinished_event(errors: ErrorShape) -> None:
    """The last line that was sent is not read as a part of the error."""
    first, *rest = EventReader().feed(b"data: {}\n" + errors.event(UpstreamFailed("no"), "r1"))
    assert first == b"{}"
    assert rest
    assert all(msgspec.json.decode(one) for one in rest)


def test_a_ping_comes_within_15_seconds() -> None:
    """The longest silence is the time between two looks at it, and a tenth of it."""
    assert PING_S * 1.1 + 1 < 15  # the loop of a busy machine may be late


async def test_a_reply_that_is_waited_for_has_a_head_and_pings() -> None:
    """They come before the reply, which then begins without a second head; its last byte ends the pings."""
    client, goes_on = Client(), asyncio.Event()

    async def serve(exchange: Exchange, answers: Answers) -> None:
        await goes_on.wait()
        before = (exchange.status, exchange.first_byte_s)
        answers.start_stream(b"x-cadenza-grounding: memory=1\r\n")
        assert (before, exchange.status) == ((None, None), 200)
        assert exchange.first_byte_s
        exchange.write(CONTENT)
        exchange.finish_stream(CONTENT)
        await asyncio.sleep(SEVERAL_S)

    serving = asyncio.create_task(served(client, serve))
    await client.until_sent(PING, times=3)
    assert client.status == 200
    assert client.headers[b"content-type"].startswith(b"text/event-stream")
    goes_on.set()
    await serving
    assert client.bodies[:3] == [PING] * 3
    assert client.bodies[-2:] == [CONTENT, CONTENT]
    assert client.has_end
    assert b"x-cadenza-grounding" not in client.headers


@pytest.mark.parametrize(
    ("error", "type_"),
    [
        (InsufficientCredit("no credit"), "insufficient_quota"),
        (RateLimited("saturated", 2), "rate_limit_error"),
        (InvalidRequest("wrong"), "invalid_request_error"),
        (UpstreamFailed("failed"), "api_error"),
    ],
)
async def test_an_error_after_a_ping_is_an_event(error: CadenzaError, type_: str) -> None:
    """It has its own type and no [DONE], the connection closes, and the outcome has the status of the error."""
    client, goes_on = Client(), asyncio.Event()

    async def serve(_exchange: Exchange, _answers: Answers) -> None:
        await goes_on.wait()
        raise error

    serving = asyncio.create_task(served(client, serve))
    await client.until_sent(PING)
    goes_on.set()
    await serving
    assert client.bodies[-1].startswith(b"\ndata: ")
    said = msgspec.json.decode(client.bodies[-1].removeprefix(b"\ndata: "))
    assert said == {"error": {"message": error.message, "type": type_}}
    assert (client.has_end, client.exchange.keep_alive) == (True, False)
    assert client.exchange.status == error.status


async def test_pings_do_not_pile_up_for_a_client_that_does_not_read() -> None:
    """While the exchange is congested no ping is sent, and no task or timer is left at the end."""
    client, pause = Client(), asyncio.Event()
    client.stalls_at = lambda data: PING in data

    async def serve(exchange: Exchange, answers: Answers) -> None:
        await pause.wait()
        answers.start_stream()
        exchange.finish_stream(CONTENT)

    serving = asyncio.create_task(served(client, serve))
    await client.until_sent(PING)
    await asyncio.sleep(SEVERAL_S)
    assert client.bodies.count(PING) == 1
    client.read_again()
    pause.set()
    await serving
    sent = len(client.sent)
    await asyncio.sleep(SEVERAL_S)
    await let_tasks_run()
    assert len(client.sent) == sent
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_each_of_several_streams_is_pinged_by_its_own_silence() -> None:
    """One timer looks at all: a silent stream gets a ping, one that writes gets none, and none follows the end."""
    clients, pings = [Client() for _ in range(3)], Pings(EVERY_S)
    answers = [Answers(client.open(), f"r{number}") for number, client in enumerate(clients)]
    *silent, busy = clients
    for one in answers:
        pings.start(one)
        one.start_stream(first=CONTENT)
    while any(PING not in client.bodies for client in silent):
        await asyncio.sleep(0)
        busy.exchange.write(CONTENT)
    assert PING not in busy.bodies
    for one in answers:
        pings.stop(one)
    pings.stop(answers[0])  # a second time does no harm
    sent = [len(client.sent) for client in clients]
    await asyncio.sleep(SEVERAL_S)
    assert [len(client.sent) for client in clients] == sent


async def test_a_request_is_silent_from_when_its_pings_began() -> None:
    """It has written nothing yet, so the time of its last write says nothing: no ping comes before its time."""
    client, pings = Client(), Pings(EVERY_S)
    answers = Answers(client.open(), "r1")
    pings.start(answers)
    pings.every_s = 60.0  # from the first look on
    await asyncio.sleep(SEVERAL_S)
    assert not client.sent
    pings.stop(answers)


async def test_nothing_is_kept_of_a_stream_that_ended(funded: FundedStore) -> None:
    """The edge of a request ends its pings, or each stream would be looked at and kept for ever."""
    async with running_api(funded, ScriptedUpstream(Piece("yes", "stop", Usage(3, 1)))) as api:
        before = _count_answers()
        client = Client()
        api.chat(client, stream=True)
        await client.serve(api.gateway)
        assert client.bodies[-1].endswith(b"data: [DONE]\n\n")
        assert _count_answers() == before


def _count_answers() -> int:
    gc.collect()
    return sum(type(one) is Answers for one in gc.get_objects())


async def test_a_chat_whose_model_is_silent_is_kept_alive(funded: FundedStore) -> None:
    """From the request to the first token, a stream has pings; the answer follows them and is charged as always."""
    silence = asyncio.Event()
    upstream = ScriptedUpstream(Piece("yes", "stop", Usage(3, 1)), opening=silence)
    async with running_api(funded, upstream) as api:
        api.gateway.in_flight.pings.every_s = EVERY_S
        client = Client()
        api.chat(client, stream=True)
        serving = asyncio.create_task(client.serve(api.gateway))
        await client.until_sent(PING, times=2)
        silence.set()
        await serving
    assert client.bodies[0] == PING
    assert client.bodies[-1].endswith(b"data: [DONE]\n\n")
    first, *_ = EventReader().feed(b"".join(client.bodies))
    assert msgspec.json.decode(first)["choices"][0]["delta"]["role"] == "assistant"
    assert await funded.funds() == (FUNDED_NANO - FORTE.charge(Usage(3, 1)), 0)


async def test_leaving_while_the_store_takes_no_hold_is_free(funded: FundedStore) -> None:
    """The head and pings came before credit was held, and the model was not asked: nothing is charged, nothing held."""
    upstream = ScriptedUpstream(Piece("yes", "stop", Usage(3, 1)))
    async with running_api(funded, upstream) as api:
        api.gateway.in_flight.pings.every_s = EVERY_S
        client = Client()
        api.chat(client, stream=True)
        assert funded.store.path
        with closing(sqlite3.connect(funded.store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            serving = asyncio.create_task(client.serve(api.gateway))
            await client.until_sent(PING)
            client.disconnect()
            with suppress(asyncio.CancelledError):
                await serving
            other.execute("ROLLBACK")
    assert client.bodies[0] == PING
    assert upstream.asks == []
    assert await funded.funds() == (FUNDED_NANO, 0)


async def test_an_account_without_credit_gets_its_402(tmp_path: Path) -> None:
    """However soon pings come, a client that can pay for nothing is not told that its request was accepted."""
    async with open_funded_store(tmp_path, 0) as poor, running_api(poor) as api:
        api.gateway.in_flight.pings.every_s = NO_TIME_S
        client = Client()
        api.chat(client, stream=True)
        await client.serve(api.gateway)
    assert client.status == 402
