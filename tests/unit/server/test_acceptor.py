"""Accepting connections: at the limit the quietest makes room, busy ones stay, and running out of files is survived."""

import socket

import pytest

from cadenza.http.connections import ConnectionsLimits
from cadenza.http.exchange import Exchange
from cadenza.server.acceptor import connections_limits
from cadenza.server.server import ServerLimits
from tests.unit.http.peer import no_files_left
from tests.unit.http.raw_client import WAIT_S, RawClient, request, until
from tests.unit.http.testing_site import WHOLE, check_served
from tests.unit.server.test_server import RecordedService, running

FULL = ServerLimits(connections=ConnectionsLimits(served_max=2, refused_max=1, quiet_s_min=0.05))
PATIENT = ServerLimits(connections=ConnectionsLimits(served_max=2, refused_max=1, quiet_s_min=WAIT_S))


class RefusingService(RecordedService):
    """Refuses with 429 what it is asked to refuse."""

    async def refuse(self, exchange: Exchange) -> None:
        exchange.close_after_reply()
        exchange.respond(429, b"", b"")


async def test_the_quietest_connection_makes_room() -> None:
    """With more clients than places, the one that was served longest ago is closed, and the new one is served."""
    async with running(RefusingService(), limits=FULL) as server:
        clients = list[RawClient]()
        for _ in range(3):
            clients.append(await server.connect())
            await check_served(clients[-1])
        assert await clients[0].read_to_end() == b""
        await check_served(clients[1])


async def test_a_client_is_refused_while_all_are_busy() -> None:
    """The refusal comes at once; the running exchanges end well, and then there is room again."""
    service = RefusingService()
    async with running(service, limits=FULL) as server:
        busy = [await server.connect() for _ in range(2)]
        for client in busy:
            await client.send(request("/when-told"))
        await until(lambda: len(service.paths) == 2)
        refused = await server.connect()
        await refused.send(request("/whole"))
        assert (await refused.reply())[0] == b"HTTP/1.1 429 Too Many Requests"
        assert await refused.read_to_end() == b""
        service.go_on.set()
        assert [(await client.reply())[2] for client in busy] == [WHOLE, WHOLE]
        await check_served(await server.connect())


async def test_clients_beyond_the_refused_ones_wait() -> None:
    """A client for which there is not even room to be refused waits in the backlog, and is served later."""
    service = RefusingService()
    async with running(service, limits=PATIENT) as server:
        busy = [await server.connect() for _ in range(2)]
        for client in busy:
            await client.send(request("/when-told"))
        await until(lambda: len(service.paths) == 2)
        silent = await server.connect()
        waiting = await server.connect()
        await waiting.send(request("/whole"))
        service.go_on.set()
        for client in busy:
            await client.reply()
            client.abort()
        assert (await waiting.reply())[2] == WHOLE
        silent.abort()


async def test_running_out_of_files_is_survived() -> None:
    """A client that comes when no file is left is served as soon as there is one again."""
    async with running(RefusingService()) as server:
        used = await server.connect()
        await check_served(used)
        late = await server.connect()
        await check_served(used)
        with no_files_left():
            await check_served(used)
        await check_served(late)


async def test_running_out_of_files_closes_the_quietest() -> None:
    """A connection that is idle gives its file to the client that comes when none is left."""
    limits = ServerLimits(connections=ConnectionsLimits(quiet_s_min=0))
    async with running(RefusingService(), limits=limits) as server:
        idle = await server.connect()
        await check_served(idle)
        with socket.socket() as late:
            late.connect(server.address)  # the server sees it in the next turn of the loop
            with no_files_left():
                assert await idle.read_to_end() == b""


@pytest.mark.parametrize(("files_max", "served_max"), [(64, 14), (256, 108), (1024, 464), (20_000, 9247)])
def test_connections_are_capped_below_the_files(files_max: int, served_max: int) -> None:
    """Every connection may need one to an upstream too, and a reserve is left."""
    limits = connections_limits(files_max)
    assert limits.served_max == served_max
    assert 2 * limits.served_max + limits.refused_max + 32 <= files_max
