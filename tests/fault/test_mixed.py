"""The mixed run: many requests at once of every kind and fate over two processes, each of them killed now and then.

In the end every single charge is what the client got and the upstream counted, and their sum is what the balance fell.
$CADENZA_FAULT_REQUESTS makes it longer, $CADENZA_FAULT_SEED the same again (but for the instants of the kills).
"""

import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator

import pytest

from tests.fault.books import Row
from tests.fault.conftest import StartFleet
from tests.fault.fleet import Fleet, wait_until
from tests.fault.mixed import Case, Flight, Upstream, due_nano, make_case
from tests.fault.wire import Leave, Seen, leave_after, send
from tests.loopback import LoopbackUpstream

REQUESTS = int(os.environ.get("CADENZA_FAULT_REQUESTS") or 1500)
REQUESTS_PER_KILL = 500
AT_ONCE = 32
SIDES = 2
CREDIT_NANO = 10**15
LEAVE_PER_S = 2000  # a case leaves within 30 ms
SLOW_S = 0.4  # long enough to be marked
COMMITS = "cadenza_ledger_commits_total"


class Run:
    """Sends every case to one of the two sides, and kills a side now and then."""

    def __init__(self, fleet: Fleet, cases: dict[int, Case], seed: int) -> None:
        self.flights: list[Flight] = []
        self.kills = [0] * SIDES
        self.commits = 0
        self._fleet = fleet
        self._nodes = fleet.start_many(SIDES)
        self._is_up = [asyncio.Event() for _ in range(SIDES)]
        self._cases = cases
        self._dice = random.Random(seed)
        self._kill_after = {
            count + self._dice.randrange(REQUESTS_PER_KILL // 2)
            for count in range(REQUESTS_PER_KILL // 2, len(cases), REQUESTS_PER_KILL)
        }

    async def fly(self) -> None:
        for is_up in self._is_up:
            is_up.set()
        waiting = iter(self._cases.values())
        async with asyncio.TaskGroup() as workers:
            for _ in range(AT_ONCE):
                workers.create_task(self._work(waiting))
        self.commits += sum(node.metric(COMMITS) for node in self._nodes)

    async def _work(self, waiting: Iterator[Case]) -> None:
        for case in waiting:
            self.flights.append(await self._send(case, case.ask.number % SIDES))
            if len(self.flights) in self._kill_after:
                await self._kill(self._dice.randrange(SIDES))

    async def _send(self, case: Case, side: int) -> Flight:
        while True:
            await self._is_up[side].wait()
            kills = self.kills[side]
            if case.kind == "slow":
                asyncio.get_running_loop().call_later(SLOW_S, case.pause.release)
            with contextlib.suppress(ConnectionError):  # killed before it could have known of the request: once more
                seen = await send(self._nodes[side].port, self._fleet.key, case.ask, leave_of(case))
                return Flight(case, seen, is_killed=self.kills[side] > kills)

    async def _kill(self, side: int) -> None:
        await self._is_up[side].wait()
        self.commits += await asyncio.to_thread(self._nodes[side].metric, COMMITS)
        self._is_up[side].clear()
        self.kills[side] += 1
        self._nodes[side].kill()
        self._nodes[side] = await asyncio.to_thread(self._fleet.start)
        self._is_up[side].set()


def leave_of(case: Case) -> Leave | None:
    """When the client of this case leaves: never, after some words, or at some instant before there is one."""
    if case.kind != "leaves":
        return None
    if case.ask.stream and case.at:
        return leave_after(case.before_break)

    async def is_time(_seen: Seen) -> bool:
        await asyncio.sleep(case.fate / LEAVE_PER_S)
        return True

    return is_time


def audit(run: Run, fleet: Fleet, upstream: Upstream) -> tuple[int, list[str]]:
    """What all requests must have cost together, and which of them did not cost what they must."""
    rows, total_nano, wrong = fleet.books.rows(), 0, []
    for flight in run.flights:
        row = rows.pop(flight.case.ask.shown_id, None)
        try:
            nano = due_nano(flight, row, upstream)
            assert (row.cost_nano if row else 0) == nano, f"should have cost {nano}"
            total_nano += nano
        except AssertionError as finding:
            wrong.append(
                f"{finding}: {flight.case.kind} {flight.case.ask} at {flight.case.at} {row} {flight.seen.raw!r}"
            )
    assert rows == {}, "a hold of no request"
    return total_nano, wrong


def show(run: Run, rows: Iterable[Row], seconds: float, difference_nano: int) -> str:
    swept = [row.marked_tokens > 0 for row in rows if row.is_swept]
    served = sum(flight.seen.is_done for flight in run.flights)
    broken_off = sum(flight.seen.status in {0, 200} for flight in run.flights) - served
    return (
        f"mixed run: requests={len(run.flights)} served={served} broken_off={broken_off} "
        f"refused={len(run.flights) - served - broken_off} kills={sum(run.kills)} swept={len(swept)} "
        f"of_them_marked={sum(swept)} commits={run.commits} seconds={seconds:.1f} difference_nano={difference_nano}"
    )


@pytest.mark.timeout(120 + REQUESTS // 20)
def test_mixed_run_ends_in_books_that_agree(
    make_fleet: StartFleet, upstream: LoopbackUpstream, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every charge is what was counted or delivered, to the nano-dollar, whatever broke in between."""
    fleet = make_fleet(CREDIT_NANO)
    cases = {number: make_case(seed, number) for number in range(REQUESTS)}
    counting = Upstream(cases, {}, set())
    upstream.always(counting)
    run, began_s = Run(fleet, cases, seed), time.monotonic()
    asyncio.run(run.fly())
    seconds = time.monotonic() - began_s
    wait_until(lambda: fleet.books.open_holds == 0, "the end of every hold")
    total_nano, wrong = audit(run, fleet, counting)
    difference_nano = CREDIT_NANO - fleet.books.balance_nano - total_nano
    with capsys.disabled():
        shown = show(run, fleet.books.rows().values(), seconds, difference_nano)
        sys.stdout.write(f"\n{shown} seed={seed}\n")
    assert wrong == [], f"{len(wrong)} wrong with seed {seed}"
    assert difference_nano == 0
    fleet.books.prove()
    fleet.cli("ledger", "check")
