"""Host names to addresses, by the system's resolver, in threads of its own.

A name server that never answers holds a thread for as long as the system waits. With the threads of the event loop, a
stranger could so delay the names of upstreams. The threads are daemons: they do not delay the end of the process.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address

from cadenza.grounding.search.pages.addresses import Address
from cadenza.grounding.search.records import FetchFailed

Resolve = Callable[[str], Awaitable[Sequence[Address]]]

LOOK_UPS_AT_ONCE = 64  # one that is never answered takes its place for longer than its page is waited for


class SystemResolver:
    """Looks up names, a bounded number at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._free = asyncio.Semaphore(LOOK_UPS_AT_ONCE)

    async def __call__(self, host: str) -> Sequence[Address]:
        """All addresses of the host; FetchFailed if there are none."""
        await self._free.acquire()
        found: asyncio.Future[Sequence[Address]] = self._loop.create_future()
        thread = threading.Thread(target=self._look_up, args=(host, found), name="page-names", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._free.release()
            raise FetchFailed("busy") from None
        addresses = await found
        if not addresses:
            raise FetchFailed("unresolved")
        return addresses

    def _look_up(self, host: str, found: asyncio.Future[Sequence[Address]]) -> None:
        addresses: list[Address] = []
        with contextlib.suppress(OSError, ValueError):
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses = [ip_address(answer[4][0]) for answer in answers]
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._finish, found, addresses)

    def _finish(self, found: asyncio.Future[Sequence[Address]], addresses: Sequence[Address]) -> None:
        self._free.release()
        if not found.done():
            found.set_result(addresses)
