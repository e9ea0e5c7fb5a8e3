"""Rate limits on attempts, shared by all processes. A success is given back, so only failures count."""

import hashlib
from collections.abc import Sequence

from cadenza.core.errors import ControlError
from cadenza.fleet.limits import Limit, take_all
from cadenza.fleet.shared import Rates


class Throttled(ControlError):
    """Too many attempts, or too many at once. A later one may succeed."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


async def take(rates: Rates, limits: Sequence[Limit], message: str) -> None:
    """Take one attempt from every limit, or from none."""
    if refused := await take_all(rates, limits):
        raise Throttled(message, refused.wait_s)


def short_digest(text: str) -> str:
    """Used in names of rates: shared state must not hold e-mail addresses."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
