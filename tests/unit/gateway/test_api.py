"""The edge of the API: paths, methods, preflights, and errors that reveal nothing internal."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from cadenza.core.chat import ChatRequest
from cadenza.core.records import Usage
from cadenza.gateway.gateway import body_bytes_max
from cadenza.ledger.idempotency_keys import READ_KEY
from cadenza.store.statements import Statement
from cadenza.upstreams.base import Piece
from tests.unit.gateway.client import Client
from tests.unit.gateway.funded_store import FundedStore, WatchedStore, open_funded_store
from tests.unit.gateway.gateways import Api, running_api
from tests.unit.gateway.scripted_upstream import ScriptedUpstream

SECRET = "the words of a client"
PROMPT = "a prompt that no other test sends"


@pytest.fixture
async def api(funded: FundedStore) -> AsyncIterator[Api]:
    """Its upstream has a bug: it raises an exception that no upstream may raise."""
    async with running_api(funded, ScriptedUpstream(ZeroDivisionError(SECRET))) as running:
        yield running


async def test_an_internal_error_is_a_500_without_its_text(api: Api) -> None:
    """Before the first byte, the client gets the error object; the log has the place of the error, never its text."""
    client = Client()
    api.chat(client, SECRET)
    await client.serve(api.gateway)
    assert client.status == 500
    assert json.loads(client.bodies[0])["error"]["type"] == "api_error"
    assert SECRET not in api.observer.written.getvalue() + client.bodies[0].decode()
    assert "ZeroDivisionError" in api.observer.written.getvalue()


async def test_without_grounding_an_idempotency_key_is_not_looked_up(api: Api) -> None:
    """The hold finds a repeated key by itself."""
    client = Client()
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    client.open([*api.funded.key_headers, (b"idempotency-key", b"once")], body=body)
    await client.serve(api.gateway)
    assert client.status == 500
    assert api.funded.store.reads > 0
    assert READ_KEY not in api.funded.store.statements


async def test_an_internal_error_in_a_stream_is_not_a_clean_end(api: Api) -> None:
    """After the first byte, the connection is to be aborted: no client can take this for the end of the stream."""
    client = Client()
    api.chat(client, SECRET, stream=True)
    with pytest.raises(ConnectionAbortedError) as abort:
        await client.serve(api.gateway)
    assert abort.value.__suppress_context__
    assert client.bodies
    assert not client.has_end
    assert client.replies == 0
    assert SECRET not in api.observer.written.getvalue()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")], ids=["memory", "threads"])
async def test_out_of_memory_is_a_429(funded: FundedStore, error: Exception) -> None:
    """A request that the process has no memory or thread for can be retried, and its outcome says the same."""
    client = Client()
    async with running_api(funded, ScriptedUpstream(error)) as api:
        api.chat(client, SECRET)
        await client.serve(api.gateway)
        await api.gateway.ledger.drained()
    assert client.status == 429
    assert json.loads(client.bodies[0])["error"]["type"] == "rate_limit_error"
    assert {b"retry-after", b"retry-after-ms"} <= client.headers.keys()
    assert '"status":429' in api.observer.written.getvalue()


@pytest.mark.parametrize(
    ("room_mib", "bodies_mib"), [(None, 512), (10_000, 512), (2048, 512), (400, 100), (4, 1), (0, 1)]
)
def test_bodies_take_a_part_of_the_memory(room_mib: int | None, bodies_mib: int) -> None:
    """All bodies together take a quarter of the room at most, since each is in memory several times."""
    assert body_bytes_max(None if room_mib is None else room_mib * 2**20) == bodies_mib * 2**20


async def change_schema(store: WatchedStore, sql: str) -> None:
    await store.transact(lambda tx: tx.change(Statement(text(sql)), {}))


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/usage")]
)
async def test_an_unavailable_store_is_a_429(api: Api, method: str, path: str) -> None:
    """Every path that needs the store answers 429 with both retry headers, and does not name the store."""
    client = Client()
    await change_schema(api.funded.store, "ALTER TABLE keys RENAME TO elsewhere")
    client.open(api.funded.key_headers, method, path, body=b"{}")
    await client.serve(api.gateway)
    await change_schema(api.funded.store, "ALTER TABLE elsewhere RENAME TO keys")
    assert client.status == 429
    assert json.loads(client.bodies[0])["error"]["type"] == "rate_limit_error"
    assert (client.headers[b"retry-after"], client.headers[b"retry-after-ms"]) == (b"2", b"2000")
    assert b"cadenza.db" not in client.bodies[0]


async def test_a_draining_gateway_refuses_new_requests(api: Api) -> None:
    """They get 429 and a connection that closes, so that the retry can reach another process."""
    client = Client()
    api.gateway.in_flight.is_draining = True
    api.get(client, "/v1/models")
    await client.serve(api.gateway)
    assert (client.status, client.headers[b"connection"]) == (429, b"close")
    assert b"retry-after" in client.headers
    assert client.exchange.pause_s  # a client that retries at once waits


async def test_a_key_that_could_not_pay_is_read_again(tmp_path: Path) -> None:
    """Its cached balance may be too high: the request after a 402 asks the store."""
    async with open_funded_store(tmp_path, 1) as poor, running_api(poor) as api:
        for _ in range(2):
            poor.store.statements.clear()
            client = Client()
            api.chat(client)
            await client.serve(api.gateway)
            assert client.status == 402
            assert poor.store.reads


async def test_an_open_stream_keeps_its_prompt_once(funded: FundedStore) -> None:
    """It keeps its messages as they came, to count them or to continue elsewhere; their decoded texts are dropped."""
    silence = asyncio.Event()
    upstream = ScriptedUpstream(Piece("yes", "stop", Usage(3, 1)), opening=silence)
    async with running_api(funded, upstream) as api:
        client = Client()
        api.chat(client, PROMPT, stream=True)
        serving = asyncio.create_task(client.serve(api.gateway))
        await upstream.is_asked.wait()
        chats = [each for each in gc.get_objects() if isinstance(each, ChatRequest)]
        [chat] = [each for each in chats if PROMPT.encode() in bytes(each.messages[0])]
        assert (chat.texts, PROMPT in chat.counted_texts()) == ([], True)
        silence.set()
        await serving
    assert client.status == 200
