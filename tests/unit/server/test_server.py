"""The server of a process: whether it begins, when it ends, and what becomes of its connections then."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from cadenza.server import server as listen
from cadenza.server.server import STARTUP_FAILURE, Server, bind
from tests.unit.http.visits import WAIT_S, WHOLE, Client, Site, connect_to, request, tell, until

SHORT_S = 0.1


class Play(Site):
    """A service that notes what it is told, and has nothing that a drain would wait for."""

    drain_s = WAIT_S

    def __init__(self, start: Callable[[], Awaitable[bool]] | None = None) -> None:
        super().__init__()
        self.told: list[str] = []
        self._start = start

    async def start(self) -> bool:
        self.told.append("start")
        return await self._start() if self._start else True

    async def stop(self) -> None:
        self.told.append("stop")

    def drain(self) -> None:
        self.told.append("drain")

    def cut(self) -> None:
        self.told.append("cut")

    async def until_idle(self) -> None:
        """It is."""

    async def reload(self) -> None:
        self.told.append("reload")


class Running:
    """A server that runs, and clients of it."""

    def __init__(self, play: Play, address: tuple[str, int], task: asyncio.Task[int]) -> None:
        self.play = play
        self.task = task
        self.clients: list[Client] = []
        self._address = address

    async def connect(self) -> Client:
        """A client that the server knows."""
        client = await connect_to(self.play, self._address)
        self.clients.append(client)
        await client.check_served()
        return client

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.task, WAIT_S)


@contextlib.asynccontextmanager
async def running(play: Play, *, heeds_interrupt: bool = True) -> AsyncIterator[Running]:
    listener = bind("127.0.0.1", 0)
    server = Server(play, listener, heeds_interrupt=heeds_interrupt)
    found = Running(play, listener.getsockname(), asyncio.create_task(server.run()))
    try:
        yield found
    finally:
        for client in found.clients:
            client.abort()
        server._is_over.set()
        await asyncio.gather(found.task, return_exceptions=True)
        await play.end()
        listener.close()


async def hear(number: signal.Signals) -> None:
    """Returns when the loop has heard this signal, and another one after it."""
    heard = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
    for one in (number, signal.SIGUSR1):
        signal.raise_signal(one)
    await asyncio.wait_for(heard.wait(), WAIT_S)


def test_a_start_that_fails() -> None:
    """A service that says that it could not start is not served, nor stopped, and the exit code tells it."""

    async def refuse() -> bool:
        return False

    async def story() -> None:
        async with running(Play(refuse)) as server:
            assert await server.exit_code() == STARTUP_FAILURE
            assert server.play.told == ["start"]

    uvloop.run(story())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_ends_the_server(number: signal.Signals) -> None:
    """Who is told to end while it starts ends once it has, in good order, and never serves."""

    async def story() -> None:
        async def start() -> bool:
            await hear(number)
            return True

        async with running(Play(start)) as server:
            assert await server.exit_code() == 0
            assert server.play.told == ["start", "stop"]

    uvloop.run(story())


def test_a_hangup_during_the_start_is_heeded_after_it() -> None:
    """What was read before the hangup may be out of date: the config is read again as soon as it is served by."""

    async def story() -> None:
        async def start() -> bool:
            await hear(signal.SIGHUP)
            return True

        async with running(Play(start)) as server:
            await until(lambda: server.play.told == ["start", "reload"])
            signal.raise_signal(signal.SIGTERM)
            assert await server.exit_code() == 0

    uvloop.run(story())


def test_idle_connections_are_closed_at_the_end() -> None:
    """A connection without a request ends with the server at once, be it used or new."""

    async def story() -> None:
        async with running(Play()) as server:
            used, other = await server.connect(), await server.connect()
            signal.raise_signal(signal.SIGTERM)
            assert [await used.hear_the_end(), await other.hear_the_end()] == [b"", b""]
            assert await server.exit_code() == 0
            assert server.play.told == ["start", "drain", "cut", "stop"]

    uvloop.run(story())


def test_a_reply_under_way_is_finished_before_the_end() -> None:
    """What is being answered has its whole reply, which says that it is the last; what waits behind it has none."""

    async def story() -> None:
        async with running(Play()) as server:
            idle, busy = await server.connect(), await server.connect()
            await busy.say(request("/when-told") + request("/whole"))
            await until(lambda: server.play.asked[-1] == "/when-told")
            signal.raise_signal(signal.SIGTERM)
            await idle.hear_the_end()
            assert "stop" not in server.play.told
            server.play.go.set()
            first, lines, body = await busy.reply()
            assert (first, body) == (b"HTTP/1.1 200 OK", WHOLE)
            assert b"connection: close" in lines
            assert await busy.hear_the_end() == b""
            assert await server.exit_code() == 0
            assert server.play.told[-1] == "stop"

    uvloop.run(story())


def test_a_reply_that_does_not_end_is_cut_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still being answered when the last moment is over loses its connection, and the process ends."""
    monkeypatch.setattr(listen, "LAST_S", SHORT_S)

    async def story() -> None:
        async with running(Play()) as server:
            busy = await server.connect()
            await busy.say(request("/wait"))
            await asyncio.wait_for(server.play.watching.wait(), WAIT_S)
            signal.raise_signal(signal.SIGTERM)
            assert await busy.hear_the_end() == b""
            assert await server.exit_code() == 0
            await asyncio.wait_for(server.play.left.wait(), WAIT_S)

    uvloop.run(story())


def test_an_interrupt_that_is_for_another_process_is_passed_over() -> None:
    """A server that does not heed Ctrl-C goes on serving after it, and heeds the signals that are its own."""

    async def story() -> None:
        async with running(Play(), heeds_interrupt=False) as server:
            client = await server.connect()
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGHUP)
            await until(lambda: "reload" in server.play.told)
            await client.check_served()
            assert server.play.told == ["start", "reload"]
            signal.raise_signal(signal.SIGTERM)
            assert await server.exit_code() == 0

    uvloop.run(story())


def test_a_connection_that_is_shut_between_two_requests() -> None:
    """Once a connection is to close, no request that comes behind the one under way is begun."""

    async def story(client: Client) -> None:
        await client.say(request("/when-told"))
        client.far_end().shut()
        await client.say(request("/whole"))
        client.site.go.set()
        assert (await client.reply())[2] == WHOLE
        assert await client.hear_the_end() == b""
        assert client.site.asked == ["/when-told"]

    tell(story)
