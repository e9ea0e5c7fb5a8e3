"""Limits how many unknown keys each address may present. Keys that were live lately are not limited.

There is no limit on all addresses together, because a flood from many would use it up and lock out good keys. A look-up
must be cheap instead. All of this is bounded memory, and nothing here waits.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import TypeVar

from cadenza.core.errors import RateLimited, Unauthenticated
from cadenza.core.rates import NS_PER_S, Rate, take_ticket
from cadenza.observe import Metrics

DEAD_KEY_NS = 5 * NS_PER_S  # how long a dead key is remembered
REMEMBERED_MAX = 10_000
NETWORK_CHARS_MAX = 64
LOOK_UPS_OF_ONE_ADDRESS = Rate(per_s=20.0, burst=100)

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
    """Limits the look-ups of each address that find no live key.

    A look-up takes a ticket of its address, and gives it back if the key is live. Requests with the same key at the
    same time need one ticket. A dead key is remembered by its digest for a few seconds.
    """

    def __init__(self, metrics: Metrics, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._metrics = metrics
        self._clock_ns = clock_ns
        self._dead_until_ns: Recent[bytes, int] = Recent()
        self._live: Recent[bytes, None] = Recent()
        self._whole_at_ns: Recent[str, int] = Recent()  # by network
        self._tickets: dict[bytes, str] = {}  # the network that gave a ticket for the key that is being looked up

    def is_live(self, digest: bytes) -> bool:
        """Whether the key was live when it was last looked up. It must be looked up again."""
        return digest in self._live

    def begin(self, digest: bytes, address: str) -> None:
        """Before a look-up: 401 for a key that is known to be dead, 429 for an address with too many of them."""
        now_ns = self._clock_ns()
        if self._dead_until_ns.get(digest, 0) > now_ns:
            raise Unauthenticated
        if digest in self._tickets:
            return
        network = network_of(address)
        whole_at_ns, ticket = take_ticket(self._whole_at_ns.get(network, 0), now_ns, LOOK_UPS_OF_ONE_ADDRESS)
        if not ticket.is_granted:
            self._metrics.refused.labels("unknown_keys").inc()
            message = "Too many requests came without a valid key. Check the key, and retry later."
            raise RateLimited(message, ticket.wait_s)
        self._whole_at_ns.note(network, whole_at_ns)
        self._tickets[digest] = network

    def found_live(self, digest: bytes) -> None:
        self._live.note(digest, None)
        self.give_back(digest)

    def found_dead(self, digest: bytes) -> None:
        self.spend(digest)
        self._live.pop(digest, None)
        self._dead_until_ns.note(digest, self._clock_ns() + DEAD_KEY_NS)

    def spend(self, digest: bytes) -> None:
        """End a look-up whose result is unknown because the client disconnected: its ticket stays taken."""
        self._tickets.pop(digest, None)

    def give_back(self, digest: bytes) -> None:
        """End a look-up that did not fail by the client's fault."""
        network = self._tickets.pop(digest, None)
        if network is not None and network in self._whole_at_ns:
            self._whole_at_ns[network] -= LOOK_UPS_OF_ONE_ADDRESS.step_ns


def network_of(address: str) -> str:
    """The address; for IPv6 the /64 network, which belongs to one subscriber. Other text is cut."""
    if ":" not in address:
        return address[:NETWORK_CHARS_MAX]
    try:
        parsed = IPv6Address(address)
    except ValueError:
        return address[:NETWORK_CHARS_MAX]
    return str(parsed.ipv4_mapped or int(parsed) >> 64)
