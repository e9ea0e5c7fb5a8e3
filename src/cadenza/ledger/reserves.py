"""The reserves of this process in memory: credit that can be held without asking the store.

The invariant: memory never has more than the store. A batch that may shrink a reserve takes the difference away before
it is written, and what it adds is used only once it is durable. All of it runs on the event loop's thread. Keys with a
spend cap hold credit in the store; `CapHolds` is this process's copy of what they hold.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from cadenza.ledger.caps import NO_CAP_USE, CapUse
from cadenza.ledger.rules import AMPLE_TIMES, RESERVE_SHARE, Demand, End, Held, Hold, LockedAccount

IDLE_S = 1.0  # a reserve that is unused for this long is given back
EXACT_S = 1.0  # how long after a request for credit nothing is reserved beyond the requests in flight
LEAST_REQUESTS = 8  # a reserve covers at least this many requests
PEAK_TIMES = 2  # and this many times the recent peak of requests in flight


class Reserve(msgspec.Struct):
    """What this process has reserved of one account."""

    amount_nano: int = 0
    in_use_nano: int = 0  # for requests in flight, and for charges that are not written yet
    requests: int = 0  # in flight
    peak: int = 0  # the recent peak of requests in flight
    usual_nano: int = 0  # the largest recent hold, without what is held for a longer answer
    extra_nano: int = 0  # the most that was recently asked for a longer answer
    free_nano: int = 0  # the free credit of the account after the last commit
    used_s: float = 0.0
    exact_until_s: float = 0.0

    @property
    def spare_nano(self) -> int:
        return self.amount_nano - self.in_use_nano

    def hold(self, held_nano: int, usual_nano: int, extra_nano: int, now_s: float) -> None:
        """Hold `held_nano` for a request that asked for `usual_nano`, and for `extra_nano` if its answer is longer."""
        self.in_use_nano += held_nano
        self.requests += 1
        if self.requests > self.peak:
            self.peak = self.requests
        if usual_nano > self.usual_nano:
            self.usual_nano = usual_nano
        if extra_nano > self.extra_nano:
            self.extra_nano = extra_nano
        self.used_s = now_s

    def decay(self) -> None:
        """Let the recent peaks decay within seconds."""
        self.peak = max(self.requests, self.peak // 2)
        self.usual_nano -= self.usual_nano // 4
        self.extra_nano -= self.extra_nano // 4

    def demand(self, now_s: float, charged_nano: int, covered_nano: int, new: Sequence[Hold]) -> Demand:
        """What to keep and to ask for in a batch that charges `charged_nano` and takes these holds.

        `covered_nano` is what the holds of the ended requests cover of the charges. The rest takes nothing that other
        requests use.

        Credit that is not kept is no longer used from here on. Before new holds are taken, everything that is not in
        use is given back, so that they are judged by all of the account's free credit.
        """
        assert 0 <= covered_nano <= charged_nano
        assert covered_nano <= self.in_use_nano, "what is due and held stays in use until it is charged"
        self.in_use_nano -= covered_nano
        self.amount_nano = max(self.in_use_nano, self.amount_nano - charged_nano)
        usual_nano, extra_nano = self.usual_nano, self.extra_nano
        for hold in new:
            usual_nano, extra_nano = max(usual_nano, hold.amount_nano), max(extra_nano, hold.extra_nano)
        requests = max(LEAST_REQUESTS, PEAK_TIMES * max(self.peak, self.requests + len(new)))
        share_nano = (self.free_nano + self.amount_nano) // RESERVE_SHARE
        wanted_nano = requests * usual_nano + min(requests * extra_nano, share_nano)
        has_ample_credit = self.free_nano >= usual_nano * AMPLE_TIMES
        is_exact = now_s < self.exact_until_s or (not new and self.is_idle(now_s))
        if new or is_exact or not has_ample_credit:
            self.amount_nano = self.in_use_nano
        elif self.amount_nano > PEAK_TIMES * wanted_nano:
            self.amount_nano = max(self.in_use_nano, wanted_nano)
        if is_exact:
            wanted_nano = 0
        return Demand(self.amount_nano, self.in_use_nano, wanted_nano, usual_nano)

    def is_idle(self, now_s: float) -> bool:
        return not self.requests and not self.in_use_nano and now_s - self.used_s >= IDLE_S


class CapHolds:
    """What the requests in flight hold of the caps of their keys, by account and completion id."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, tuple[str, int]]] = {}
        self._doubtful: dict[str, set[str]] = {}  # by account: keys for which the store may have another amount

    def __contains__(self, account_id: str) -> bool:
        return account_id in self._held

    def use(self, account_id: str, ending: Iterable[End]) -> CapUse:
        """What the process holds when these requests end."""
        held, doubtful = self._held.get(account_id), self._doubtful.get(account_id)
        if not held and not doubtful:
            return NO_CAP_USE
        kept_nano, ending_nano, ends = (
            dict.fromkeys(doubtful or (), 0),
            dict[str, int](),
            {end.hold.completion_id for end in ending},
        )
        for completion_id, (key_id, amount_nano) in (held or {}).items():
            if completion_id in ends:
                ending_nano[completion_id] = amount_nano
            else:
                kept_nano[key_id] = kept_nano.get(key_id, 0) + amount_nano
        return CapUse(kept_nano, ending_nano)

    def hold(self, hold: Hold, amount_nano: int) -> None:
        held = self._held.setdefault(hold.account_id, {})
        assert hold.completion_id not in held
        held[hold.completion_id] = hold.key_id, amount_nano

    def end(self, account_id: str, completion_id: str) -> None:
        """The end of a request was written."""
        if held := self._held.get(account_id):
            held.pop(completion_id, None)
            if not held:
                del self._held[account_id]

    def doubt(self, account_id: str, key_id: str) -> None:
        """The store may have another amount for a key: it is written again with the next batch of its account."""
        self._doubtful.setdefault(account_id, set()).add(key_id)

    def written(self, account_id: str) -> None:
        """The store has the right amounts for an account."""
        self._doubtful.pop(account_id, None)

    def doubtful(self, found: Iterable[tuple[str, str]]) -> list[str]:
        """The accounts with doubtful keys. `found` are the accounts and keys for which the store has amounts."""
        for account_id, key_id in found:
            if all(key_id != held_of for held_of, _ in self._held.get(account_id, {}).values()):
                self.doubt(account_id, key_id)
        return [*self._doubtful]

    def lose(self) -> None:
        self._held.clear()
        self._doubtful.clear()


