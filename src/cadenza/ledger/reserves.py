"""The reserves of this process in memory: credit that can be held without asking the store.

The invariant: memory never has more than the store. A batch that may shrink a reserve takes the difference away before
it is written, and what it adds is used only once it is durable. All of it runs on the event loop's thread. A reserve is
kept after its requests have ended, because its account will probably be back; another process that needs the credit
asks for it. Keys with a spend cap hold credit in the store (`CapHolds`).
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from cadenza.ledger.cap_holds import CapHolds
from cadenza.ledger.rules import AMPLE_TIMES, RESERVE_SHARE, Demand, HeldCredit, Hold, LockedAccount

KEPT_MAX = 10_000  # beyond so many reserves, those unused for longest are given back
RETURNED_MAX = 256  # reserves given back by one `pass_time` for their age: requests do not wait behind more
DECAY_S = 0.25  # how often the recent peaks decay
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
    peak_s: float = 0.0  # when `peak` decayed last
    usual_s: float = 0.0  # when `usual_nano` and `extra_nano` did
    exact_until_s: float = 0.0
    idle_s: float = 0.0  # a reserve that is unused for this long is given back

    @property
    def spare_nano(self) -> int:
        return self.amount_nano - self.in_use_nano

    def hold(self, held_nano: int, usual_nano: int, extra_nano: int, now_s: float) -> None:
        """Hold `held_nano` for a request that asked for `usual_nano`, and for `extra_nano` if its answer is longer."""
        if now_s - self.usual_s >= DECAY_S:
            self._decay(now_s, has_hold=True)
        self.in_use_nano += held_nano
        self.requests += 1
        if self.requests > self.peak:
            self.peak = self.requests
        if usual_nano > self.usual_nano:
            self.usual_nano = usual_nano
        if extra_nano > self.extra_nano:
            self.extra_nano = extra_nano
        self.used_s = now_s

    def _decay(self, now_s: float, *, has_hold: bool) -> None:
        """Let the recent peaks decay within seconds: by a half or a quarter every DECAY_S.

        Without a new hold, the last ones stay what is usual: however late a request is charged, its account is judged
        by what it held.
        """
        times = int((now_s - self.peak_s) / DECAY_S)
        self.peak_s += times * DECAY_S
        self.peak = max(self.requests, self.peak >> times)
        if has_hold:
            times = int((now_s - self.usual_s) / DECAY_S)
            self.usual_s += times * DECAY_S
            self.usual_nano = math.ceil(self.usual_nano * 0.75**times)
            self.extra_nano = math.ceil(self.extra_nano * 0.75**times)

    def demand(self, now_s: float, charged_nano: int, covered_nano: int, new: Sequence[Hold]) -> Demand:
        """What to keep and to ask for in a batch that charges `charged_nano` and takes these holds.

        `covered_nano` is what the holds of the ended requests cover of the charges. The rest takes nothing that other
        requests use.

        Credit that is not kept is no longer used from here on. Before new holds are taken, everything that is not in
        use is given back, so that they are judged by all of the account's free credit.
        """
        assert 0 <= covered_nano <= charged_nano
        assert covered_nano <= self.in_use_nano, "what is due and held stays in use until it is charged"
        if now_s - self.peak_s >= DECAY_S or new:
            self._decay(now_s, has_hold=bool(new))
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
        return not self.requests and not self.in_use_nano and now_s - self.used_s >= self.idle_s


class Reserves:
    """One reserve for each recently used account, in the order of their last use."""

    def __init__(self, clock_s: Callable[[], float], idle_s: float) -> None:
        self.caps = CapHolds()
        self._clock_s = clock_s
        self._idle_s = idle_s
        self._reserves: OrderedDict[str, Reserve] = OrderedDict()

    def __len__(self) -> int:
        return len(self._reserves)

    @property
    def in_use_nano(self) -> int:
        return sum(reserve.in_use_nano for reserve in self._reserves.values())

    @property
    def spare_nano(self) -> int:
        return sum(reserve.spare_nano for reserve in self._reserves.values())

    def hold(self, hold: Hold) -> HeldCredit | None:
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
        self._reserves.move_to_end(hold.account_id)
        return HeldCredit(amount_nano, hold.allowance_tokens + hold.extra_tokens)

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
            now_s = self._clock_s()
            reserve = self._reserves[account_id] = Reserve(
                used_s=now_s, peak_s=now_s, usual_s=now_s, idle_s=self._idle_s
            )
        return reserve.demand(self._clock_s(), charged_nano, covered_nano, new)

    def written(self, account: LockedAccount, taken: Sequence[tuple[Hold, HeldCredit]]) -> None:
        """A batch is durable: this is the account now, and these holds were taken."""
        reserve, taken_nano = self._reserves[account.id], 0
        for hold, held in taken:
            reserve.hold(held.amount_nano, hold.amount_nano, hold.extra_nano, self._clock_s())
            taken_nano += held.amount_nano
            self._reserves.move_to_end(account.id)
        assert account.reserve_nano >= taken_nano, "it covers what was taken in it"
        reserve.amount_nano = account.reserve_nano
        reserve.free_nano = account.free_nano
        is_unused = not reserve.amount_nano and not reserve.in_use_nano and not reserve.requests
        if is_unused and self._clock_s() >= reserve.exact_until_s:
            del self._reserves[account.id]

    def reclaim(self, account_id: str) -> None:
        """Another process needs credit: for EXACT_S, keep no more than the requests in flight need."""
        if reserve := self._reserves.get(account_id):
            reserve.exact_until_s = self._clock_s() + EXACT_S

    def pass_time(self) -> list[str]:
        """The accounts whose reserves are to be given back: those that are idle, and those unused for longest."""
        now_s, excess = self._clock_s(), len(self._reserves) - KEPT_MAX
        account_ids: list[str] = []
        for account_id, reserve in self._reserves.items():
            if len(account_ids) < excess:
                reserve.used_s = -math.inf
            elif now_s - reserve.used_s < self._idle_s or len(account_ids) >= RETURNED_MAX:
                break
            if reserve.is_idle(now_s):
                account_ids.append(account_id)
        return account_ids

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
