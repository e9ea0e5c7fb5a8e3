"""Rate limits on attempts, shared by all processes. A success is given back, so only failures count."""

import hashlib
from collections.abc import Sequence

import msgspec

from cadenza.core.errors import ControlError
from cadenza.core.networks import networks_of
from cadenza.core.rates import Rate
from cadenza.fleet.shared import Rates


class Throttled(ControlError):
    """Too many attempts, or too many at once. A later one may succeed."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Limit(msgspec.Struct, frozen=True):
    """The rate of a network, an account or a browser."""

    name: str
    rate: Rate


def network_limits(name: str, address: str, rate: Rate) -> list[Limit]:
    """A limit on the network of an address, and higher ones on the wider networks around it.

    So a client with an IPv6 prefix or a block of IPv4 addresses cannot multiply the limit.
    """
    return [
        Limit(f"{name}:{network}", Rate(rate.per_s * factor, rate.burst * factor))
        for network, factor in networks_of(address).items()
    ]


async def take(rates: Rates, limits: Sequence[Limit], message: str) -> None:
    """Take one attempt from every limit, or from none."""
    for number, limit in enumerate(limits):
        ticket = await rates.take(limit.name, limit.rate)
        if not ticket.is_granted:
            give_back(rates, limits[:number])
            raise Throttled(message, ticket.wait_s)


def give_back(rates: Rates, limits: Sequence[Limit]) -> None:
    for limit in limits:
        rates.give_back(limit.name, limit.rate)


def short_digest(text: str) -> str:
    """Used in names of rates: shared state must not hold e-mail addresses."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
