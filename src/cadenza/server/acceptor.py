"""Accepts connections, as many as there is room for; the others wait in the kernel.

    room    what happens to the next connection
    SERVE   it is served; if it took the last place, the quietest connection was closed for it
    REFUSE  every request of it is refused: all connections are busy
    NONE    it waits in the listener's backlog

The process may still run out of file descriptors, because upstreams and the store need some too. Then nothing is
accepted for a moment.
"""

import asyncio
import contextlib
import resource
import socket
from functools import partial

from cadenza.http.client import ran_out
from cadenza.http.connection import Connection, ConnectionSettings, Serve
from cadenza.http.connections import Connections, ConnectionsLimits, Room
from cadenza.http.headers import plain_address
from cadenza.process import FILES_MAX, set_limit

FILES_MAX_MACOS = 10_240  # some Macs refuse more, also where the hard limit is higher
PER_TURN = 16  # accepted before the loop does something else, when many come at once
PAUSE_S = 0.005  # while there is no room


class Acceptor:
    """The listening socket of one process. `serve` and `refuse` serve the exchanges of its connections."""

    def __init__(
        self,
        listener: socket.socket,
        serve: Serve,
        refuse: Serve,
        settings: ConnectionSettings,
        connections: Connections,
    ) -> None:
        self._listener = listener
        self._serve = serve
        self._refuse = refuse
        self._settings = settings
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # the connections inherit it: unread bytes do not keep a lost client
            unread_ms = round(settings.limits.unread_s * 1000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
        self._resume()

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener, self._accept)

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(PAUSE_S, self._resume)

    def _accept(self) -> None:
        """Accept the client that waits, and others while there are free places."""
        for number in range(PER_TURN if self._arriving else 1):  # a failed accept() costs 40 µs
            if number and not self._connections.has_free_place(len(self._arriving)):
                return  # there may be no client to accept, and then no connection should be closed
            room = self._connections.find_room(len(self._arriving))
            if room is Room.NONE:
                if not self._arriving:  # otherwise look again in the next turn
                    self._pause()
                return
            try:
                client, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if ran_out(error):
                    self._connections.close_quietest()
                    self._pause()
                    return
                continue  # the client has left already
            peer = plain_address(address[0])
            is_crowded = self._connections.is_crowded(peer) and not self._settings.proxies.trusts(peer)
            is_served = room is Room.SERVE and not is_crowded
            task = self._loop.create_task(self._connect(client, self._serve if is_served else self._refuse))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    async def _connect(self, client: socket.socket, serve: Serve) -> None:
        client.setblocking(False)
        connect = partial(Connection, serve, self._settings, self._connections)
        with contextlib.suppress(OSError):  # the client has left already
            await self._loop.connect_accepted_socket(connect, client)


def allow_many_files() -> int:
    """Raise the limit of open files as far as the system allows. The limit."""
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_MAX if hard_limit == resource.RLIM_INFINITY else min(hard_limit, FILES_MAX)
    wanted = (most, max(limit, FILES_MAX_MACOS))
    return next((files for files in wanted if set_limit(resource.RLIMIT_NOFILE, files, hard_limit)), limit)


def connections_limits(files_max: int) -> ConnectionsLimits:
    """The limits of connections for `files_max` file descriptors: each may need a second one, to an upstream.

    A reserve stays for the store, the log, the loop and the connections that are refused.
    """
    refused_max = min(max(files_max // 32, 4), 256)
    reserve = max(files_max // 16, 32)
    served_max = max((files_max - reserve - refused_max) // 2, 1)
    return ConnectionsLimits(
        served_max=served_max,
        by_address_max=max(served_max // 2, 16),
        by_owner_max=max(served_max // 4, 16),
        refused_max=refused_max,
        lingering_max=max(served_max // 4, 1),
    )
