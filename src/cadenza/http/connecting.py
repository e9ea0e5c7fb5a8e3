"""Connects to a host: to the first of its addresses that answers, as RFC 8305 has it (Happy Eyeballs).

An address that is silent, such as one of IPv6 where there is no route, does not use up the time of the others.
"""

import asyncio
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, TypeVar

ATTEMPT_DELAY_S = 0.25  # for which an address may be silent before the next one is tried too

Address = tuple[int, int, int, str, tuple[Any, ...]]  # as getaddrinfo gives it
P = TypeVar("P", bound=asyncio.BaseProtocol)


async def connect_to_host(host: str, port: int) -> socket.socket:
    """Connected to an address of the host. OSError; UnicodeError if the name is no name."""
    return await connect_to_first(await look_up(host, port))


@contextmanager
def closed_on_error(connected: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connected.close()
        raise


async def make_connection(make: Callable[[], P], connected: socket.socket, tls: ssl.SSLContext | None, host: str) -> P:
    """A connection of this socket, with TLS to the host. The socket is closed if that fails."""
    loop, name = asyncio.get_running_loop(), host if tls else None
    with closed_on_error(connected):
        _, connection = await loop.create_connection(make, sock=connected, ssl=tls, server_hostname=name)
        return connection


async def look_up(host: str, port: int) -> Sequence[Address]:
    """The addresses of a host. Only a name needs a name server, and so a thread."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def connect_to_first(addresses: Sequence[Address]) -> socket.socket:
    """Connected to the first address that accepts; else the error of the first, the preferred one.

    The next address is tried as soon as one has failed, or the last one was silent for ATTEMPT_DELAY_S.
    """
    untried, tries = in_turn(addresses), list[asyncio.Task[socket.socket]]()
    waiting, chosen = set[asyncio.Task[socket.socket]](), None
    try:
        while untried or waiting:
            if untried:
                tries.append(asyncio.create_task(_connect(untried.pop(0))))
                waiting.add(tries[-1])
            delay_s = ATTEMPT_DELAY_S if untried else None
            done, waiting = await asyncio.wait(waiting, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
            chosen = next((each for each in done if not each.exception()), None)
            if chosen:
                return chosen.result()
        return tries[0].result()
    finally:
        for each in tries:
            if each is not chosen:
                each.cancel()
                each.add_done_callback(_close)


def in_turn(addresses: Sequence[Address]) -> list[Address]:
    """The addresses of each family in turn, beginning with the first one's: a family may have no route."""
    by_family = defaultdict[int, list[Address]](list)
    for address in addresses:
        by_family[address[0]].append(address)
    return [address for turn in zip_longest(*by_family.values()) for address in turn if address]


async def _connect(address: Address) -> socket.socket:
    family, kind, protocol, _, place = address
    connecting = socket.socket(family, kind, protocol)  # OSError where this machine has no sockets of the family
    with closed_on_error(connecting):
        connecting.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connecting, place)
        return connecting


def _close(attempt: asyncio.Task[socket.socket]) -> None:
    """Close what connected too late. An error that nobody has looked at would be logged."""
    if not attempt.cancelled() and not attempt.exception():
        attempt.result().close()
