"""Finds the key of a request and checks what it may do. A revoked key fails at once, in every process.

A key with a wrong checksum is refused without a look-up. Missing, malformed, unknown, revoked and expired keys, and
keys of suspended accounts, get the same answer. While the store does not answer, every request is refused.
"""

import asyncio
import time

import msgspec

from cadenza import clock
from cadenza.core.codes import TOKEN_PREFIX, digest_key, is_well_formed
from cadenza.core.errors import AccessTokenGiven, Forbidden, RateLimited, Unauthenticated
from cadenza.core.rates import NS_PER_MS, Limits, Rate, Ticket
from cadenza.core.records import Principal
from cadenza.gateway.gateway import Gateway
from cadenza.http.exchange import Exchange
from cadenza.store.store import StoreUnavailable
from cadenza.store.tables import keys
from cadenza.store.tables.keys import FoundKey

MS_PER_S = 1000


class Caller(msgspec.Struct, frozen=True):
    """A live key, its rate, and whether this request is within it."""

    principal: Principal
    rate: Rate
    ticket: Ticket


async def identify(gateway: Gateway, exchange: Exchange) -> Caller:
    """The key of a request; 401 if it is not live."""
    request = exchange.request
    if not request.memo:
        request.memo = digest_key(presented_key(request.headers))
    digest = request.memo
    key = gateway.key_cache.find_now(digest, exchange.started_s)
    if key is None or (key.expires_at is not None and clock.now_ms() >= key.expires_at):
        key = await _look_up(gateway, exchange, digest)
    gateway.in_flight.key_digests[exchange] = digest
    return count_now(gateway, key) or await count_request(gateway, key)


async def _look_up(gateway: Gateway, exchange: Exchange, digest: bytes) -> FoundKey:
    """Ask the store for a key that is not cached; 401 if it is not live."""
    if not gateway.unknown_keys.is_live(digest):
        presented = presented_key(exchange.request.headers)
        if presented.startswith(TOKEN_PREFIX.encode()):
            raise AccessTokenGiven
        if not is_well_formed(presented):
            raise Unauthenticated
        await gateway.unknown_keys.begin(digest, exchange.client_address)
    gateway.in_flight.key_digests[exchange] = digest
    try:
        key = await gateway.key_cache.find(digest)
    except asyncio.CancelledError:
        gateway.unknown_keys.spend(digest)
        raise
    except StoreUnavailable:
        gateway.unknown_keys.release(digest)
        raise
    if key is None or keys.state_of(key.revoked_at, key.expires_at, clock.now_ms()) != "active":
        gateway.unknown_keys.found_dead(digest, is_permanent=key is None or key.suspended_at is None)
        raise Unauthenticated
    gateway.unknown_keys.found_live(digest)
    return key


def count_now(gateway: Gateway, key: FoundKey) -> Caller | None:
    """The same as `count_request`, unless that has to wait."""
    if key.classes_epoch > gateway.reloader.epoch:
        return None
    principal = key.principal
    rate = rate_of(principal, gateway.snapshot.limits)
    gateway.key_use.note(principal.key_id)
    ticket = gateway.rates.take_now(principal.key_id, rate)
    return None if ticket is None else Caller(principal, rate, ticket)


async def count_request(gateway: Gateway, key: FoundKey) -> Caller:
    """The caller with this live key. Every request counts against its rate."""
    if key.classes_epoch > gateway.reloader.epoch:
        await gateway.reloader.catch_up(key.classes_epoch)
    if caller := count_now(gateway, key):
        return caller
    rate, began_s = rate_of(key.principal, gateway.snapshot.limits), time.monotonic()
    ticket = await gateway.rates.take(key.principal.key_id, rate)
    gateway.observer.metrics.waits.add("rate", time.monotonic() - began_s)
    return Caller(key.principal, rate, ticket)


def authorize(gateway: Gateway, exchange: Exchange, caller: Caller, scope: str) -> None:
    """403 if the key lacks the scope, 429 if its rate is exceeded or it has too many connections.

    Also 429 if its account has taken too much CPU time for nothing.
    """
    if scope not in caller.principal.scopes:
        raise Forbidden(f"This key lacks the scope '{scope}'. Use a key that has it, or one without restrictions.")
    if not caller.ticket.is_granted:
        gateway.observer.metrics.refused.labels("rate").inc()
        raise rate_exceeded(caller.ticket, caller.rate)
    if scope == "inference":
        gateway.unpaid.check(caller.principal.account_id)
    if not exchange.transport.claim(caller.principal.key_id):
        exchange.close_after_reply()
        gateway.observer.metrics.refused.labels("connections").inc()
        raise RateLimited("This key has too many connections open. Close some, or reuse them.", 1.0, "connections")


def presented_key(headers: dict[bytes, bytes]) -> bytes:
    """The key in `Authorization: Bearer`; without this header in `x-api-key`, and without both in Azure's `api-key`."""
    authorization = headers.get(b"authorization")
    if authorization is None:
        key = headers.get(b"x-api-key")
        return (headers.get(b"api-key", b"") if key is None else key).strip()
    scheme, _, key = authorization.strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def rate_of(principal: Principal, limits: Limits) -> Rate:
    """The key's own rate, or the usual one."""
    if principal.requests_per_second is None and principal.burst is None:
        return limits.rate
    return Rate(principal.requests_per_second or limits.rate.per_s, principal.burst or limits.rate.burst)


def rate_headers(ticket: Ticket) -> bytes:
    """The time as OpenAI writes it: 120ms, 1.5s."""
    reset_ms = -(-ticket.reset_ns // NS_PER_MS)
    reset = f"{reset_ms}ms"
    if reset_ms >= MS_PER_S:
        reset = f"{reset_ms / MS_PER_S:.3f}".rstrip("0").rstrip(".") + "s"
    return (
        f"x-ratelimit-limit-requests: {ticket.limit}\r\nx-ratelimit-remaining-requests: {ticket.remaining}\r\n"
        f"x-ratelimit-reset-requests: {reset}\r\n"
    ).encode()


def rate_exceeded(ticket: Ticket, rate: Rate) -> RateLimited:
    return RateLimited(
        f"This key may make {rate.per_s:g} requests a second, and {rate.burst} at once. Retry after the time in the "
        "retry-after-ms header.",
        ticket.wait_s,
        "rate",
    )
