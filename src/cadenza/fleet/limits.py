"""Limits of networks, accounts and browsers on the shared rates: a ticket is taken from all of them, or from none."""

from collections.abc import Sequence

import msgspec

from cadenza.core.networks import networks_of
from cadenza.core.rates import Rate, Ticket
from cadenza.fleet.shared import Rates


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


async def take_all(rates: Rates, limits: Sequence[Limit]) -> Ticket | None:
    """Take one ticket from every limit. If one refuses, return its ticket, and give back the others."""
    for number, limit in enumerate(limits):
        ticket = await rates.take(limit.name, limit.rate)
        if not ticket.is_granted:
            release(rates, limits[:number])
            return ticket
    return None


def release(rates: Rates, limits: Sequence[Limit]) -> None:
    for limit in limits:
        rates.release(limit.name, limit.rate)
