"""Idempotent commands: a command with the same reference is carried out once.

The reference is stored in the transaction of the command. If the store does not confirm a commit, the command is
retried with the same reference until the store answers. If it does not answer, Unconfirmed names the reference.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from cadenza.core.errors import ControlError
from cadenza.ledger import credit
from cadenza.ledger.credit import ReferenceUse
from cadenza.store.store import StoreUnavailable, StoreUncertain, Transaction

REFERENCE_CHARS_MAX = 200
PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.5)  # before each retry
RETRY_S_MAX = 15.0  # for all retries together

T = TypeVar("T")


class Unconfirmed(ControlError):
    """The store did not confirm a command, and no longer answers."""

    def __init__(self, reference: str) -> None:
        super().__init__(
            "The store did not confirm the change and does not answer now: it may have been done. "
            f"Run it again with --reference {reference}: it takes effect once."
        )
        self.reference = reference


class Claim(msgspec.Struct, frozen=True):
    """Whether a command must be carried out, and the earlier call that did so, if it was another one."""

    is_new: bool
    earlier: ReferenceUse | None

    @property
    def earlier_at(self) -> int | None:
        return self.earlier.at if self.earlier else None


class IdempotentCommand(msgspec.Struct, frozen=True):
    """A command and its reference. `subject` is the id of what it creates; each call has a new one."""

    by: str
    action: str
    arguments: tuple[object, ...]  # a repetition has the same
    reference: str
    subject: str

    @property
    def digest(self) -> bytes:
        """Of the reference and its user: the same text from another user is another reference."""
        return hashlib.sha256(f"{self.by}\0{self.reference}".encode()).digest()

    @property
    def source(self) -> str:
        """The source of the ledger entry that the command makes."""
        return f"reference:{self.digest.hex()[:32]}"

    def claim(self, tx: Transaction, now_ms: int) -> Claim:
        """Store the reference, if it is new. ControlError if another command used it."""
        arguments_digest = hashlib.sha256(repr(self.arguments).encode()).digest()
        earlier = credit.use_reference(
            tx, ReferenceUse(self.digest, self.action, arguments_digest, self.subject, now_ms)
        )
        if earlier and (earlier.action, earlier.arguments_digest) != (self.action, arguments_digest):
            raise ControlError(
                f"The reference {self.reference!r} was used before for something else ({earlier.action}). "
                "Use it again only to repeat the same, and another one for anything new."
            )
        is_own = earlier is not None and earlier.subject == self.subject  # only the store's answer was lost
        return Claim(earlier is None, None if is_own else earlier)

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the transaction of the command, which claims it first. Retry it while its result is not known."""
        with suppress(StoreUncertain):
            return await work()
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S_MAX):
                for pause_s in PAUSES_S:
                    await asyncio.sleep(pause_s)
                    with suppress(StoreUnavailable):
                        return await work()
        raise Unconfirmed(self.reference)


def make_command(
    by: str, action: str, arguments: tuple[object, ...], reference: str, subject: str = ""
) -> IdempotentCommand:
    """Without a reference, a random one is made."""
    if len(reference) > REFERENCE_CHARS_MAX or not reference.isprintable():
        raise ControlError(f"A reference is one line of at most {REFERENCE_CHARS_MAX} characters.")
    return IdempotentCommand(by, action, arguments, reference or make_reference(), subject or secrets.token_hex(8))


def make_reference() -> str:
    return secrets.token_hex(8)
