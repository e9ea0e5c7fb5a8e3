"""The rules of the ledger, pure: from accounts as they were read, and the moves on them, to what must be written.

Each process has a durable *reserve* (escrow) of an account's credit, and holds credit for its requests inside it, in
memory. The invariants, which every move keeps:

- an account's held sum is the sum of its reserves, and never exceeds its balance;
- a request is charged at most once;
- a key with a spend cap (caps.py) holds and spends no more than the cap;
- an account with a debt has no free credit: freed credit pays the debt first, and no new hold is taken;
- granted credit is a part of the balance, and is spent before paid credit.

Here are the records and how holds are taken; charging.py has how requests end.
"""

from typing import Literal

import msgspec

from cadenza.core.money import Price
from cadenza.core.records import Outcome, Usage
from cadenza.core.tokens import OUTPUT_TOKENS_MIN
from cadenza.ledger.caps import CapState, CapStatus

AMPLE_TIMES = 256  # an account that can pay for this many requests like the one at hand has ample credit
EXTRA_SHARE = 8  # an answer without `max_tokens` may take one part in eight of the credit that is left
RESERVE_SHARE = 8  # a reserve grows by at most one part in eight of the free credit
IDEMPOTENCY_MS = 24 * 60 * 60 * 1000
ENDPOINT = "chat"  # of requests that do not end by themselves

# Who ended a request: the process that served it, or a sweep, at its last mark. A lost request was not charged.
EndSource = Literal["request", "sweep", "lost"]


class Hold(msgspec.Struct, frozen=True):
    """The credit that a request asks for before it is served, and the prices that it will be charged at.

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
    version: int | None = None  # of the class; None: a web search
    extra_tokens: int = 0  # without `max_tokens`: how much longer the answer may be, if credit is held for it too
    is_final: bool = False  # take what is free now, instead of waiting for credit that other processes can spare

    @property
    def amount_nano(self) -> int:
        return self.price.quote(self.prompt_tokens, self.allowance_tokens)

    @property
    def extra_nano(self) -> int:
        return self.extra_tokens * self.price.output_nano

    @property
    def least_nano(self) -> int:
        """The free credit that an account needs for the whole hold."""
        return self.amount_nano if self.is_counted else self.amount_nano * AMPLE_TIMES

    def due_nano(self, counted: Usage | None) -> int:
        return 0 if counted is None else self.price.charge(counted)


class HeldCredit(msgspec.Struct, frozen=True):
    """The hold was taken: its amount, and the output tokens that it pays for."""

    amount_nano: int
    allowance_tokens: int
    is_capped: bool = False  # it holds a part of its key's cap too


class Insufficient(msgspec.Struct, frozen=True):
    """The free credit does not pay for the request, or its key's cap does not."""

    free_nano: int  # of the account, or what the cap leaves
    needed_nano: int
    cap: CapStatus | None = None
    debt_nano: int = 0  # while an account has a debt, it can pay for nothing


class Repeated(msgspec.Struct, frozen=True):
    """The idempotency key was used before, by this request."""

    completion_id: str
    request_id: str
    is_open: bool = False  # the key may be used again


class ReservedElsewhere(msgspec.Struct, frozen=True):
    """The free credit does not pay for the whole hold, but other processes may have reserves to spare."""


class Ended(msgspec.Struct, frozen=True):
    """The request has ended in the ledger."""

    charged_nano: int = 0
    short_nano: int = 0  # due, but the account could not pay it
    is_repeated: bool = False  # it had ended before, for the same amount: nothing was changed
    is_lost: bool = False  # less was charged than was held and due: the reply must not seem complete
    corrected_nano: int = 0  # given back, because a sweep had charged more


RESERVED_ELSEWHERE = ReservedElsewhere()
HoldResult = HeldCredit | Insufficient | Repeated | ReservedElsewhere


class End(msgspec.Struct, frozen=True):
    """A request that has ended: its outcome, its hold, the amount that was held, and what is due.

    An uncertain end may be in the store already, written by this process or by a sweep, so the store is asked first.
    """

    outcome: Outcome
    hold: Hold
    held_nano: int
    due_nano: int
    is_marked: bool = False  # the store may have a mark of it
    is_capped: bool = False  # the hold was taken under a cap: the charge must not exceed what the cap leaves
    is_uncertain: bool = False
    is_late: bool = False  # its process was swept after the hold was taken; it is uncertain too
    source: EndSource = "request"
    provider_cost_nano: int | None = None  # what the providers charge for it; None: not known

    @property
    def covered_nano(self) -> int:
        """What is due, as far as the hold covers it."""
        return self.due_nano if self.due_nano < self.held_nano else self.held_nano


