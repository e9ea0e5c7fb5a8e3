"""The server of a process: its start, its signals, and what happens to its connections when it ends."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

import pytest

from cadenza.http.exchange import Exchange, Interruption
from cadenza.server.server import STARTUP_FAILURE, Server, ServerLimits, bind
from tests.unit.http.raw_client import WAIT_S, RawClient, connect_to, request, until
from tests.unit.http.testing_site import WHOLE, Site, check_malformed, check_served

SHORT_S = 0.1
LONG = ServerLimits(interrupted_s=WAIT_S, close_s=WAIT_S)


class RecordedService(Site):
    """Records what the server tells it. Unless it is busy, a drain ends at once."""

    def __init__(self, start: Callable[[], Awaitable[bool]] | None = None, drain_s: float = WAIT_S) -> None:
        super().__init__()
        self.drain_s = drain_s
        self.events: list[str] = []
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self._start = start

    async def start(self) -> bool:
        self.events.append("start")
        return await self._start() if self._start else True

    async def stop(self) -> None:
        self.events.append("stop")

    def refuse(self, exchange: Exchange) -> Coroutine[None, None, None]:
        exchange.close_after_reply()
        return self.serve(exchange)

    def drain(self) -> None:
        self.events.append("drain")

    def interrupt(self) -> None:
        self.events.append("interrupt")

    async def until_idle(self) -> None:
        await self.is_idle.wait()

    async def reload(self) -> None:
        self.events.append("reload")


class InterruptingService(RecordedService):
    """Interrupts its exchanges when it is told to, as the gateway does, and is idle once they have ended."""

    def __init__(self) -> None:
        super().__init__(drain_s=10 * WAIT_S)
        self.is_idle.clear()

    def serve(self, exchange: Exchange) -> Coroutine[None, None, None]:
        return self._reply_when_interrupted(exchange)

    async def _reply_when_interrupted(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.is_waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert exchange.absorb_cancellation() is Interruption.SHUTDOWN
            exchange.respond(503, b"", b"interrupted")
        self.is_idle.set()

    def interrupt(self) -> None:
        super().interrupt()
        for exchange in self.exchanges:
            exchange.interrupt(Interruption.SHUTDOWN)


class Running:
    """A running server and its clients."""

    def __init__(self, address: tuple[str, int], task: asyncio.Task[int]) -> None:
        self.clients: list[RawClient] = []
        self.address = address
        self._task = task

    async def connect(self) -> RawClient:
        self.clients.append(await connect_to(self.address))
        return self.clients[-1]

    async def exit_code(self) -> int:
        return await asyncio.wait_for(asyncio.shield(self._task), WAIT_S)


@contextlib.asynccontextmanager
async def running(
    service: RecordedService, *, handles_sigint: bool = True, limits: ServerLimits = LONG
) -> AsyncIterator[Running]:
    listener = bind("127.0.0.1", 0)
    server = Server(service, listener, handles_sigint=handles_sigint, limits=limits)
    task = asyncio.create_task(server.run())
    found = Running(listener.getsockname(), task)
    try:
        yield found
    finally:
        for client in found.clients:
            client.abort()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await service.cancel_tasks()
        listener.close()


async def deliver(number: signal.Signals) -> None:
    """Raise a signal, and return once the loop has handled it."""
    handled = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, handled.set)
    for one in (number, signal.SIGUSR1):
        signal.raise_signal(one)
    await asyncio.wait_for(handled.wait(), WAIT_S)


async def test_a_start_that_fails() -> None:
    """A service that could not start is neither served nor stopped, and the exit code tells it."""

    async def refuse() -> bool:
        return False

    service = RecordedService(refuse)
    async with running(service) as server:
        assert await server.exit_code() == STARTUP_FAILURE
        assert service.events == ["start"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_during_the_start_stops_the_server(number: signal.Signals) -> None:
    """A server that is told to end while it starts stops after the start, and never serves."""

    async def start() -> bool:
        await deliver(number)
        return True

    service = RecordedService(start)
    async with running(service) as server:
        assert await server.exit_code() == 0
        assert service.events == ["start", "stop"]


async def test_a_hangup_during_the_start_reloads_after_it() -> None:
    """The config that was read before a SIGHUP may be out of date, so it is read again as soon as the server serves."""

    async def start() -> bool:
        await deliver(signal.SIGHUP)
        return True

    service = RecordedService(start)
    async with running(service) as server:
        await until(lambda: service.events == ["start", "reload"])
        signal.raise_signal(signal.SIGTERM)
        assert await server.exit_code() == 0


async def test_idle_connections_are_closed_at_the_end() -> None:
    """A connection without a request, used or new, closes with the server at once."""
    service = RecordedService()
    async with running(service) as server:
        used, new = await server.connect(), await server.connect()
        await check_served(used)
        signal.raise_signal(signal.SIGTERM)
        assert [await used.read_to_end(), await new.read_to_end()] == [b"", b""]
        assert await server.exit_code() == 0
        assert service.events == ["start", "drain", "interrupt", "stop"]


async def test_memory_is_returned_while_it_serves() -> None:
    """What returns memory after a peak runs from the first connection to the end of the server."""

    def is_looking() -> bool:
        return any("return_memory_after_peaks" in repr(task) for task in asyncio.all_tasks())

    async with running(RecordedService()) as server:
        await check_served(await server.connect())
        assert is_looking()
        signal.raise_signal(signal.SIGTERM)
        assert await server.exit_code() == 0
        assert not is_looking()


async def test_a_running_reply_is_completed_before_the_end() -> None:
    """A running exchange gets its whole reply, which announces the close; a request that waits behind it gets none."""
    service = RecordedService()
    async with running(service) as server:
        idle, busy = await server.connect(), await server.connect()
        await check_served(idle)
        await busy.send(request("/when-told") + request("/whole"))
        await until(lambda: service.paths[-1] == "/when-told")
        signal.raise_signal(signal.SIGTERM)
        await idle.read_to_end()
        assert "stop" not in service.events
        service.go_on.set()
        status_line, lines, body = await busy.reply()
        assert (status_line, body) == (b"HTTP/1.1 200 OK", WHOLE)
        assert b"connection: close" in lines
        assert await busy.read_to_end() == b""
        busy.abort()
        assert await server.exit_code() == 0
        assert service.events[-1] == "stop"
        assert service.paths == ["/whole", "/when-told"]


async def test_new_connections_are_served_during_the_drain() -> None:
    """While the service is not idle, the server goes on accepting connections, so that the service can refuse them."""
    service = RecordedService()
    service.is_idle.clear()
    async with running(service) as server:
        await check_served(await server.connect())
        await deliver(signal.SIGTERM)
        await check_served(await server.connect())
        assert service.events == ["start", "drain"]
        service.is_idle.set()
        assert await server.exit_code() == 0
        assert service.events == ["start", "drain", "interrupt", "stop"]


async def test_the_second_signal_interrupts() -> None:
    """Exchanges that run when a second signal comes are interrupted; their replies still reach the client."""
    service = InterruptingService()
    async with running(service) as server:
        client = await server.connect()
        await client.send(request("/any"))
        await asyncio.wait_for(service.is_waiting.wait(), WAIT_S)
        await deliver(signal.SIGTERM)
        assert service.events == ["start", "drain"]
        await deliver(signal.SIGTERM)
        assert (await client.reply())[::2] == (b"HTTP/1.1 503 Service Unavailable", b"interrupted")
        assert await server.exit_code() == 0


async def test_the_drain_is_bounded() -> None:
    """A service that never becomes idle is interrupted at the limit of the drain, and stopped a while later."""
    service = RecordedService(drain_s=SHORT_S)
    service.is_idle.clear()
    async with running(service, limits=ServerLimits(interrupted_s=SHORT_S)) as server:
        await check_served(await server.connect())
        signal.raise_signal(signal.SIGTERM)
        assert await server.exit_code() == 0
        assert service.events == ["start", "drain", "interrupt", "stop"]


async def test_a_reply_that_does_not_end_is_aborted() -> None:
    """A reply that runs on after the last limit loses its connection, and the process ends."""
    service = RecordedService()
    async with running(service, limits=ServerLimits(close_s=SHORT_S)) as server:
        client = await server.connect()
        await client.send(request("/wait"))
        await asyncio.wait_for(service.is_waiting.wait(), WAIT_S)
        signal.raise_signal(signal.SIGTERM)
        assert await client.read_to_end() == b""
        assert await server.exit_code() == 0
        await asyncio.wait_for(service.was_interrupted.wait(), WAIT_S)


async def test_a_worker_ignores_sigint() -> None:
    """A server that leaves SIGINT to its parent goes on serving after it, and handles the other signals."""
    service = RecordedService()
    async with running(service, handles_sigint=False) as server:
        client = await server.connect()
        await check_served(client)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: "reload" in service.events)
        await check_served(client)
        assert service.events == ["start", "reload"]
        signal.raise_signal(signal.SIGTERM)
        assert await server.exit_code() == 0


async def test_the_settings_of_connections_are_the_services() -> None:
    """Bytes that are not HTTP get the reply that the service gives in its connection settings."""
    async with running(RecordedService()) as server:
        client = await server.connect()
        await client.send(b"\x00 not HTTP\r\n\r\n")
        check_malformed(await client.read_to_end())
        client.abort()
        signal.raise_signal(signal.SIGTERM)
        assert await server.exit_code() == 0
