"""The queue of moves that wait for the next group commit, by account, with the futures of their callers.

Accounts are served in turn: one whose moves do not all fit into a batch goes to the end of the queue. An account is in
one batch at a time; moves that arrive meanwhile wait for the next one. Accounts that another transaction has locked
are set aside, in a queue of their own.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain

import msgspec

from cadenza.ledger.rules import End, Ended, Hold, HoldResult
from cadenza.store.store import StoreUnavailable

Answer = HoldResult | Ended


class Move(msgspec.Struct):
    """A hold to take or an end to write, and the future that gets its answer once it is durable.

    With neither, it only asks for the reserve to be resized.
    """

    account_id: str
    answer: "asyncio.Future[Answer]"
    hold: Hold | None = None
    end: End | None = None
    process: str = ""  # of an end: the name of this process when the hold was taken
    is_recorded: bool = False  # the outcome is to be counted and logged once it is durable
    is_off_reserve: bool = False  # what is due was taken off the reserve in memory
    looks: int = 0  # how often `Backlog.late` has seen it

    @property
    def is_needed(self) -> bool:
        """Whether it must still be written: an end always, a hold while its caller waits."""
        return self.end is not None or not self.answer.done()


Queue = OrderedDict[str, list[Move]]


class Backlog:
    """The queues of a committer. They are drained when all moves are written and answered."""

    def __init__(self) -> None:
        self._ready: Queue = OrderedDict()
        self._aside: Queue = OrderedDict()  # the longest unserved first; an account stays until it was written
        self._in_flight: dict[str, list[Move]] = {}  # the batches that are being written
        self._probed = 0
        self._drained: asyncio.Future[None] | None = None  # while somebody waits for it

    def __len__(self) -> int:
        """How many moves wait, of accounts that are not set aside."""
        return sum(map(len, self._ready.values()))

    def add(self, move: Move) -> None:
        assert not move.answer.done()
        assert move.hold is None or move.end is None
        self._queue(move.account_id).setdefault(move.account_id, []).append(move)

    def has_moves_of(self, account_id: str) -> bool:
        """Whether a move of the account waits, other than those that are being written."""
        return bool(self._queue(account_id).get(account_id))

    def is_aside(self, account_id: str) -> bool:
        return account_id in self._aside

    def take(self, count: int) -> list[Move]:
        """Take up to `count` moves, of accounts that are not set aside."""
        batch: list[Move] = []
        for account_id in [*self._ready]:
            if account_id not in self._in_flight:
                batch += self._take_account(account_id, count - len(batch))
                if len(batch) >= count:
                    break
        return batch

    def take_alone(self, count: int) -> list[Move]:
        """Take up to `count` moves of the account that was set aside and is unserved for the longest time."""
        waiting = self._waiting_aside()
        return self._take_account(waiting[0], count) if waiting else []

    def take_probes(self, count: int) -> list[Move]:
        """Take one move each of up to `count` accounts that were set aside. The next call continues with others."""
        waiting = self._waiting_aside()
        begin = self._probed % len(waiting) if waiting else 0
        self._probed += count
        chosen = (waiting[begin:] + waiting[:begin])[:count]
        return [move for account_id in chosen for move in self._take_account(account_id, 1, is_served=False)]

    def done(self, batch: Iterable[Move]) -> None:
        """The batch was written, or put back."""
        for move in batch:
            self._in_flight.pop(move.account_id, None)
        if self._drained and self.is_empty:
            self._drained.set_result(None)
            self._drained = None

    def requeue(self, batch: Iterable[Move]) -> None:
        """Put moves back at the head of the queues of their accounts. Holds without a waiting caller are dropped."""
        for move in reversed([move for move in batch if move.is_needed]):
            assert move.account_id in self._in_flight
            queue = self._queue(move.account_id)
            queue.setdefault(move.account_id, []).insert(0, move)
            if queue is self._ready:
                queue.move_to_end(move.account_id, last=False)

    def set_aside(self, account_id: str) -> None:
        """Another transaction has locked the account."""
        if account_id not in self._aside:
            self._aside[account_id] = self._ready.pop(account_id, [])

    def rejoin(self, account_id: str) -> None:
        """The account was written."""
        if moves := self._aside.pop(account_id, None):
            self._ready[account_id] = moves

    def fail_holds(self, error: StoreUnavailable, account_id: str | None = None) -> None:
        """Fail and drop the waiting holds, of one account or of all. Ends stay."""
        for owner in [*self._ready, *self._aside] if account_id is None else [account_id]:
            queue = self._queue(owner)
            kept = [move for move in queue.get(owner, []) if not fail_hold(move, error)]
            if kept or owner in self._aside:
                queue[owner] = kept
            else:
                queue.pop(owner, None)

    def late(self, looks: int) -> list[Move]:
        """Look at all moves, and return those without an answer after more than `looks` calls.

        Calls are counted instead of seconds: after a pause of this process, answers may have arrived unread.
        """
        late_moves = []
        each_once = {id(move): move for move in self._moves()}  # a move that was put back may still be in flight
        for move in each_once.values():
            move.looks += 1
            if move.looks > looks and not move.answer.done():
                late_moves.append(move)
        return late_moves

    @property
    def looks_most(self) -> int:
        """How often `late` has looked at the move that waits longest; 0 if none waits."""
        return max((move.looks for move in self._moves()), default=0)

    def _moves(self) -> Iterable[Move]:
        return chain(*self._ready.values(), *self._aside.values(), *self._in_flight.values())

    @property
    def is_empty(self) -> bool:
        return not self._ready and not self._in_flight and not any(self._aside.values())

    async def drained(self) -> None:
        if not self.is_empty:
            self._drained = self._drained or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def _queue(self, account_id: str) -> Queue:
        return self._aside if account_id in self._aside else self._ready

    def _waiting_aside(self) -> list[str]:
        return [aside for aside, moves in self._aside.items() if moves and aside not in self._in_flight]

    def _take_account(self, account_id: str, count: int, *, is_served: bool = True) -> list[Move]:
        assert account_id not in self._in_flight
        queue = self._queue(account_id)
        taken, waiting = queue[account_id][:count], queue[account_id][count:]
        self._in_flight[account_id] = taken
        if queue is self._ready and not waiting:
            del queue[account_id]
            return taken
        queue[account_id] = waiting
        if is_served:
            queue.move_to_end(account_id)
        return taken


def fail_hold(move: Move, error: StoreUnavailable) -> bool:
    """Fail a hold; False for an end."""
    if move.end:
        return False
    fail(move, error)
    return True


def fail(move: Move, error: Exception) -> None:
    """Fail the future of a move, if it is pending."""
    if not move.answer.done():
        move.answer.set_exception(error)
        move.answer.exception()  # or the event loop would report those that nobody awaits
