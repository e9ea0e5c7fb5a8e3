"""The moves that wait to be written to the ledger, by account, and the callers that wait for their answers.

An account is in one batch at a time: what comes for it meanwhile waits for the next.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from cadenza.core.ledger import End, Ended, Hold, Taken
from cadenza.store.store import StoreUnavailable

Answer = Taken | Ended


class Waiting(msgspec.Struct):
    """A hold to take or a request that ended, and the future that gets its answer once it is durable.

    Neither: the reserve is only to be given the right size.
    """

    account_id: str
    answer: "asyncio.Future[Answer]"
    hold: Hold | None = None
    end: End | None = None
    is_final: bool = False  # no other process is asked for credit any more
    is_recorded: bool = False  # the outcome is a request's own: it is counted and logged once it is durable
    is_off_reserve: bool = False  # what is due was taken off the reserve in memory
    process: str = ""  # of an end: the name of this process when the hold was taken


class Backlog:
    """First in, first out by account. It is drained when its moves are written and their answers given."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, list[Waiting]] = OrderedDict()
        self._count = 0
        self._busy: set[str] = set()  # accounts of the batches that are being written
        self._alone: set[str] = set()  # accounts that were locked by somebody else: their batches wait for the lock
        self._has_more = asyncio.Event()
        self._is_drained = asyncio.Event()
        self._is_drained.set()

    def __len__(self) -> int:
        return self._count

    def add(self, waiting: Waiting) -> "asyncio.Future[Answer]":
        self._waiting.setdefault(waiting.account_id, []).append(waiting)
        self._count += 1
        self._is_drained.clear()
        self._has_more.set()
        return waiting.answer

    def take(self, count: int) -> list[Waiting]:
        """Take up to so many moves, of accounts that are not busy and need not be alone."""
        batch: list[Waiting] = []
        for account_id in [*self._waiting]:
            if account_id not in self._busy and account_id not in self._alone:
                batch += self._take_account(account_id, count - len(batch))
                if len(batch) >= count:
                    break
        return batch

    def take_alone(self, count: int) -> list[Waiting]:
        """Take up to so many moves of one account that must be alone."""
        for account_id in self._alone:
            if account_id in self._waiting and account_id not in self._busy:
                return self._take_account(account_id, count)
        return []

    def done(self, batch: Iterable[Waiting]) -> None:
        """The batch was written, or put back."""
        for waiting in batch:
            self._busy.discard(waiting.account_id)
        if self._waiting:
            self._has_more.set()
        elif not self._busy:
            self._is_drained.set()

    def put_back(self, batch: Iterable[Waiting]) -> None:
        for waiting in reversed(list(batch)):
            self._waiting.setdefault(waiting.account_id, []).insert(0, waiting)
            self._count += 1
            self._waiting.move_to_end(waiting.account_id, last=False)

    def set_aside(self, account_id: str) -> None:
        """Another transaction has locked the account: it must be alone from now on."""
        self._alone.add(account_id)

    def rejoin(self, account_id: str) -> None:
        self._alone.discard(account_id)

    def fail_holds(self, error: StoreUnavailable, account_id: str | None = None) -> None:
        """Fail the holds that wait, of one account or of all, and drop them. Ends stay."""
        for one in [*self._waiting] if account_id is None else [account_id]:
            waiting_for_one = self._waiting.get(one, [])
            kept = [waiting for waiting in waiting_for_one if not fail_hold(waiting, error)]
            self._count -= len(waiting_for_one) - len(kept)
            if kept:
                self._waiting[one] = kept
            else:
                self._waiting.pop(one, None)

    async def wait_for_more(self) -> None:
        await self._has_more.wait()
        self._has_more.clear()

    def wake(self) -> None:
        """End `wait_for_more` though nothing was added."""
        self._has_more.set()

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._busy

    async def drained(self) -> None:
        await self._is_drained.wait()

    def _take_account(self, account_id: str, count: int) -> list[Waiting]:
        self._busy.add(account_id)
        waiting = self._waiting[account_id]
        taken, rest = waiting[:count], waiting[count:]
        if rest:
            self._waiting[account_id] = rest
        else:
            del self._waiting[account_id]
        self._count -= len(taken)
        return taken


def fail_hold(waiting: Waiting, error: StoreUnavailable) -> bool:
    """Fail a hold; False for an end."""
    if waiting.end:
        return False
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
        if waiting.hold is None:
            waiting.answer.exception()  # nobody awaits a change of size
    return True