class Charge(msgspec.Struct, frozen=True):
    """What an ended request is charged, and what a sweep had charged beyond that."""

    end: End
    charged_nano: int
    corrected_nano: int = 0
    granted_nano: int = 0  # the part of the charge, or of the correction, that is granted credit

    @property
    def has_entry(self) -> bool:
        return self.end.outcome.usage is not None and self.end.source != "lost"


class LockedAccount(msgspec.Struct):
    """An account while a transaction has its row locked: its money, and the reserve that this process has of it."""

    id: str
    balance_nano: int
    held_nano: int
    reserve_nano: int
    has_reserve: bool = False
    is_asked: bool = False  # another process waits for the part of the reserve that this one does not need
    has_caps: bool = False  # at least one of its keys has a spend cap
    debt_nano: int = 0
    granted_nano: int = 0  # the part of the balance that was not paid for
    has_spare: bool = False  # the reserve is larger than the requests in flight need

    @property
    def free_nano(self) -> int:
        return self.balance_nano - self.held_nano


class Demand(msgspec.Struct, frozen=True):
    """How much of its reserve a process keeps, and how large it wants the reserve to become."""

    kept_nano: int  # for requests in flight, and for holds taken in memory until the batch is committed
    in_use_nano: int  # the part of it for requests in flight
    wanted_nano: int
    usual_nano: int  # the hold of a usual request


class Recorded(msgspec.Struct, frozen=True):
    """The end of a request as the store has it."""

    cost_nano: int
    source: EndSource
    granted_nano: int = 0  # the part of its charge that was granted credit
    refunded_nano: int = 0


class BatchFacts(msgspec.Struct):
    """What the store knows about the requests of a batch."""

    ended: dict[str, Recorded] = {}  # by completion id
    revoked_keys: set[str] = set()  # the ids of the revoked API keys of late ends
    keys: dict[tuple[str, bytes], Repeated] = {}  # by account id and digest
    caps: dict[str, CapState] = {}  # by key id


class Changes(msgspec.Struct):
    """What a batch changes in the store, besides the accounts and reserves themselves."""

    charges: list[Charge] = []
    corrections: list[Charge] = []
    new_keys: list[Hold] = []
    kept_keys: list[Hold] = []  # idempotency keys of charged requests
    freed_keys: list[Hold] = []  # idempotency keys of requests that were not charged
    unmarked: list[str] = []


def broken_off(hold: Hold, status: int, now_ms: int, usage: Usage | None = None) -> Outcome:
    """The outcome of a request that cannot make its own: it was cancelled while it waited, or its process died."""
    return Outcome(
        request_id=hold.request_id,
        completion_id=hold.completion_id,
        account_id=hold.account_id,
        key_id=hold.key_id,
        class_id=hold.class_id,
        version=hold.version,
        endpoint=ENDPOINT,
        status=status,
        usage=usage,
        duration_ms=max(0, now_ms - hold.started_at),
        ended_at=now_ms,
    )


def take_hold(account: LockedAccount, hold: Hold, known: BatchFacts, changes: Changes) -> HoldResult:
    """Hold the whole allowance, or as much of it as the account and the key's cap can pay for.

    The allowance is fitted to the account's credit only if the hold is final, and to a cap at once. For a longer answer
    a part of what is left is held too, so that no answer is longer than what is held for it.
    """
    digest = hold.idempotency_digest
    if digest and (used := known.keys.get((hold.account_id, digest))) and not used.is_open:
        return used
    least_tokens = min(OUTPUT_TOKENS_MIN, hold.allowance_tokens)
    if account.debt_nano:
        least_nano = hold.price.quote(hold.prompt_tokens, least_tokens)
        return Insufficient(account.free_nano, least_nano, debt_nano=account.debt_nano)
    payable_nano, cap = _payable(account, hold, known)
    amount_nano, allowance_tokens = hold.amount_nano, hold.allowance_tokens
    if payable_nano < hold.least_nano:
        if hold.is_counted and not hold.is_final and cap is None:
            return RESERVED_ELSEWHERE
        allowance_tokens = min(allowance_tokens, hold.price.affordable(payable_nano, hold.prompt_tokens))
        if not hold.is_counted or allowance_tokens < least_tokens:
            return Insufficient(payable_nano, hold.price.quote(hold.prompt_tokens, least_tokens), cap)
    elif hold.extra_tokens:
        part_nano = (payable_nano - amount_nano) // EXTRA_SHARE
        allowance_tokens += min(hold.extra_tokens, hold.price.affordable(part_nano, 0))
    amount_nano = hold.price.quote(hold.prompt_tokens, allowance_tokens)
    if not 0 <= amount_nano <= payable_nano:  # not `assert`: the reserve would not cover the hold
        raise AssertionError("a hold is at most what can pay for it")
    resize(account, account.reserve_nano + amount_nano)
    if digest:
        changes.new_keys.append(hold)
        known.keys[hold.account_id, digest] = Repeated(hold.completion_id, hold.request_id)
    if held_of := known.caps.get(hold.key_id):
        held_of.hold(amount_nano)
        assert not amount_nano or held_of.left_nano(hold.started_at) >= 0
    return HeldCredit(amount_nano, allowance_tokens, held_of is not None)


