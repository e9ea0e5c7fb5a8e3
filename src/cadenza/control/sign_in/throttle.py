"""Limits on attempts, by the rates that all processes share. What succeeds is given back, so only failures count."""

import hashlib
from collections.abc import Sequence

import msgspec

from cadenza.core.errors import ControlError
from cadenza.core.networks import networks_of
from cadenza.core.rates import Rate
from cadenza.fleet.shared import Rates


class Throttled(ControlError):
    """Too many attempts, or too much at once. A later one may succeed."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Limit(msgspec.Struct, frozen=True):
    """A rate of one name: of a network, an account or a browser."""

    name: str
    rate: Rate


def network_limits(name: str, address: str, rate: Rate) -> list[Limit]:
    """A limit on the network of an address, and limits on the wider networks around it, which allow a few times more.

    So an IPv6 prefix or a block of IPv4 addresses does not multiply the allowance by its number of addresses.
    """
    return [
        Limit(f"{name}:{network}", Rate(rate.per_s * factor, rate.burst * factor))
        for network, factor in networks_of(address).items()
    ]


async def take(rates: Rates, limits: Sequence[Limit], message: str) -> None:
    """Take one attempt of each limit, or none of any."""
    for number, limit in enumerate(limits):
        ticket = await rates.take(limit.name, limit.rate)
        if not ticket.is_granted:
            give_back(rates, limits[:number])
            raise Throttled(message, ticket.wait_s)


def give_back(rates: Rates, limits: Sequence[Limit]) -> None:
    for limit in limits:
        rates.give_back(limit.name, limit.rate)


def short_digest(text: str) -> str:
    """Stands for an address in the name of a rate, because shared state is no place for addresses."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
