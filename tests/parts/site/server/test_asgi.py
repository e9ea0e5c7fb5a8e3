"""The adapter: what an ASGI application is told about a request, and how its replies reach the client."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator

import pytest

from cadenza.http.body import BodyLimits, BodyMemoryFull
from cadenza.http.exchange import Exchange
from cadenza.observe import make_log
from cadenza.parts.site.asgi import (
    ALL_BODIES_BYTES_MAX,
    BODY_BYTES_MAX,
    AsgiAdapter,
    AsgiApp,
    Message,
    PageBody,
    PageMemory,
    Receive,
    Send,
)
from tests.unit.http.raw_client import RawClient, request, until
from tests.unit.http.testing_site import Site

START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}


class AdaptedSite(Site):
    """Serves every path by an ASGI application."""

    def __init__(self, app: AsgiApp, body_limits: BodyLimits | None = None) -> None:
        super().__init__(body_limits=body_limits)
        self.log = io.StringIO()
        self.loads = 0
        self._app = app
        self._adapter = AsgiAdapter(self._load, make_log(self.log))

    async def serve(self, exchange: Exchange) -> None:
        await self._adapter.serve(exchange)

    def _load(self) -> AsgiApp:
        self.loads += 1
        return self._app


@contextlib.asynccontextmanager
async def client_of(app: AsgiApp, limits: BodyLimits | None = None) -> AsyncIterator[tuple[RawClient, AdaptedSite]]:
    async with AdaptedSite(app, limits) as site:
        yield await site.connect(), site


async def echo(scope: Message, receive: Receive, send: Send) -> None:
    """Answers with what it was told."""
    message = await receive()
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    told = {name: scope[name] for name in ("method", "path", "scheme", "http_version")}
    told |= {"query": scope["query_string"].decode(), "client": scope["client"][0], "headers": headers} | scope["state"]
    body = json.dumps({**told, "body": message["body"].decode()}).encode()
    await send({**START, "status": 201, "headers": [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]})
    await send({"type": "http.response.body", "body": body})


async def test_an_application_is_told_about_its_request() -> None:
    """It gets method, decoded path, query, headers, client and body, and its status and headers reach the client."""
    async with client_of(echo) as (client, site):
        for _ in range(2):
            await client.send(request("/a%20b?c=d", b"hello", more="x-given: yes\r\n"))
            status, lines, body = await client.reply()
        told = json.loads(body)
        assert (status, told["method"], told["path"], told["query"]) == (b"HTTP/1.1 201 Created", "POST", "/a b", "c=d")
        assert (told["client"], told["body"], told["headers"]["x-given"]) == ("127.0.0.1", "hello", "yes")
        assert lines.count(b"set-cookie: a=1") == lines.count(b"set-cookie: b=2") == 1
        assert site.loads == 1


@pytest.mark.parametrize("has_length", [True, False], ids=["announced", "chunked"])
async def test_a_huge_form_is_refused(has_length: bool) -> None:
    """The application is told of a body above the limit, and sees nothing of it."""
    body = b"x" * (BODY_BYTES_MAX + 1)
    sent = request("/", body)
    if not has_length:
        sent = request("/", more="transfer-encoding: chunked\r\n").replace(b"content-length: 0\r\n", b"")
        sent += b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with client_of(echo) as (client, _):
        client.start_sending(sent)
        told = json.loads((await client.reply())[2])
        assert (told["is_too_large"], told["body"]) == (True, "")


async def test_a_form_gives_its_memory_back() -> None:
    """However many forms come one after the other, none is refused for want of memory."""
    form = request("/", b"x" * BODY_BYTES_MAX)
    async with client_of(echo) as (client, _):
        for _ in range(ALL_BODIES_BYTES_MAX // BODY_BYTES_MAX + 1):
            client.start_sending(form)
            assert (await client.reply())[0] == b"HTTP/1.1 201 Created"


async def test_a_slow_form_is_refused() -> None:
    """A body that does not arrive in time is a 408."""
    async with client_of(echo, BodyLimits(time_s=0.05)) as (client, site):
        await client.send(request("/", b"hello")[:-1])
        assert (await client.reply())[0] == b"HTTP/1.1 408 Request Timeout"
        assert site.loads == 0


async def test_an_application_that_fails_is_a_500() -> None:
    """The client gets a 500; the log gets the place in the code, and not the text of the error."""

    async def fail(_scope: Message, _receive: Receive, _send: Send) -> None:
        raise ValueError("a secret")

    async with client_of(fail) as (client, site):
        await client.send(request("/"))
        assert (await client.reply())[0] == b"HTTP/1.1 500 Internal Server Error"
        assert "test_asgi.py" in site.log.getvalue()
        assert "a secret" not in site.log.getvalue()


async def test_a_client_that_leaves_cancels_the_application() -> None:
    """A page that nobody waits for is not made."""
    has_begun, was_cancelled = asyncio.Event(), asyncio.Event()

    async def wait(_scope: Message, _receive: Receive, _send: Send) -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    async with client_of(wait) as (client, _):
        await client.send(request("/"))
        await until(has_begun.is_set)
        client.abort()
        await until(was_cancelled.is_set)


def test_the_bodies_of_one_network_leave_room_for_others() -> None:
    """Bodies that do not end take half of the memory at most, unless they come from several networks."""
    memory = PageMemory(4 * BODY_BYTES_MAX)
    kept = [PageBody(memory, "one") for _ in range(3)]
    for body in kept[:2]:
        body.take(BODY_BYTES_MAX)
    with pytest.raises(BodyMemoryFull):
        kept[2].expect(BODY_BYTES_MAX)
    with pytest.raises(BodyMemoryFull):
        kept[2].take(1)
    other = PageBody(memory, "another")
    other.expect(BODY_BYTES_MAX)
    other.take(BODY_BYTES_MAX)
    for body in (*kept, other):
        body.release(BODY_BYTES_MAX)
    kept[2].take(BODY_BYTES_MAX)
    assert memory.free_bytes == 3 * BODY_BYTES_MAX
