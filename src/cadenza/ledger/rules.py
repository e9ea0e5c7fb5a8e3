"""The rules of the ledger, without SQL: from accounts as they were read and the moves on them to what is written.

A process has a durable *reserve* of an account's credit and holds credit for its requests inside it, in memory. Three
things follow, and every move keeps them: an account's held sum is the sum of its reserves, it never exceeds the
balance, and a request is charged at most once. A key with a spend cap (caps.py) holds and pays no more than that.
An account with a debt has no free credit: what its holds free pays the debt first, and no new hold is taken.
How requests end is in charging.py.
"""

from typing import Literal, NamedTuple

import msgspec

from cadenza.core.money import Price
from cadenza.core.records import Outcome, Usage
from cadenza.core.tokens import OUTPUT_TOKENS_MIN
from cadenza.ledger.caps import CapShort, CapState

AMPLE_TIMES = 256  # credit for so many requests like the one at hand is ample: then nothing needs to be exact
RESERVE_SHARE = 8  # a reserve grows by at most this part of the credit that nobody has reserved
IDEMPOTENCY_MS = 24 * 60 * 60 * 1000

# Who ended a request: the process that served it, or a sweep, at its last mark. A lost one was not charged.
EndSource = Literal["request", "sweep", "lost"]


class Hold(msgspec.Struct, frozen=True):
    """The credit that a request asks for before it is served, at a snapshot of the price.

    An uncounted prompt is held at an upper bound of its tokens, and only for accounts with ample credit.
    """

    completion_id: str
    account_id: str
    key_id: str
    class_id: str
    prompt_tokens: int
    allowance_tokens: int
    price: Price
    stream: bool
    started_at: int
    is_counted: bool = True  # False: `prompt_tokens` is an upper bound
    request_id: str = ""
    idempotency_digest: bytes | None = None
    is_capped: bool = False  # its key has a spend cap

    @property
    def amount_nano(self) -> int:
        return self.price.quote(self.prompt_tokens, self.allowance_tokens)

    @property
    def least_nano(self) -> int:
        """The free credit that an account needs for the whole hold."""
        return self.amount_nano if self.is_counted else self.amount_nano * AMPLE_TIMES


class Held(msgspec.Struct, frozen=True):
    """The hold was taken: its amount, the output that it pays for, and the credit that is left for a longer answer."""

    amount_nano: int
    allowance_tokens: int
    left_nano: int
    is_capped: bool = False  # it holds a part of its key's cap too


class Insufficient(msgspec.Struct, frozen=True):
    """The free credit does not pay for the request, or its key's cap does not."""

    free_nano: int  # of the account, or what the cap leaves
    needed_nano: int
    cap: CapShort | None = None
    debt_nano: int = 0  # while an account has a debt, it can pay for nothing


class Repeated(msgspec.Struct, frozen=True):
    """The idempotency key was used before, by this request."""

    completion_id: str
    request_id: str


class Short(msgspec.Struct, frozen=True):
    """The free credit does not pay for the whole hold. Other processes may have reserved more than they need."""


class Ended(msgspec.Struct, frozen=True):
    """The request has ended in the ledger."""

    charged_nano: int = 0
    short_nano: int = 0  # due, but the account could not pay it
    is_repeated: bool = False  # it had ended before, for the same amount: nothing was changed
    is_lost: bool = False  # less was charged than its hold was for: the reply must not seem complete
    corrected_nano: int = 0  # what a sweep had charged too much


SHORT = Short()
Taken = Held | Insufficient | Repeated | Short


