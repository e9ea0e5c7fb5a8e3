"""Ends the requests in flight whose key was revoked, soon after the change. A key that expires lets them finish.

While the store does not answer, they go on, and are looked at again until it does.
"""

import asyncio
from contextlib import suppress

from cadenza.fleet.presence import Presence
from cadenza.gateway.gateway import Gateway
from cadenza.store.store import StoreUnavailable

RETRY_S = 0.25


class Revocation:
    """Looks up the keys in use again after every change, unless the config lets their requests finish."""

    def __init__(self, gateway: Gateway, presence: Presence) -> None:
        self._gateway = gateway
        self._changed = asyncio.Event()
        self._checking: asyncio.Task[None] | None = None
        presence.follow(self._changed.set)

    async def start(self) -> None:
        self._checking = asyncio.create_task(self._check_forever())

    async def stop(self) -> None:
        if self._checking:
            self._checking.cancel()
            with suppress(asyncio.CancelledError):
                await self._checking

    async def _check_forever(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._check()
            except StoreUnavailable:
                self._changed.set()
                await asyncio.sleep(RETRY_S)

    async def _check(self) -> None:
        gateway = self._gateway
        if gateway.snapshot.limits.revoked_streams == "finish":
            return
        digests = list(gateway.in_flight.digests())
        found = await asyncio.gather(*map(gateway.key_cache.find, digests))
        dead = {digest for digest, key in zip(digests, found, strict=True) if key is None or key.revoked_at is not None}
        if dead and (ended := gateway.in_flight.interrupt_keys(dead)):
            gateway.observer.log.info("ended the requests of revoked keys", requests=ended)
