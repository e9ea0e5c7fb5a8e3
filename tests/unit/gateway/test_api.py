"""The edge of the API: paths, methods, preflights, and errors that say nothing of what went wrong inside."""

import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from cadenza.core.errors import NotFound
from cadenza.core.records import Route
from cadenza.gateway.api import find_endpoint, serve_api
from cadenza.gateway.compose import Character
from cadenza.gateway.gateway import Gateway
from cadenza.routing.catalogue import Catalogue
from cadenza.routing.dispatch import Dispatcher
from cadenza.upstreams.base import Ask, OpenReply, PassOn, Piece, Probe
from tests.unit.gateway.books import FORTE, LIMITS, Books, open_books
from tests.unit.gateway.clients import Client, Headers

SECRET = "what a client said"


class Broken:
    """An upstream with a fault of our own in it: its reply raises what no reply may raise."""

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def retire(self) -> None:
        """Nothing to stop."""

    async def probe(self) -> Probe:
        return Probe(reachable=True, detail="answers")

    @asynccontextmanager
    async def open(self, route: Route, ask: Ask) -> AsyncIterator[OpenReply]:
        yield self

    async def read(self, pass_on: PassOn | None = None) -> list[Piece]:
        raise ZeroDivisionError(SECRET)


class Edge:
    """A gateway over one broken upstream, with books and a key of its own."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.gateway = Gateway(
            db=books.db,
            catalogue=Catalogue(
                routes={"forte": (Route("broken", "model", 1000, 100),)},
                characters={"forte": Character("Be brief.")},
                prices={"forte": FORTE},
            ),
            dispatcher=Dispatcher({"broken": Broken()}, books.observer, ceiling=100),
            writer=books.writer,
            limits=LIMITS,
            observer=books.observer,
        )

    async def chat(self, client: Client, *, stream: bool) -> None:
        client.say(json.dumps({"messages": [{"role": "user", "content": SECRET}], "stream": stream}).encode())
        await serve_api(self.gateway, client.exchange(self.with_key))

    @property
    def with_key(self) -> Headers:
        return [(b"authorization", b"Bearer " + self.books.secret.encode())]

    @property
    def log(self) -> str:
        return self.books.written.getvalue()

    def sample(self, name: str, **labels: str) -> float | None:
        return self.gateway.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with open_books(tmp_path, credit_nano=5_000_000_000) as books:
        yield Edge(books)


async def test_a_fault_of_our_own_is_a_500_without_its_text(edge: Edge) -> None:
    """Before the first byte: the error object of an internal error; the log has its place, nobody has its text."""
    client = Client()
    await edge.chat(client, stream=False)
    assert client.status == 500
    assert json.loads(client.bodies[0])["error"]["type"] == "api_error"
    assert SECRET not in edge.log + client.bodies[0].decode()
    assert "ZeroDivisionError" in edge.log


async def test_a_fault_of_our_own_amid_a_stream_is_no_clean_end(edge: Edge) -> None:
    """After the first byte the server is left to break the connection: nothing looks like an end."""
    client = Client()
    with pytest.raises(ConnectionAbortedError) as abort:
        await edge.chat(client, stream=True)
    assert abort.value.__suppress_context__
    assert client.bodies
    assert not client.has_end
    assert client.was_kept is None
    assert SECRET not in edge.log


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_counted_however_it_ends(edge: Edge, *, stream: bool) -> None:
    """After a fault of our own nothing is left in flight, and the request is counted with its status."""
    with contextlib.suppress(ConnectionAbortedError):
        await edge.chat(Client(), stream=stream)
    assert edge.sample("cadenza_requests_in_flight") == 0
    assert edge.sample("cadenza_requests_total", endpoint="chat", status="200" if stream else "500") == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_of_our_own_charges_nothing(edge: Edge, *, stream: bool) -> None:
    """Nothing was delivered: the hold is released, and the metering row says 500."""
    with contextlib.suppress(ConnectionAbortedError):
        await edge.chat(Client(), stream=stream)
    await edge.books.until_written()
    account = await edge.books.account()
    assert (account.balance_nano, account.held_nano) == (5_000_000_000, 0)
    assert [(row["status"], row["cost_nano"]) for row in await edge.books.rows("usage")] == [(500, 0)]


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/usage")]
)
async def test_a_store_that_is_down_is_a_reason_to_come_back(edge: Edge, method: str, path: str) -> None:
    """Every path that needs the store answers 429 with both of its waits, and does not say where the store is."""
    client = Client()
    async with edge.books.db.write() as conn:
        await conn.execute(text("ALTER TABLE keys RENAME TO elsewhere"))
    client.say(b"{}")
    await serve_api(edge.gateway, client.exchange(edge.with_key, method, path))
    async with edge.books.db.write() as conn:
        await conn.execute(text("ALTER TABLE elsewhere RENAME TO keys"))
    assert client.status == 429
    assert json.loads(client.bodies[0])["error"]["type"] == "rate_limit_error"
    assert (client.headers[b"retry-after"], client.headers[b"retry-after-ms"]) == (b"2", b"2000")
    assert b"books.db" not in client.bodies[0]


async def test_a_client_that_left_is_counted_and_not_answered(edge: Edge) -> None:
    """Nobody is there to answer: nothing is sent, and the log says 499."""
    client = Client()
    client.leave()
    await serve_api(edge.gateway, client.exchange(edge.with_key))
    assert client.sent == []
    assert edge.sample("cadenza_requests_total", endpoint="chat", status="499") == 1


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/chat/completions/", "chat"),
        ("/v1/models", "models"),
        ("/v1/models/", "models"),
        ("/v1/models/forte", "model"),
        ("/v1/models/forte/", "model"),
        ("/v1/models/a/b", "model"),
        ("/v1/usage", "usage"),
        ("/v1/usage/", "usage"),
    ],
)
def test_paths_lead_to_their_endpoints(path: str, name: str) -> None:
    """A slash at the end is forgiven."""
    assert find_endpoint(path).name == name


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/v1/embeddings", "not implemented here"),
        ("/v1/completions", "not implemented here"),
        ("/v1/v1/chat/completions", "has /v1 twice"),
        ("/v1", "no such path"),
        ("/v1/modelsx", "no such path"),
        ("/v1/chat", "no such path"),
        ("/v1/usage/me", "no such path"),
        ("/v1/chat/Completions", "no such path"),
    ],
)
def test_an_unknown_path_is_not_found_with_a_hint(path: str, sentence: str) -> None:
    """404 says whether the path is not offered, doubled or unknown, and does not repeat it."""
    with pytest.raises(NotFound, match=sentence):
        find_endpoint(path)


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [("/v1/models", "POST", b"GET"), ("/v1/chat/completions", "GET", b"POST"), ("/v1/usage", "POST", b"GET")],
)
async def test_a_wrong_method_is_405_without_a_key(edge: Edge, path: str, method: str, allowed: bytes) -> None:
    """The method is checked before anything else, and the right one is named."""
    client = Client()
    await serve_api(edge.gateway, client.exchange(method=method, path=path))
    assert client.status == 405
    assert client.headers[b"allow"] == allowed


async def test_a_preflight_is_granted_what_it_asks_for(edge: Edge) -> None:
    """Any origin and any headers are allowed, on any path, and no key is needed."""
    client = Client()
    asked = (b"access-control-request-headers", b"authorization, x-stainless-os")
    await serve_api(edge.gateway, client.exchange([asked], method="OPTIONS", path="/v1/anything"))
    assert client.status == 204
    assert client.headers[b"access-control-allow-origin"] == b"*"
    assert client.headers[b"access-control-allow-headers"] == b"authorization, x-stainless-os"
    assert b"access-control-allow-credentials" not in client.headers