def grow(account: LockedAccount, demand: Demand) -> None:
    """Reserve credit for requests to come, if the account has ample credit."""
    free_nano, wanted_nano = account.balance_nano - account.held_nano, demand.wanted_nano
    if account.reserve_nano < wanted_nano and free_nano >= demand.usual_nano * AMPLE_TIMES:
        share_nano = account.reserve_nano + free_nano // RESERVE_SHARE
        resize(account, wanted_nano if wanted_nano < share_nano else share_nano)


def has_spare(account: LockedAccount, demand: Demand, held_nano: int) -> bool:
    """Whether the reserve is larger than the requests in flight need, including the holds that were just taken."""
    return account.reserve_nano > demand.in_use_nano + held_nano


def resize(account: LockedAccount, reserve_nano: int) -> None:
    """Set the size of the reserve, as far as the free credit allows."""
    assert reserve_nano >= 0
    more_nano, free_nano = reserve_nano - account.reserve_nano, account.balance_nano - account.held_nano
    assert free_nano >= 0
    if more_nano > free_nano:
        more_nano = free_nano
    account.reserve_nano += more_nano
    account.held_nano += more_nano


def granted_part(balance_nano: int, granted_nano: int, taken_nano: int, *, is_paid_first: bool = False) -> int:
    """How much of what is taken from a balance is granted credit. It is taken before paid credit, or after it.

    At most the new balance is granted then.
    """
    part_nano = 0 if is_paid_first else granted_nano if granted_nano < taken_nano else taken_nano
    excess_nano = granted_nano - (balance_nano - taken_nano)
    return part_nano if part_nano > excess_nano else excess_nano


def pay_debt(account: LockedAccount) -> None:
    """Pay the debt from free credit. This comes last: what requests owe is charged first."""
    paid_nano = min(account.debt_nano, account.free_nano)
    if not paid_nano:
        return
    granted_nano = granted_part(account.balance_nano, account.granted_nano, paid_nano, is_paid_first=True)
    account.granted_nano -= granted_nano
    account.debt_nano -= paid_nano
    account.balance_nano -= paid_nano


def require_sums(before: LockedAccount, after: LockedAccount, charged_nano: int, granted_nano: int = 0) -> None:
    """Raise unless a batch kept the sums of an account. `charged_nano` is less what was corrected.

    `granted_nano` is the granted part of it. What pays a debt is a part of it, too.
    """
    paid_nano = before.debt_nano - after.debt_nano
    if not (  # not `assert`: the rows would be written without it
        after.balance_nano == before.balance_nano - charged_nano - paid_nano
        and after.held_nano - before.held_nano == after.reserve_nano - before.reserve_nano
        and 0 <= after.reserve_nano <= after.held_nano <= after.balance_nano
        and 0 <= after.debt_nano <= before.debt_nano
        and (not after.debt_nano or after.held_nano == after.balance_nano)
        and 0 <= before.granted_nano - granted_nano - after.granted_nano <= paid_nano
        and 0 <= after.granted_nano <= after.balance_nano
    ):
        raise AssertionError("a batch does not keep the sums of an account")


def _payable(account: LockedAccount, hold: Hold, known: BatchFacts) -> tuple[int, CapStatus | None]:
    """What can pay for a hold: the free credit, or what the cap of its key leaves if that is not more."""
    cap = known.caps.get(hold.key_id)
    if cap is None:
        return account.free_nano, None
    cap.enter(hold.started_at)
    left_nano = max(0, cap.left_nano(hold.started_at))
    if left_nano > account.free_nano:
        return account.free_nano, None
    return left_nano, CapStatus(cap.cap, cap.spent_in(hold.started_at), left_nano)
