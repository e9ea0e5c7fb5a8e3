"""A client that disconnects: the exchange that it leaves is interrupted, once, and no other."""

import asyncio

import pytest

from cadenza.http.exchange import Interruption, ReplyState
from tests.unit.http.raw_client import WAIT_S, RawClient, request, until
from tests.unit.http.testing_site import Site, disconnect


async def wait_for(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), WAIT_S)


@pytest.mark.parametrize("requests_before", [0, 2], ids=["first", "third"])
async def test_an_exchange_is_interrupted(site: Site, client: RawClient, requests_before: int) -> None:
    """The task of an exchange is cancelled when its client disconnects, on a new connection and on a used one."""
    for _ in range(requests_before):
        await client.send(request("/whole"))
        await client.reply()
    await client.send(request("/wait"))
    await wait_for(site.is_waiting)
    assert site.disconnected == []
    await disconnect(client, site)
    await until(lambda: site.is_quiet)
    assert site.disconnected == [b"r-1"]
    exchange = site.exchanges[-1]
    assert (exchange.state, exchange.interruption) == (ReplyState.ABANDONED, Interruption.DISCONNECT)


async def test_an_application_that_does_not_absorb_the_cancellation(site: Site, client: RawClient) -> None:
    """A cancellation that comes out of the application ends the task, and the server goes on."""
    await client.send(request("/when-told"))
    await until(lambda: site.paths == ["/when-told"])
    await disconnect(client, site)
    await until(lambda: site.is_quiet)
    assert site.tasks[0].cancelled()
    other = await site.connect()
    await other.send(request("/whole"))
    await other.reply()


async def test_a_client_that_disconnects_amid_its_body(site: Site, client: RawClient) -> None:
    """An application that waits for the rest of a body is interrupted."""
    await client.send(request("/wait", b"a body").removesuffix(b"body"))
    await until(lambda: site.paths == ["/wait"])
    await disconnect(client, site)
    await wait_for(site.was_interrupted)
    assert site.disconnected == [b"r-1"]


@pytest.mark.parametrize("size_bytes", [0, 1000, 200_000])
async def test_a_disconnect_is_noticed_after_any_body(site: Site, client: RawClient, size_bytes: int) -> None:
    """Once a body is complete, small or large, the connection reads on, and so notices that its client disconnects."""
    await client.send(request("/wait", b"x" * size_bytes))
    await wait_for(site.is_waiting)
    await disconnect(client, site)
    await wait_for(site.was_interrupted)
    assert site.disconnected == [b"r-1"]


async def test_a_disconnect_is_noticed_by_a_pipelined_request(site: Site, client: RawClient) -> None:
    """A request that waited for the one before it is interrupted too, though reading was paused meanwhile."""
    await client.send(request("/when-told") + request("/wait", b"x" * 1000, request_id="r-2"))
    site.go_on.set()
    await client.reply()
    await wait_for(site.is_waiting)
    await disconnect(client, site)
    await wait_for(site.was_interrupted)
    assert site.disconnected == [b"r-2"]


async def test_waiting_requests_are_dropped(site: Site, client: RawClient) -> None:
    """Pipelined requests whose client disconnects before their turn are never served."""
    await client.send(request("/wait") + request("/whole") * 3)
    await wait_for(site.is_waiting)
    client.abort()
    # Reading is paused while a request waits, so the server notices the disconnect only when it writes.
    site.connection.abort()
    await until(lambda: not site.connections)
    await wait_for(site.was_interrupted)
    await until(lambda: site.is_quiet)
    assert site.paths == ["/wait"]


async def test_only_the_running_exchange_is_interrupted(site: Site, client: RawClient) -> None:
    """While one exchange works on after its reply, the next one on the connection is the one that is interrupted."""
    await client.send(request("/reply-then-work"))
    await client.reply()
    await client.send(request("/wait", request_id="r-2"))
    await wait_for(site.is_waiting)
    await disconnect(client, site)
    await wait_for(site.was_interrupted)
    assert site.disconnected == [b"r-2"]
    site.go_on.set()
    await wait_for(site.has_finished)
