"""Who may come in, and how often: unknown_keys are kept from the store, keys have a rate, chats have a slot.

All of it is bounded memory, and none of it waits for anything but a moment for a slot.
"""

import asyncio
import time
from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import TypeVar

import msgspec

from cadenza.core.errors import RateLimited, Unauthenticated
from cadenza.core.rates import NS_PER_MS, Rate, Ticket, take_ticket
from cadenza.gateway.shared import Slots
from cadenza.observe import Metrics

SATURATED_RETRY_S = 1.0
DEAD_KEY_S = 5.0
REMEMBERED_MAX = 10_000
STRANGERS_OF_ONE_ADDRESS = Rate(per_s=20.0, burst=100)
STRANGERS_IN_ALL = Rate(per_s=200.0, burst=1000)

K = TypeVar("K")
V = TypeVar("V")


class Limits(msgspec.Struct, frozen=True):
    """What every key may do unless it has a rate of its own, and how many chats may be in flight."""

    rate: Rate
    concurrency: int


class Recent(OrderedDict[K, V]):
    """What was noted last, and no more of it than can be kept."""

    def note(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > REMEMBERED_MAX:
            self.popitem(last=False)


class UnknownKeyLimiter:
    """Keeps a flood of keys that are none away from the store, and from those whose keys are good.

    A key that was found dead is remembered by its digest for a moment. Look-ups that find no live key are limited for
    each address and for all of them together; a key that was live lately is always looked up.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._dead: Recent[bytes, float] = Recent()
        self._live: Recent[bytes, None] = Recent()
        self._whole_at_ns: Recent[str, int] = Recent()  # by address
        self._all_whole_at_ns = 0
        self.door = asyncio.Lock()  # one of them is looked up at a time: else many would pass on one ticket

    def is_live(self, digest: bytes) -> bool:
        return digest in self._live

    def check(self, digest: bytes, address: str) -> None:
        """401 for a key that is known to be dead, 429 in a flood."""
        if digest in self._live:
            return
        if self._dead.get(digest, 0.0) > time.monotonic():
            raise Unauthenticated
        now_ns = time.monotonic_ns()
        _, own = take_ticket(self._whole_at_ns.get(network_of(address), 0), now_ns, STRANGERS_OF_ONE_ADDRESS)
        _, every = take_ticket(self._all_whole_at_ns, now_ns, STRANGERS_IN_ALL)
        if not (own.is_granted and every.is_granted):
            wait_s = max(own.wait_s, every.wait_s)
            self._metrics.refused.labels("unknown_keys").inc()
            raise RateLimited("Too many requests came without a valid key. Check the key, and retry later.", wait_s)

    def note_dead(self, digest: bytes, address: str) -> None:
        self._live.pop(digest, None)
        self._dead.note(digest, time.monotonic() + DEAD_KEY_S)
        now_ns, network = time.monotonic_ns(), network_of(address)
        whole_at_ns, _ = take_ticket(self._whole_at_ns.get(network, 0), now_ns, STRANGERS_OF_ONE_ADDRESS)
        self._whole_at_ns.note(network, whole_at_ns)
        self._all_whole_at_ns, _ = take_ticket(self._all_whole_at_ns, now_ns, STRANGERS_IN_ALL)

    def note_live(self, digest: bytes) -> None:
        self._live.note(digest, None)


def network_of(address: str) -> str:
    """The address, or for IPv6 the network that one subscriber has all of."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or int(parsed) >> 64)
    return address


def rate_lines(ticket: Ticket) -> bytes:
    """The headers that tell of it, as they are sent."""
    return (
        b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\nx-ratelimit-reset-requests: %b\r\n"
    ) % (ticket.limit, ticket.remaining, _duration(ticket.reset_ns))


def refusal(ticket: Ticket, rate: Rate) -> RateLimited:
    return RateLimited(
        f"This key may make {rate.per_s:g} requests a second, and {rate.burst} at once. Retry after the time in the "
        "retry-after-ms header.",
        ticket.wait_s,
    )


class slot:  # noqa: N801 it is used like a function
    """A chat in flight. 429 where there is no room within a moment."""

    def __init__(self, slots: Slots, key_id: str, metrics: Metrics) -> None:
        self._slots = slots
        self._key_id = key_id
        self._metrics = metrics

    async def __aenter__(self) -> None:
        if not await self._slots.enter(self._key_id):
            self._metrics.refused.labels("slots").inc()
            raise RateLimited("The service is saturated. Retry shortly.", SATURATED_RETRY_S)

    async def __aexit__(self, *_: object) -> None:
        self._slots.leave(self._key_id)


def _duration(time_ns: int) -> bytes:
    """As OpenAI writes it: 120ms, 1.5s."""
    time_ms = -(-time_ns // NS_PER_MS)
    if time_ms < 1000:
        return b"%dms" % time_ms
    return f"{time_ms / 1000:.3f}".rstrip("0").rstrip(".").encode() + b"s"
