"""Idempotent commands: a command with the same reference is carried out once.

The reference is stored in the transaction of the command. If the store does not confirm a commit, the command is
retried with the same reference until the store answers. If it does not answer, Unconfirmed names the reference.

How a reference is spelled makes no difference (`normal_reference`). References of different users are different, but
those of bank transfers and their refunds are one for all, and are no reference of another command that moves credit.
"""

import asyncio
import hashlib
import secrets
import unicodedata
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, TypeVar

import msgspec

from cadenza.core.config_keys import one_line
from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339
from cadenza.core.money import format_dollars
from cadenza.core.orders import Shown
from cadenza.core.records import Actor
from cadenza.ledger import credit
from cadenza.ledger.credit import ReferenceUse
from cadenza.store.store import StoreUnavailable, StoreUncertain, Transaction

REFERENCE_CHARS_MAX = 200
PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.5)  # before each retry
RETRY_S_MAX = 15.0  # for all retries together
FOR_ALL = "transfer"  # the user of references that are one for all
TRANSFERS = {"payment.transfer": "a bank transfer", "payment.refund": "the refund of a bank transfer"}
MOVES = {
    "credit.grant": "a gift",
    "credit.correct": "a correction",
    "account.create": "a new account",
    "voucher.create": "new vouchers",
}
HYPHENS = "\u2043\u2212"  # the hyphen bullet and the minus sign, which are no dashes to Unicode

Reference = Annotated[  # of an order
    str,
    one_line(REFERENCE_CHARS_MAX),
    Shown(metavar="TEXT", usual="a new one"),
    "Makes the command idempotent: a repetition with the same reference changes nothing.",
]

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

    user: str
    action: str
    arguments: tuple[object, ...]  # a repetition has the same
    reference: str
    subject: str
    former: tuple[object, ...] | None = None  # what the last release stored for these arguments

    @property
    def digest(self) -> bytes:
        """Of the reference and its user: the same text from another user is another reference."""
        return digest_of(self.user, self.reference)

    @property
    def source(self) -> str:
        """The source of the ledger entry that the command makes."""
        return source_of(self.digest)

    def claim(self, tx: Transaction, now_ms: int) -> Claim:
        """Store the reference, if it is new. ControlError if another command used it."""
        digests = [hashlib.sha256(repr(one).encode()).digest() for one in (self.arguments, self.former)]
        use = ReferenceUse(self.digest, self.action, digests[0], self.subject, now_ms)
        if self.action in MOVES:
            shared = msgspec.structs.replace(use, digest=digest_of(FOR_ALL, self.reference), subject=self.source)
            first = self._use(tx, FOR_ALL, shared)
            if first and first.action in TRANSFERS:
                raise self._used_before(tx, first)
        earlier = self._use(tx, self.user, use)
        if earlier and not (earlier.action == self.action and earlier.arguments_digest in digests):
            raise self._used_before(tx, earlier)
        is_own = earlier is not None and earlier.subject == self.subject  # only the store's answer was lost
        return Claim(earlier is None, None if is_own else earlier)

    def _use(self, tx: Transaction, user: str, use: ReferenceUse) -> ReferenceUse | None:
        """Store the use of the reference, if none is stored, and return the earlier one."""
        former = former_digest(user, self.reference)
        earlier = credit.get_use(tx, former) if former != use.digest else None
        return earlier or credit.use_reference(tx, use)

    def _used_before(self, tx: Transaction, earlier: ReferenceUse) -> ControlError:
        """Names what the reference was used for, and the entry that this made."""
        what = {**MOVES, **TRANSFERS}.get(earlier.action, earlier.action)
        for source in (earlier.subject, source_of(earlier.digest)):
            if found := credit.find_entry(tx, source):
                what += f", {format_dollars(found.amount_nano)} dollars for {found.email}"
        return ControlError(
            f"The reference {self.reference!r} was used before for something else: {what}, at {rfc3339(earlier.at)}. "
            "Nothing was changed. Use it again only to repeat the same, and another one for anything new."
        )

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


def normal_reference(reference: str) -> str:
    """How a reference is compared: any case, width, hyphen and Unicode form is the same, and spaces are one space."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", reference).casefold())
    hyphened = ["-" if unicodedata.category(one) == "Pd" or one in HYPHENS else one for one in folded]
    return " ".join("".join(hyphened).split())


def digest_of(user: str, reference: str) -> bytes:
    return _digest(user, normal_reference(reference))


def former_digest(user: str, reference: str) -> bytes:
    """As release 0.1.0 stored it: so a repetition in the same spelling is found, whatever that is."""
    return _digest(user, reference.strip().casefold())


def _digest(user: str, reference: str) -> bytes:
    return hashlib.sha256(f"{user}\0{reference}".encode()).digest()


def source_of(digest: bytes) -> str:
    return f"reference:{digest.hex()[:32]}"


def make_command(
    by: Actor,
    action: str,
    arguments: tuple[object, ...],
    reference: str,
    subject: str = "",
    former: tuple[object, ...] | None = None,
) -> IdempotentCommand:
    """Without a reference, a random one is made."""
    if len(reference) > REFERENCE_CHARS_MAX or not reference.isprintable():
        raise ControlError(f"A reference is one line of at most {REFERENCE_CHARS_MAX} characters.")
    user = f"{by.name} by token {by.token}" if by.token else by.name
    used = reference.strip() or make_reference()
    return IdempotentCommand(user, action, arguments, used, subject or secrets.token_hex(8), former)


def make_reference() -> str:
    return secrets.token_hex(8)