class Reserves:
    """One reserve for each recently used account."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.caps = CapHolds()
        self._clock_s = clock_s
        self._reserves: dict[str, Reserve] = {}

    def __len__(self) -> int:
        return len(self._reserves)

    @property
    def in_use_nano(self) -> int:
        return sum(reserve.in_use_nano for reserve in self._reserves.values())

    @property
    def spare_nano(self) -> int:
        return sum(reserve.spare_nano for reserve in self._reserves.values())

    def hold(self, hold: Hold) -> Held | None:
        """Hold credit in memory; None if the reserve does not cover it."""
        reserve = self._reserves.get(hold.account_id)
        if reserve is None:
            return None
        usual_nano, extra_nano = hold.amount_nano, hold.extra_nano if hold.extra_tokens else 0
        amount_nano = usual_nano + extra_nano
        assert amount_nano >= 0
        if amount_nano > reserve.amount_nano - reserve.in_use_nano:
            return None
        reserve.hold(amount_nano, usual_nano, extra_nano, self._clock_s())
        return Held(amount_nano, hold.allowance_tokens + hold.extra_tokens)

    def end(self, account_id: str, amount_nano: int, due_nano: int) -> None:
        """End a request. What is due stays in use until it is charged, but no more than was held for the request."""
        reserve = self._reserves[account_id]
        assert reserve.requests > 0
        assert 0 <= amount_nano <= reserve.in_use_nano
        if due_nano > amount_nano:  # the rest is not reserved: it would be taken from other requests
            due_nano = amount_nano
        reserve.in_use_nano += due_nano - amount_nano
        reserve.requests -= 1

    def demand(self, account_id: str, charged_nano: int, covered_nano: int, new: Sequence[Hold]) -> Demand:
        """See `Reserve.demand`."""
        reserve = self._reserves.get(account_id)
        if reserve is None:
            reserve = self._reserves[account_id] = Reserve(used_s=self._clock_s())
        return reserve.demand(self._clock_s(), charged_nano, covered_nano, new)

    def written(self, account: LockedAccount, taken: Sequence[tuple[Hold, Held]]) -> None:
        """A batch is durable: this is the account now, and these holds were taken."""
        reserve, taken_nano = self._reserves[account.id], 0
        for hold, held in taken:
            reserve.hold(held.amount_nano, hold.amount_nano, hold.extra_nano, self._clock_s())
            taken_nano += held.amount_nano
        assert account.reserve_nano >= taken_nano, "it covers what was taken in it"
        reserve.amount_nano = account.reserve_nano
        reserve.free_nano = account.free_nano
        if not reserve.amount_nano and reserve.is_idle(self._clock_s()):
            del self._reserves[account.id]

    def reclaim(self, account_id: str) -> None:
        """Another process needs credit: for EXACT_S, keep no more than the requests in flight need."""
        if reserve := self._reserves.get(account_id):
            reserve.exact_until_s = self._clock_s() + EXACT_S

    def pass_time(self) -> list[str]:
        """Let recent peaks decay, and return the accounts whose reserves are idle."""
        now_s = self._clock_s()
        for reserve in self._reserves.values():
            reserve.decay()
        return [account_id for account_id, reserve in self._reserves.items() if reserve.is_idle(now_s)]

    def close(self) -> list[str]:
        """Keep no more than the requests in flight need, until the end. Return the accounts of all reserves."""
        for reserve in self._reserves.values():
            reserve.exact_until_s = math.inf
        return [*self._reserves]

    def __contains__(self, account_id: object) -> bool:
        return account_id in self._reserves

    def lose(self) -> None:
        """Another process took this one for dead and freed all its reserves. Requests continue without."""
        for reserve in self._reserves.values():
            reserve.amount_nano = reserve.free_nano = 0
        self.caps.lose()