class OpenHold(NamedTuple):
    """A hold that was taken: everything that is needed to charge its request."""

    completion_id: str
    request_id: str
    account_id: str
    key_id: str
    class_id: str
    amount_nano: int
    prompt_tokens: int
    delivered_tokens: int
    input_nano: int
    output_nano: int
    cached_input_nano: int | None
    stream: bool
    started_at: int
    idempotency_digest: bytes | None = None
    is_capped: bool = False  # it was taken under a cap, so its charge must not exceed what the cap leaves

    @classmethod
    def of(cls, hold: Hold, amount_nano: int, *, is_capped: bool = False) -> "OpenHold":
        """Return a hold as it is right after it was taken."""
        price = hold.price
        return cls(
            hold.completion_id,
            hold.request_id,
            hold.account_id,
            hold.key_id,
            hold.class_id,
            amount_nano,
            hold.prompt_tokens,
            0,
            price.input_nano,
            price.output_nano,
            price.cached_input_nano,
            hold.stream,
            hold.started_at,
            hold.idempotency_digest,
            is_capped,
        )

    def due_nano(self, counted: Usage | None) -> int:
        """What is due for this usage, at the prices of the hold."""
        if counted is None:
            return 0
        return Price(self.input_nano, self.output_nano, self.cached_input_nano).charge(counted)


class End(msgspec.Struct, frozen=True):
    """A request that ended, and the hold that it had.

    An uncertain end may have been written before, by this process or by a sweep: the store is asked first. A late end
    is uncertain too.
    """

    outcome: Outcome
    hold: OpenHold
    due_nano: int
    is_marked: bool = False
    is_uncertain: bool = False
    is_late: bool = False  # its process was swept since the hold was taken
    source: EndSource = "request"


class LockedAccount(msgspec.Struct):
    """An account while it is locked: its money, and the reserve that this process has of it."""

    id: str
    balance_nano: int
    held_nano: int
    reserve_nano: int
    has_reserve: bool = False
    is_asked: bool = False  # another process waits for the part of the reserve that this one does not need
    has_caps: bool = False  # a key of it has a spend cap
    debt_nano: int = 0

    @property
    def free_nano(self) -> int:
        return self.balance_nano - self.held_nano


class Demand(msgspec.Struct, frozen=True):
    """What a process wants of an account: the part of its reserve that it keeps, and how large it should become."""

    kept_nano: int  # for the requests in flight, and to hold more in memory meanwhile
    in_use_nano: int  # of it, for the requests in flight
    wanted_nano: int
    usual_nano: int  # of one request


class IdempotencyUse(msgspec.Struct, frozen=True):
    """The request that used an idempotency key, and whether the key may be used again."""

    completion_id: str
    request_id: str
    is_open: bool


class Recorded(msgspec.Struct, frozen=True):
    """What the store has of a request that ended. Without a source it was swept by a process of the release before."""

    cost_nano: int
    source: EndSource | None


class Known(msgspec.Struct):
    """What the store knows about the requests of a batch: which have ended, used idempotency keys, caps."""

    ended: dict[str, Recorded] = msgspec.field(default_factory=dict)
    revoked_keys: set[str] = msgspec.field(default_factory=set)  # of late ends, by key id
    keys: dict[tuple[str, bytes], IdempotencyUse] = msgspec.field(default_factory=dict)
    caps: dict[str, CapState] = msgspec.field(default_factory=dict)  # by key id


class Charge(msgspec.Struct, frozen=True):
    """A request to be written with its entry, if it was charged, and its metering row."""

    hold: OpenHold
    outcome: Outcome
    charged_nano: int
    short_nano: int = 0  # due, but not charged
    source: EndSource = "request"

    @property
    def has_entry(self) -> bool:
        return self.outcome.usage is not None and self.source != "lost"


class ChargeCorrection(msgspec.Struct, frozen=True):
    """What a sweep charged too much for a request, and the charge that its metering row must show."""

    amount_nano: int
    charge: Charge


class Changes(msgspec.Struct):
    """What a batch changes in the store, besides the accounts and reserves themselves."""

    charges: list[Charge] = msgspec.field(default_factory=list)
    corrections: list[ChargeCorrection] = msgspec.field(default_factory=list)
    new_keys: list[Hold] = msgspec.field(default_factory=list)
    kept_keys: list[OpenHold] = msgspec.field(default_factory=list)  # their requests were charged
    freed_keys: list[OpenHold] = msgspec.field(default_factory=list)  # their requests were not
    unmarked: list[str] = msgspec.field(default_factory=list)


