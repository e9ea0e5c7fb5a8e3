"""The moves that wait to be written to the ledger, and the callers that wait for their answers."""

import asyncio

import msgspec

from cadenza.core.records import Outcome
from cadenza.store.batches import Answer, Move
from cadenza.store.ledger import Hold
from cadenza.store.store import StoreUnavailable


class Waiting(msgspec.Struct, frozen=True):
    """A move, and the future that gets its answer once it is durable."""

    move: Move
    answer: "asyncio.Future[Answer]"


class Backlog:
    """First in, first out. It is drained when its moves are written and their answers given."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []
        self._has_more = asyncio.Event()
        self._is_drained = asyncio.Event()
        self._is_drained.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, move: Move) -> "asyncio.Future[Answer]":
        waiting = Waiting(move, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._is_drained.clear()
        self._has_more.set()
        return waiting.answer

    def take(self, count: int) -> list[Waiting]:
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def put_back(self, batch: list[Waiting]) -> None:
        self._waiting[:0] = batch

    def fail_holds(self, error: StoreUnavailable) -> None:
        """Fail every hold that waits and drop it. Outcomes stay."""
        for waiting in self._waiting:
            if isinstance(waiting.move.what, Hold) and not waiting.answer.done():
                waiting.answer.set_exception(error)
        self._waiting = [waiting for waiting in self._waiting if isinstance(waiting.move.what, Outcome)]

    async def wait_for_more(self) -> None:
        await self._has_more.wait()
        self._has_more.clear()

    def wake(self) -> None:
        """End `wait_for_more` though nothing was added."""
        self._has_more.set()

    def set_drained(self) -> None:
        assert not self._waiting
        self._is_drained.set()

    async def drained(self) -> None:
        await self._is_drained.wait()
