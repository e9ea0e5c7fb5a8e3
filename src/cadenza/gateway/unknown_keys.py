"""Limits how many unknown keys each network may present. Keys that were recently live are not limited.

There is no limit on all networks together, because a flood from many would use it up and lock out good keys. A look-up
must be cheap instead. All of this is bounded memory. The limits of networks are shared by all processes.
"""

import asyncio
import time
from collections.abc import Callable

from cadenza.core.bounded_cache import BoundedCache
from cadenza.core.errors import RateLimited, Unauthenticated
from cadenza.core.rates import NS_PER_S, Rate, Ticket
from cadenza.fleet.limits import Limit, network_limits, release, take_all
from cadenza.fleet.shared import Rates
from cadenza.observe import Metrics

DEAD_KEY_NS = 5 * NS_PER_S  # how long a dead key is remembered
REMEMBERED_MAX = 10_000
LOOK_UPS_OF_ONE_ADDRESS = Rate(per_s=20.0, burst=100)


class UnknownKeyLimiter:
    """Limits the look-ups of each address that find no live key.

    A look-up takes a ticket of its address, and gives it back if the key is live. Requests with the same key at the
    same time need one ticket. A dead key is remembered by its digest for a few seconds.
    """

    def __init__(self, metrics: Metrics, networks: Rates, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._metrics = metrics
        self._networks = networks
        self._clock_ns = clock_ns
        self._dead_until_ns: BoundedCache[bytes, int] = BoundedCache(REMEMBERED_MAX)
        self._live: BoundedCache[bytes, None] = BoundedCache(REMEMBERED_MAX)
        self._tickets: dict[bytes, list[Limit]] = {}  # of the networks, for the key that is being looked up
        self._taking: dict[bytes, asyncio.Future[Ticket | None]] = {}  # the tickets that are being asked for

    def is_live(self, digest: bytes) -> bool:
        """Whether the key was live when it was last looked up. It must be looked up again."""
        return digest in self._live

    async def begin(self, digest: bytes, address: str) -> None:
        """Before a look-up: 401 for a key that is known to be dead, 429 for an address with too many of them."""
        while True:
            if self._dead_until_ns.get(digest, 0) > self._clock_ns():
                raise Unauthenticated
            if digest in self._tickets or digest in self._live:
                return
            if (taking := self._taking.get(digest)) is None:
                self._check(await self._take(digest, network_limits("key", address, LOOK_UPS_OF_ONE_ADDRESS)))
                return
            await asyncio.wait({taking})
            if not taking.cancelled():  # otherwise that request ended, and this one asks
                self._check(taking.result())

    async def _take(self, digest: bytes, limits: list[Limit]) -> Ticket | None:
        taking = self._taking[digest] = asyncio.get_running_loop().create_future()
        try:
            refused = await take_all(self._networks, limits)
            if refused is None:
                self._tickets[digest] = limits
            taking.set_result(refused)
            return refused
        finally:
            del self._taking[digest]
            taking.cancel()

    def _check(self, refused: Ticket | None) -> None:
        if refused:
            self._metrics.refused.labels("unknown_keys").inc()
            message = "Too many requests came without a valid key. Check the key, and retry later."
            raise RateLimited(message, refused.wait_s, "unknown_keys")

    def found_live(self, digest: bytes) -> None:
        self._live.put(digest, None)
        self.release(digest)

    def found_dead(self, digest: bytes, *, is_permanent: bool = True) -> None:
        """A key that may live again, because its account is suspended, is not remembered."""
        self.spend(digest)
        self._live.pop(digest, None)
        if is_permanent:
            self._dead_until_ns.put(digest, self._clock_ns() + DEAD_KEY_NS)

    def spend(self, digest: bytes) -> None:
        """End a look-up whose result is unknown because the client disconnected: its ticket stays taken."""
        self._tickets.pop(digest, None)

    def release(self, digest: bytes) -> None:
        """End a look-up whose failure was not the client's fault."""
        release(self._networks, self._tickets.pop(digest, []))
