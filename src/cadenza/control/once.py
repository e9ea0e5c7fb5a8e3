"""Orders that count once: a reference, noted in the same transaction as what was ordered, makes a repetition harmless.

If the store does not confirm a commit, the order is given again with the same reference, until the store answers: so
it is known to be done. If the store stays away, MaybeDone says so, with the reference for a later repetition.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from cadenza.control.errors import ControlError
from cadenza.store import references
from cadenza.store.references import ReferenceUse
from cadenza.store.store import StoreUnavailable, StoreUncertain, Transaction

REFERENCE_CHARS_MAX = 200
PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.5)
LOOK_S = 15.0  # how long the store is asked at most

T = TypeVar("T")


class MaybeDone(ControlError):
    """The store did not confirm an order, and does not answer any more."""

    def __init__(self, reference: str) -> None:
        super().__init__(
            "The store did not confirm the change and does not answer now: it may have been done. "
            f"Run it again with --reference {reference}: it counts once."
        )
        self.reference = reference


class Begun(msgspec.Struct, frozen=True):
    """Whether the order is new and must be carried out, and the earlier call that did so, if it was another one."""

    is_new: bool
    earlier: ReferenceUse | None


class Order(msgspec.Struct, frozen=True):
    """Something that is ordered once. `subject` is the id of what it makes, and new with every call."""

    by: str
    act: str
    values: tuple[object, ...]  # a repetition orders the same
    reference: str
    subject: str

    @property
    def digest(self) -> bytes:
        """Of the reference. The same text is another reference if somebody else uses it."""
        return hashlib.sha256(f"{self.by}\0{self.reference}".encode()).digest()

    @property
    def source(self) -> str:
        """The source of the entry that the order makes."""
        return f"reference:{self.digest.hex()[:32]}"

    def begin(self, tx: Transaction, now_ms: int) -> Begun:
        """Note the order, if it is new."""
        order_digest = hashlib.sha256(repr(self.values).encode()).digest()
        earlier = references.add(tx, ReferenceUse(self.digest, self.act, order_digest, self.subject, now_ms))
        if earlier and (earlier.act, earlier.order_digest) != (self.act, order_digest):
            raise ControlError(
                f"The reference {self.reference!r} was used before for something else ({earlier.act}). "
                "Use it again only to repeat the same, and another one for anything new."
            )
        is_own = earlier is not None and earlier.subject == self.subject  # only the store's answer was lost
        return Begun(earlier is None, None if is_own else earlier)


def make_order(by: str, act: str, values: tuple[object, ...], reference: str, subject: str = "") -> Order:
    """Without a reference, a new one is made."""
    if len(reference) > REFERENCE_CHARS_MAX or not reference.isprintable():
        raise ControlError(f"A reference is one line of at most {REFERENCE_CHARS_MAX} characters.")
    return Order(by, act, values, reference or make_reference(), subject or secrets.token_hex(8))


def make_reference() -> str:
    return secrets.token_hex(8)


async def until_known(reference: str, work: Callable[[], Awaitable[T]]) -> T:
    """Run work that begins with an order. If it is not known to be done, run it again, for a limited time."""
    with suppress(StoreUncertain):
        return await work()
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOK_S):
            for pause_s in PAUSES_S:
                await asyncio.sleep(pause_s)
                with suppress(StoreUnavailable):
                    return await work()
    raise MaybeDone(reference)
