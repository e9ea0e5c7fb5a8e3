"""The requests that are being served: how many, with which keys, when they have ended, and interrupting them.

The requests of a key that was revoked are ended soon after the change; a key that expires lets them finish. While the
store does not answer, they go on, and are checked again once it does.
"""

import asyncio
from collections.abc import Collection

from cadenza.fleet.background import follow
from cadenza.fleet.key_cache import KeyCache
from cadenza.fleet.presence import Presence
from cadenza.gateway.answers import Pings
from cadenza.http.exchange import Exchange, Interruption
from cadenza.observe import Log

NO_KEY = b""


class InFlight:
    """Exchanges between their begin and their end.

    An exchange begins when it is put into `key_digests`, with NO_KEY. The digest of its key follows before the key is
    looked up or in the same turn, so that no change of the key is missed.
    """

    def __init__(self) -> None:
        self.pings = Pings()
        self.is_draining = False  # new requests are refused, and these end
        self.key_digests: dict[Exchange, bytes] = {}
        self._waiters: dict[asyncio.Future[None], set[Exchange]] = {}  # each waits for the end of its exchanges

    def __len__(self) -> int:
        return len(self.key_digests)

    def end(self, exchange: Exchange) -> None:
        self.key_digests.pop(exchange, None)
        if self._waiters:
            self._tell_waiters(exchange)

    def _tell_waiters(self, ended: Exchange) -> None:
        for waiter, awaited in self._waiters.items():
            awaited.discard(ended)
            if not awaited and not waiter.done():
                waiter.set_result(None)

    def digests(self) -> set[bytes]:
        """The digests of the keys in use."""
        return set(self.key_digests.values()) - {NO_KEY}

    async def until_ended(self) -> None:
        """Return once all requests that are in flight now have ended."""
        if self.key_digests:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = set(self.key_digests)
            try:
                await waiter
            finally:
                del self._waiters[waiter]

    async def until_idle(self) -> None:
        """Return once no request is in flight."""
        while self.key_digests:
            await self.until_ended()

    def interrupt(self) -> None:
        """End all of them now. What was delivered is charged."""
        for exchange in list(self.key_digests):
            exchange.interrupt(Interruption.SHUTDOWN)

    def interrupt_keys(self, digests: Collection[bytes]) -> int:
        """End the requests of these keys now, and return how many. What was delivered is charged."""
        ended = [exchange for exchange, digest in self.key_digests.items() if digest in digests]
        for exchange in ended:
            exchange.interrupt(Interruption.REVOKED)
        return len(ended)


class RevocationWatch:
    """Looks up the keys in use again after every change."""

    def __init__(self, in_flight: InFlight, key_cache: KeyCache, presence: Presence, log: Log) -> None:
        self._in_flight = in_flight
        self._key_cache = key_cache
        self._log = log
        self._changed = asyncio.Event()
        presence.on_change(self._changed.set)

    async def run(self) -> None:
        await follow(self._changed, self._check, self._log)

    async def _check(self) -> None:
        digests = list(self._in_flight.digests())
        keys = await asyncio.gather(*map(self._key_cache.find, digests))
        dead = {digest for digest, key in zip(digests, keys, strict=True) if key is None or key.revoked_at is not None}
        if dead and (ended := self._in_flight.interrupt_keys(dead)):
            self._log.info("ended the requests of revoked keys", requests=ended)
