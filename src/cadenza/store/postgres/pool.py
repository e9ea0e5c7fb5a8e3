"""A small pool of connections to Postgres, opened when they are needed.

A connection in doubt is closed, never used again: after a timeout or a cancellation nobody knows what its next answer
belongs to. If one connection got no answer, the idle ones are in doubt too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg  # type: ignore[import-untyped]

from cadenza.store.postgres.errors import GOES_AWAY, ConnectionLost, is_outdated, sqlstate
from cadenza.store.postgres.session import Session

CLOSE_S = 1.0
LOOK_EVERY_S = 0.1

T = TypeVar("T")


class PoolBusy(Exception):
    """All connections were in use for too long."""


class Pool:
    """At most `connections_max` connections, lent in the order of asking. Closes those whose deadline has passed."""

    def __init__(self, open_session: Callable[[], Awaitable[Session]], connections_max: int) -> None:
        self._open_session = open_session
        self._places = asyncio.Semaphore(connections_max)
        self._idle: list[Session] = []
        self._busy: set[Session] = set()
        self._expired: set[Session] = set()  # busy ones that are closed afterwards
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, use: Callable[[Session], Awaitable[T]], wait_s: float) -> T:
        """Run `use` with a connection. Wait up to `wait_s` for one; PoolBusy if there is none by then."""
        session = await self._take(wait_s)
        try:
            return await use(session)
        except Exception as error:
            if _casts_doubt(error):
                self.expire()
            raise
        except BaseException:
            self._expired.add(session)
            raise
        finally:
            self._give_back(session)

    def expire(self) -> None:
        """Close the idle connections now, and the busy ones as soon as they are given back."""
        self._expired |= self._busy
        while self._idle:
            self._idle.pop().end()

    async def close(self) -> None:
        """Close all connections; the next use opens new ones."""
        closing = [session.close(CLOSE_S) for session in self._idle]
        self._idle.clear()
        self.expire()
        await asyncio.gather(*closing, return_exceptions=True)

    async def _take(self, wait_s: float) -> Session:
        if self._places.locked():
            try:
                await asyncio.wait_for(self._places.acquire(), wait_s)
            except TimeoutError:
                raise PoolBusy from None
        else:
            await self._places.acquire()
        try:
            session = self._find_idle() or await self._open_session()
        except BaseException:
            self._places.release()
            raise
        self._busy.add(session)
        if self._timer is None:
            self._look_later()
        return session

    def _find_idle(self) -> Session | None:
        while self._idle:
            session = self._idle.pop()
            if not session.is_closed:
                return session
        return None

    def _give_back(self, session: Session) -> None:
        self._busy.discard(session)
        if session.is_idle and session not in self._expired:
            self._idle.append(session)
        else:
            self._expired.discard(session)
            session.end()
        self._places.release()

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_EVERY_S, self._end_late, loop.time() + LOOK_EVERY_S)

    def _end_late(self, due_s: float) -> None:
        """If this process itself was held up, answers may have arrived that it has not read yet: look again later."""
        now_s = asyncio.get_running_loop().time()
        if now_s < due_s + LOOK_EVERY_S:
            for session in self._busy:
                session.end_if_late(now_s)
        if self._busy:
            self._look_later()
        else:
            self._timer = None


def _casts_doubt(error: Exception) -> bool:
    """Whether an error of one connection speaks against all: it is lost, takes no writes any more, or is outdated."""
    if isinstance(error, ConnectionLost | asyncpg.InternalClientError) or is_outdated(error):
        return True
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, ValueError)  # or it is about a value
    return sqlstate(error).startswith(GOES_AWAY)
