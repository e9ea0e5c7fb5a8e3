"""The requests that are being served: how many, when they have ended, and interrupting them."""

import asyncio

from cadenza.http.exchange import Exchange, Interruption


class InFlight:
    """Exchanges between their begin and their end."""

    def __init__(self) -> None:
        self._exchanges: set[Exchange] = set()
        self._waiters: dict[asyncio.Future[None], set[Exchange]] = {}  # each waits for the end of its exchanges

    def __len__(self) -> int:
        return len(self._exchanges)

    def begin(self, exchange: Exchange) -> None:
        self._exchanges.add(exchange)

    def end(self, exchange: Exchange) -> None:
        self._exchanges.discard(exchange)
        for waiter, awaited in self._waiters.items():
            awaited.discard(exchange)
            if not awaited and not waiter.done():
                waiter.set_result(None)

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
