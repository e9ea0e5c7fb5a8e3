"""The requests that are being served: how many, with which keys, when they have ended, and interrupting them."""

import asyncio
from collections.abc import Collection

from cadenza.http.exchange import Exchange, Interruption

NO_KEY = b""


class InFlight:
    """Exchanges between their begin and their end, each with the digest of its key once that is looked up."""

    def __init__(self) -> None:
        self._exchanges: dict[Exchange, bytes] = {}
        self._waiters: dict[asyncio.Future[None], set[Exchange]] = {}  # each waits for the end of its exchanges

    def __len__(self) -> int:
        return len(self._exchanges)

    def begin(self, exchange: Exchange) -> None:
        self._exchanges[exchange] = NO_KEY

    def note_key(self, exchange: Exchange, digest: bytes) -> None:
        """The request's key is about to be looked up. Noted before, so that no change of the key is missed."""
        self._exchanges[exchange] = digest

    def end(self, exchange: Exchange) -> None:
        self._exchanges.pop(exchange, None)
        for waiter, awaited in self._waiters.items():
            awaited.discard(exchange)
            if not awaited and not waiter.done():
                waiter.set_result(None)

    def digests(self) -> set[bytes]:
        """The digests of the keys in use."""
        return set(self._exchanges.values()) - {NO_KEY}

    async def until_ended(self) -> None:
        """Return once all requests that are in flight now have ended."""
        if self._exchanges:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = set(self._exchanges)
            try:
                await waiter
            finally:
                del self._waiters[waiter]

    async def until_idle(self) -> None:
        """Return once no request is in flight."""
        while self._exchanges:
            await self.until_ended()

    def interrupt(self) -> None:
        """End all of them now. What was delivered is charged."""
        for exchange in list(self._exchanges):
            exchange.interrupt(Interruption.SHUTDOWN)

    def interrupt_keys(self, digests: Collection[bytes]) -> int:
        """End the requests of these keys now, and return how many. What was delivered is charged."""
        ended = [exchange for exchange, digest in self._exchanges.items() if digest in digests]
        for exchange in ended:
            exchange.interrupt(Interruption.REVOKED)
        return len(ended)
