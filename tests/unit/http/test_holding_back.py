"""A client that was refused is held back: its next request is not read before its pause is over."""

from cadenza.http.connection import ConnectionLimits
from tests.unit.http.raw_client import RawClient, request, until
from tests.unit.http.testing_site import Site, check_served
from tests.unit.upstreams.clock import Clock

LIMITS = ConnectionLimits()
REFUSED = request("/hold-back")


async def refuse(client: RawClient, site: Site) -> None:
    """Send a request that is refused, and read the reply."""
    before = len(site.exchanges)
    await client.send(REFUSED)
    assert b" 429 " in (await client.reply())[0]
    assert len(site.exchanges) == before + 1


async def test_the_next_request_waits_for_the_pause(clock: Clock) -> None:
    """A request that comes at once is served after the pause, not before."""
    async with Site() as site:
        client = await site.connect()
        await refuse(client, site)
        await client.send(request("/whole"))
        await clock.leap(0.9)
        assert len(site.exchanges) == 1
        await clock.leap(0.2)
        assert b" 200 " in (await client.reply())[0]


async def test_a_client_that_waits_is_not_held_back_longer(clock: Clock) -> None:
    """Refusals in a row do not lengthen the pause of a client that waits by itself."""
    async with Site() as site:
        client = await site.connect()
        for _ in range(4):
            await refuse(client, site)
            await clock.leap(1.1)


async def test_pauses_that_are_ignored_grow_up_to_a_limit(clock: Clock) -> None:
    """A client that ignores its refusals is held back longer each time."""
    async with Site() as site:
        client = await site.connect()
        await refuse(client, site)
        for pause_s in (1.0, 4.0, LIMITS.pause_s_max, LIMITS.pause_s_max):
            seen, received_bytes = len(site.exchanges), site.connection.received_bytes
            await client.send(REFUSED)
            await until(lambda before=received_bytes: site.connection.received_bytes > before)  # type: ignore[misc]
            await clock.leap(pause_s - 0.1)
            assert len(site.exchanges) == seen
            await clock.leap(0.2)
            assert b" 429 " in (await client.reply())[0]


async def test_a_served_request_ends_the_row(clock: Clock) -> None:
    """After a request that was not refused, the next pause is short again."""
    async with Site() as site:
        client = await site.connect()
        for _ in range(3):
            await refuse(client, site)
            await client.send(request("/whole"))
            await clock.leap(1.1)
            assert b" 200 " in (await client.reply())[0]


async def test_a_proxy_is_not_held_back() -> None:
    """A connection of a trusted proxy carries requests of many clients, so the next one is served at once."""
    async with Site() as site:
        client = await site.connect()
        await client.send(request("/hold-back", more="x-forwarded-for: 192.0.2.7\r\n"))
        assert b" 429 " in (await client.reply())[0]
        await check_served(client)


async def test_a_client_that_is_held_back_can_leave(clock: Clock) -> None:
    """A connection that closes during its pause leaves nothing behind."""
    async with Site() as site:
        client = await site.connect()
        await refuse(client, site)
        client.abort()
        await clock.leap(10)
        await until(lambda: len(site.connections) == 0)
