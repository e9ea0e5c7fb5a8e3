"""Hosts with several addresses, of which the first is silent."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cadenza.http.connecting import Address
from tests.unit.http.peer import LOCALHOST, silent_listener
from tests.unit.upstreams.clock import Clock

SILENT = "127.0.0.2"
PATIENT_S = 100.0
V4, V6 = socket.AF_INET, socket.AF_INET6


def place(host: str, port: int, family: int = V4) -> Address:
    return (family, socket.SOCK_STREAM, 0, "", (host, port))


@contextlib.asynccontextmanager
async def accepting() -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A port, and whether somebody has connected to it. Every connection is closed at once."""
    reached = asyncio.Event()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        writer.close()

    async with await asyncio.start_server(accept, LOCALHOST, 0) as server:
        yield server.sockets[0].getsockname()[1], reached


def resolve_to(monkeypatch: pytest.MonkeyPatch, *hosts: tuple[str, int]) -> None:
    """Every name has these addresses, each with its family."""
    loop = asyncio.get_running_loop()

    async def look_up(_host: str, port: int, **_options: int) -> list[Address]:
        return [place(host, port, family) for host, family in hosts]

    monkeypatch.setattr(loop, "getaddrinfo", look_up)


async def reaches_the_second_address(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, connect: Callable[[int], Awaitable[object]]
) -> None:
    """It is tried in under half a second while the first one is silent."""
    resolve_to(monkeypatch, (SILENT, V4), (LOCALHOST, V4))
    async with accepting() as (port, reached):
        with silent_listener(SILENT, port):
            connecting = asyncio.ensure_future(connect(port))
            await clock.leap(0)
            await clock.leap(0.2)
            assert not reached.is_set()
            await clock.leap(0.2)
            assert reached.is_set()
            connecting.cancel()
            await asyncio.wait([connecting])
            connecting.cancelled() or connecting.exception()
