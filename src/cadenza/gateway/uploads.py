"""The memory that large bodies may take, shared between keys and accounts.

A small body takes nothing. An account may take as much as it leaves free, and a key a third of what it leaves free: an
account alone gets half of the memory, a key a quarter, and of two accounts each gets a third. Each may always take one
body of the largest size, if there is room. An account without the credit for any answer is refused before a body above
4 KiB is read.
"""

from cadenza.core.errors import InsufficientCredit, RateLimited
from cadenza.core.money import format_dollars
from cadenza.core.records import Principal
from cadenza.http.body import BodyLimits, BodyMemory
from cadenza.observe import Metrics

SMALL_BYTES = 64 * 1024
UNPAID_BYTES = 4 * 1024  # of a body that is read whether or not its account can pay
LARGEST_BYTES = BodyLimits().bytes_max


class Uploads:
    """The memory that each key and each account has taken."""

    def __init__(self, memory: BodyMemory, metrics: Metrics) -> None:
        self._memory = memory
        self._metrics = metrics
        self._taken_bytes: dict[str, int] = {}  # by the id of the key or the account; nothing for those with none

    def __len__(self) -> int:
        """How many keys and accounts have taken memory."""
        return len(self._taken_bytes)

    def check(self, principal: Principal, size_bytes: int) -> None:
        """429 if there is no room for `size_bytes` more."""
        left_bytes = self._memory.free_bytes - size_bytes
        if left_bytes < 0:
            raise self._full("The service has")
        if self._with(principal.key_id, size_bytes) > max(LARGEST_BYTES, left_bytes // 3):
            raise self._full("This key has")
        if self._with(principal.account_id, size_bytes) > max(LARGEST_BYTES, left_bytes):
            raise self._full("This account has")

    def take(self, principal: Principal, size_bytes: int) -> None:
        self.check(principal, size_bytes)
        self._memory.take(size_bytes)
        for owner in (principal.key_id, principal.account_id):
            self._taken_bytes[owner] = self._with(owner, size_bytes)

    def release(self, principal: Principal, size_bytes: int) -> None:
        self._memory.release(size_bytes)
        for owner in (principal.key_id, principal.account_id):
            left_bytes = self._taken_bytes.pop(owner) - size_bytes
            assert left_bytes >= 0
            if left_bytes:
                self._taken_bytes[owner] = left_bytes

    def _with(self, owner: str, size_bytes: int) -> int:
        return self._taken_bytes.get(owner, 0) + size_bytes

    def _full(self, whose: str) -> RateLimited:
        self._metrics.refused.labels("uploads").inc()
        return RateLimited(f"{whose} too many large requests at once. Retry shortly.", 1.0, "uploads")


class Upload:
    """The memory of one body, and whether its account can pay for any answer: `least_nano` is the cheapest."""

    __slots__ = ("_arrived_bytes", "_least_nano", "_principal", "_taken_bytes", "_uploads")

    def __init__(self, uploads: Uploads, principal: Principal, least_nano: int) -> None:
        self._uploads = uploads
        self._principal = principal
        self._least_nano = least_nano
        self._arrived_bytes = 0
        self._taken_bytes = 0

    def expect(self, size_bytes: int) -> None:
        """402 or 429 for a body that would be refused while it arrives."""
        if size_bytes > UNPAID_BYTES:
            self._check_credit()
        if size_bytes > SMALL_BYTES:
            self._uploads.check(self._principal, size_bytes)

    def take(self, size_bytes: int) -> None:
        self._arrived_bytes += size_bytes
        if self._arrived_bytes > UNPAID_BYTES:
            self._check_credit()
        if self._arrived_bytes > SMALL_BYTES:
            self._uploads.take(self._principal, self._arrived_bytes - self._taken_bytes)
            self._taken_bytes = self._arrived_bytes

    def release(self, _size_bytes: int) -> None:
        if self._taken_bytes:
            self._uploads.release(self._principal, self._taken_bytes)
            self._taken_bytes = 0

    @property
    def is_solvent(self) -> bool:
        """Whether the account can pay for any answer."""
        return self._principal.balance_nano >= self._least_nano

    def _check_credit(self) -> None:
        if not self.is_solvent:
            balance = format_dollars(self._principal.balance_nano)
            raise InsufficientCredit(f"The account has {balance} dollars of credit. Add credit.")
