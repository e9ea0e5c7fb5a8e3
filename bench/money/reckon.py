"""From the records of a run to its figures: a pure function.

Three records are compared: what the clients got, what the upstream served, and what the gateway says that it charged.
The upstream's record says what is due, because that is what a provider would bill: the prompt, and every token that it
sent, also if nobody received it.

A charge belongs to the request with its id, or else to the request of the same account with as many prompt tokens.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from bench.money.script import price

# whole: the client has the last byte; left: it disconnected, by script or out of patience; broken: the gateway did so
Ending = Literal["whole", "left", "broken", "refused", "unreachable"]


class Wallet(msgspec.Struct, frozen=True):
    """An account, or a key, with a budget. `revoked_s` is when its revocation had returned, after `revoking_s`."""

    name: str
    budget_nano: int
    spent_nano: int = 0  # by the gateway's own balance, at the end
    revoked_s: float | None = None
    revoking_s: float = 0.0
    is_steady: bool = False  # asked from beginning to end, so that its replies show the time without service


class Asked(msgspec.Struct, frozen=True):
    """A request as its client saw it. `id` is that of the completion, if it arrived."""

    number: int
    wallet: str
    began_s: float
    ended_s: float
    ending: Ending
    status: int = 0
    id: str = ""


class Supplied(msgspec.Struct):
    """A request as the upstream saw it."""

    number: int
    id: str
    prompt_tokens: int
    sent_tokens: int = 0

    @property
    def due_nano(self) -> int:
        return price(self.prompt_tokens, self.sent_tokens)


class Billed(msgspec.Struct, frozen=True):
    """A charge as the gateway recorded it."""

    wallet: str
    id: str
    prompt_tokens: int
    amount_nano: int


class Evidence(msgspec.Struct, frozen=True):
    """Everything that a run recorded. Times are those of one monotonic clock."""

    wallets: Sequence[Wallet]
    asked: Sequence[Asked]
    supplied: Sequence[Supplied]
    billed: Sequence[Billed]
    began_s: float
    ended_s: float


class CountedAmount(msgspec.Struct):
    """A number of requests and an amount."""

    count: int = 0
    nano: int = 0

    def add(self, nano: int) -> None:
        if nano > 0:
            self.count += 1
            self.nano += nano


class Reckoning(msgspec.Struct):
    """The figures of one gateway.

    `lost_whole` was due for replies that their clients got whole, `lost_broken` for other ones. `doubled` are second
    and later charges, `excess` is the part of a first charge above what was due, and `unknown` are charges that belong
    to no request. `balance_off_nano` is what the balances lost, less the sum of the recorded charges.
    """

    asked: int  # those that reached a process
    endings: dict[str, int]
    due_nano: int = 0
    charged_nano: int = 0
    lost_whole: CountedAmount = msgspec.field(default_factory=CountedAmount)
    lost_broken: CountedAmount = msgspec.field(default_factory=CountedAmount)
    doubled: CountedAmount = msgspec.field(default_factory=CountedAmount)
    excess: CountedAmount = msgspec.field(default_factory=CountedAmount)
    unknown: CountedAmount = msgspec.field(default_factory=CountedAmount)
    overdraft: CountedAmount = msgspec.field(default_factory=CountedAmount)  # its count is of accounts
    accepted_after_revocation: int = 0
    longest_revocation_s: float = 0.0
    longest_gap_s: float = 0.0
    balance_off_nano: int = 0
    wallets: int = 0


def reckon(evidence: Evidence) -> Reckoning:
    asked = {one.number: one for one in evidence.asked}
    endings: dict[str, int] = defaultdict(int)
    for one in evidence.asked:
        endings[one.ending] += 1
    figures = Reckoning(len(asked) - endings["unreachable"], dict(endings), wallets=len(evidence.wallets))
    due: dict[int, int] = defaultdict(int)
    for served in evidence.supplied:
        due[served.number] += served.due_nano
    charges, unknown = match(evidence)
    figures.due_nano = sum(due.values())
    figures.charged_nano = sum(wallet.spent_nano for wallet in evidence.wallets)
    figures.balance_off_nano = figures.charged_nano - sum(one.amount_nano for one in evidence.billed)
    for amount in unknown:
        figures.unknown.add(amount)
    for number in {*due, *charges}:
        amounts = [amount for amount in charges.get(number, []) if amount]
        lost = figures.lost_whole if asked[number].ending == "whole" else figures.lost_broken
        lost.add(due[number] - sum(amounts))
        for again in amounts[1:]:
            figures.doubled.add(again)
        figures.excess.add(sum(amounts[:1]) - due[number])
    for wallet in evidence.wallets:
        owed = sum(nano for number, nano in due.items() if asked[number].wallet == wallet.name)
        figures.overdraft.add(owed - wallet.budget_nano)
    figures.accepted_after_revocation = sum(_is_after_revocation(one, evidence.wallets) for one in evidence.asked)
    figures.longest_revocation_s = max(wallet.revoking_s for wallet in evidence.wallets)
    figures.longest_gap_s = longest_gap(evidence)
    return figures


def match(evidence: Evidence) -> tuple[dict[int, list[int]], list[int]]:
    """The amounts that were charged for each request, and those that belong to no request."""
    by_id = {one.id: one.number for one in evidence.asked if one.id}
    by_id |= {one.id: one.number for one in evidence.supplied}
    by_count = _only(_counts(evidence))
    found: dict[int, list[int]] = defaultdict(list)
    unknown = list[int]()
    for charge in evidence.billed:
        number = by_id.get(charge.id) if charge.id else None
        if number is None:
            number = by_count.get((charge.wallet, charge.prompt_tokens))
        (unknown if number is None else found[number]).append(charge.amount_nano)
    return found, unknown


def longest_gap(evidence: Evidence) -> float:
    """The longest time in which no steady client got a whole reply."""
    steady = {wallet.name for wallet in evidence.wallets if wallet.is_steady}
    ends = sorted(one.ended_s for one in evidence.asked if one.ending == "whole" and one.wallet in steady)
    times = [evidence.began_s, *(one for one in ends if one < evidence.ended_s), evidence.ended_s]
    return max(later - earlier for earlier, later in itertools.pairwise(times))


def _counts(evidence: Evidence) -> Iterable[tuple[tuple[str, int], int]]:
    wallets = {one.number: one.wallet for one in evidence.asked}
    return (((wallets[one.number], one.prompt_tokens), one.number) for one in evidence.supplied)


def _only(pairs: Iterable[tuple[tuple[str, int], int]]) -> Mapping[tuple[str, int], int]:
    """Those keys that name one request alone."""
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for key, number in pairs:
        found[key].add(number)
    return {key: numbers.pop() for key, numbers in found.items() if len(numbers) == 1}


def _is_after_revocation(one: Asked, wallets: Sequence[Wallet]) -> bool:
    revoked_s = next(wallet.revoked_s for wallet in wallets if wallet.name == one.wallet)
    return revoked_s is not None and one.began_s > revoked_s and one.status == 200