def take_hold(account: LockedAccount, hold: Hold, known: Known, changes: Changes, *, is_final: bool) -> Taken:
    """Hold the whole allowance, or as much of it as the account and the key's cap can pay for.

    An allowance that the account cannot pay is not fitted before the hold is final. A cap does not wait.
    """
    if repeated := _used_key(hold, known):
        return repeated
    if account.debt_nano:
        least_nano = hold.price.quote(hold.prompt_tokens, min(OUTPUT_TOKENS_MIN, hold.allowance_tokens))
        return Insufficient(account.free_nano, least_nano, debt_nano=account.debt_nano)
    payable_nano, cap = _payable(account, hold, known)
    amount_nano, allowance_tokens = hold.amount_nano, hold.allowance_tokens
    if payable_nano < hold.least_nano:
        if hold.is_counted and not is_final and cap is None:
            return SHORT
        least_tokens = min(OUTPUT_TOKENS_MIN, hold.allowance_tokens)
        allowance_tokens = min(allowance_tokens, hold.price.affordable(payable_nano, hold.prompt_tokens))
        if not hold.is_counted or allowance_tokens < least_tokens:
            return Insufficient(payable_nano, hold.price.quote(hold.prompt_tokens, least_tokens), cap)
        amount_nano = hold.price.quote(hold.prompt_tokens, allowance_tokens)
    resize(account, account.reserve_nano + amount_nano)
    if digest := hold.idempotency_digest:
        changes.new_keys.append(hold)
        known.keys[hold.account_id, digest] = IdempotencyUse(hold.completion_id, hold.request_id, is_open=False)
    if held_of := known.caps.get(hold.key_id):
        held_of.hold(amount_nano)
    return Held(amount_nano, allowance_tokens, payable_nano - amount_nano, held_of is not None)


def grow(account: LockedAccount, demand: Demand) -> None:
    """Reserve credit for requests to come, if the account has ample credit."""
    if account.free_nano >= demand.usual_nano * AMPLE_TIMES and account.reserve_nano < demand.wanted_nano:
        share_nano = account.reserve_nano + account.free_nano // RESERVE_SHARE
        resize(account, min(demand.wanted_nano, share_nano))


def has_spare(account: LockedAccount, demand: Demand, held_nano: int) -> bool:
    """Whether the reserve is larger than the requests in flight need, with the holds that were just taken."""
    return account.reserve_nano > demand.in_use_nano + held_nano


def resize(account: LockedAccount, reserve_nano: int) -> None:
    """Make the reserve so large, or as large as the free credit allows."""
    more_nano = min(reserve_nano - account.reserve_nano, account.free_nano)
    account.reserve_nano += more_nano
    account.held_nano += more_nano


def _payable(account: LockedAccount, hold: Hold, known: Known) -> tuple[int, CapShort | None]:
    """What can pay for a hold: the free credit, or what the cap of its key leaves if that is not more."""
    cap = known.caps.get(hold.key_id)
    if cap is None:
        return account.free_nano, None
    cap.enter(hold.started_at)
    left_nano = max(0, cap.left_nano(hold.started_at))
    if left_nano > account.free_nano:
        return account.free_nano, None
    return left_nano, CapShort(cap.cap, cap.spent_in(hold.started_at))


def _used_key(hold: Hold, known: Known) -> Repeated | None:
    used = known.keys.get((hold.account_id, hold.idempotency_digest)) if hold.idempotency_digest else None
    return None if used is None or used.is_open else Repeated(used.completion_id, used.request_id)


def pay_debt(account: LockedAccount) -> None:
    """Pay the debt from what is free. It comes last: what requests owe is charged first."""
    paid_nano = min(account.debt_nano, account.free_nano)
    account.debt_nano -= paid_nano
    account.balance_nano -= paid_nano
