"""Protects the store, and the clients with good keys, from a flood of keys that do not exist.

All of it is bounded memory, and nothing here waits.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import TypeVar

from cadenza.core.errors import RateLimited, Unauthenticated
from cadenza.core.rates import NS_PER_S, Rate, take_ticket
from cadenza.observe import Metrics

DEAD_KEY_NS = 5 * NS_PER_S  # how long a dead key is remembered
REMEMBERED_MAX = 10_000
LOOK_UPS_OF_ONE_ADDRESS = Rate(per_s=20.0, burst=100)
LOOK_UPS_IN_ALL = Rate(per_s=200.0, burst=1000)

K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """The newest entries, up to a bound."""

    def note(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > REMEMBERED_MAX:
            self.popitem(last=False)


class UnknownKeyLimiter:
    """Limits the look-ups that find no live key, for each address and in all.

    A dead key is remembered by its digest for a few seconds. A key that was live lately is always looked up.
    """

    def __init__(self, metrics: Metrics, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._metrics = metrics
        self._clock_ns = clock_ns
        self._dead_until_ns: Recent[bytes, int] = Recent()
        self._live: Recent[bytes, None] = Recent()
        self._whole_at_ns: Recent[str, int] = Recent()  # by address
        self._all_whole_at_ns = 0
        self.lock = asyncio.Lock()  # one look-up at a time: else many would pass on one ticket

    def is_live(self, digest: bytes) -> bool:
        return digest in self._live

    def check(self, digest: bytes, address: str) -> None:
        """401 for a key that is known to be dead, 429 during a flood."""
        if digest in self._live:
            return
        now_ns = self._clock_ns()
        if self._dead_until_ns.get(digest, 0) > now_ns:
            raise Unauthenticated
        _, own = take_ticket(self._whole_at_ns.get(network_of(address), 0), now_ns, LOOK_UPS_OF_ONE_ADDRESS)
        _, every = take_ticket(self._all_whole_at_ns, now_ns, LOOK_UPS_IN_ALL)
        if not (own.is_granted and every.is_granted):
            wait_s = max(own.wait_s, every.wait_s)
            self._metrics.refused.labels("unknown_keys").inc()
            raise RateLimited("Too many requests came without a valid key. Check the key, and retry later.", wait_s)

    def note_dead(self, digest: bytes, address: str) -> None:
        now_ns, network = self._clock_ns(), network_of(address)
        self._live.pop(digest, None)
        self._dead_until_ns.note(digest, now_ns + DEAD_KEY_NS)
        whole_at_ns, _ = take_ticket(self._whole_at_ns.get(network, 0), now_ns, LOOK_UPS_OF_ONE_ADDRESS)
        self._whole_at_ns.note(network, whole_at_ns)
        self._all_whole_at_ns, _ = take_ticket(self._all_whole_at_ns, now_ns, LOOK_UPS_IN_ALL)

    def note_live(self, digest: bytes) -> None:
        self._live.note(digest, None)


def network_of(address: str) -> str:
    """The address; for IPv6 the /64 network, which belongs to one subscriber."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or int(parsed) >> 64)
    return address
