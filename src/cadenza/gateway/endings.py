"""How a request ends early: the status of its outcome, and its cause in one word."""

import asyncio

from cadenza.core.errors import CadenzaError, Internal, KeyRevoked, RateLimited
from cadenza.core.records import DISCONNECTED_STATUS
from cadenza.http.exchange import Interruption
from cadenza.process import is_exhausted
from cadenza.store.store import StoreUnavailable

SHUTDOWN_STATUS = 503  # of an outcome: the service stopped and interrupted the request
DISCONNECTED_CAUSE = "disconnected"
INTERRUPTIONS = {
    Interruption.DISCONNECT: (DISCONNECTED_STATUS, DISCONNECTED_CAUSE),
    Interruption.SHUTDOWN: (SHUTDOWN_STATUS, "shutdown"),
    Interruption.REVOKED: (KeyRevoked.status, KeyRevoked.cause),
}


def early_end(error: BaseException, interruption: Interruption | None) -> tuple[int, str]:
    """Status and cause of a request that this error ended. If its task was cancelled, the interruption decides."""
    if isinstance(error, CadenzaError):
        return error.status, error.cause
    if isinstance(error, StoreUnavailable):
        return RateLimited.status, "store"
    if isinstance(error, asyncio.CancelledError):
        return INTERRUPTIONS[interruption or Interruption.DISCONNECT]
    return (RateLimited.status, "memory") if is_exhausted(error) else (Internal.status, Internal.cause)
