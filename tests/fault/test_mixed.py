"""The mixed run: many concurrent requests of every kind over two processes, each of which is killed now and then.

At the end every single charge is what the client got and the upstream counted, and their sum is what the balance lost.
$CADENZA_FAULT_REQUESTS makes it longer; $CADENZA_FAULT_SEED repeats it, except for the instants of the kills.
"""

import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator

import pytest

from tests.fault.conftest import Deploy
from tests.fault.mixed_cases import Case, SentCase, Upstream, expected_cost_nano, make_case
from tests.ledger_reader import Row
from tests.loopback import LoopbackUpstream
from tests.raw_client import Leave, Reply, leave_after, send
from tests.service import Deployment, wait_until

REQUESTS = int(os.environ.get("CADENZA_FAULT_REQUESTS") or 600)
REQUESTS_PER_KILL = 300
AT_ONCE = 32
SIDES = 2
CREDIT_NANO = 10**15
LEAVE_PER_S = 2000  # a client leaves within 30 ms
SLOW_S = 1.0  # long enough to be marked
CHARGED_WITHIN_S = 5.0  # on a busy machine
COMMITS = "cadenza_ledger_commits_total"
pytestmark = pytest.mark.slow(reason="a long mixed run")


class MixedRun:
    """Sends every case to one of two processes, and kills one of them now and then."""

    def __init__(self, deployment: Deployment, cases: dict[int, Case], seed: int) -> None:
        self.sent: list[SentCase] = []
        self.kills = [0] * SIDES
        self.commits = 0
        self._killed_s: list[list[float]] = [[] for _ in range(SIDES)]
        self._deployment = deployment
        self._processes = deployment.start_many(SIDES)
        self._is_up = [asyncio.Event() for _ in range(SIDES)]
        self._cases = cases
        self._random = random.Random(seed)
        self._kill_after = {
            count + self._random.randrange(REQUESTS_PER_KILL // 2)
            for count in range(REQUESTS_PER_KILL // 2, len(cases), REQUESTS_PER_KILL)
        }

    async def send_all(self) -> None:
        for is_up in self._is_up:
            is_up.set()
        waiting = iter(self._cases.values())
        async with asyncio.TaskGroup() as workers:
            for _ in range(AT_ONCE):
                workers.create_task(self._work(waiting))
        self.commits += sum(process.metric(COMMITS) for process in self._processes)

    async def _work(self, waiting: Iterator[Case]) -> None:
        for case in waiting:
            self.sent.append(await self._send(case, case.request.number % SIDES))
            if len(self.sent) in self._kill_after:
                await self._kill(self._random.randrange(SIDES))

    async def _send(self, case: Case, side: int) -> SentCase:
        while True:
            await self._is_up[side].wait()
            kills = self.kills[side]
            if case.kind == "slow":
                asyncio.get_running_loop().call_later(SLOW_S, case.pause.release)
            with contextlib.suppress(ConnectionError):  # killed before it could accept the request: send it again
                reply = await send(self._processes[side].port, self._deployment.key, case.request, leave_of(case))
                return SentCase(case, reply, self.kills[side] > kills, side, time.monotonic())

    async def _kill(self, side: int) -> None:
        await self._is_up[side].wait()
        self.commits += await asyncio.to_thread(self._processes[side].metric, COMMITS)
        self._is_up[side].clear()
        self.kills[side] += 1
        self._killed_s[side].append(time.monotonic())
        self._processes[side].kill()
        self._processes[side] = await asyncio.to_thread(self._deployment.start)
        self._is_up[side].set()

    def kills_soon_after(self, sent: SentCase) -> bool:
        """Whether the process was killed so soon after the client left that it may not have charged the request."""
        return any(0 <= killed_s - sent.ended_s <= CHARGED_WITHIN_S for killed_s in self._killed_s[sent.side])


def leave_of(case: Case) -> Leave | None:
    """When the client of this case leaves: never, after some words, or at a random instant before the first one."""
    if case.kind != "leaves":
        return None
    if case.request.stream and case.at:
        return leave_after(case.before_break)

    async def leave_soon(_reply: Reply) -> bool:
        await asyncio.sleep(case.variant / LEAVE_PER_S)
        return True

    return leave_soon


def audit(run: MixedRun, deployment: Deployment, upstream: Upstream) -> tuple[int, list[str]]:
    """What all requests must have cost together, and the requests that did not cost what they must."""
    rows, total_nano, wrong = deployment.ledger.rows(), 0, []
    for sent in run.sent:
        row = rows.pop(sent.case.request.request_id, None)
        try:
            nano = expected_cost_nano(sent, row, upstream, may_be_lost=run.kills_soon_after(sent))
            assert (row.cost_nano if row else 0) == nano, f"should have cost {nano}"
            total_nano += nano
        except AssertionError as finding:
            wrong.append(f"{finding}: {sent.case.kind} {sent.case.request} at {sent.case.at} {row} {sent.reply.raw!r}")
    assert rows == {}, "ended requests that nobody sent"
    return total_nano, wrong


def summary(run: MixedRun, rows: Iterable[Row], seconds: float, difference_nano: int) -> str:
    swept = sum(row.is_swept for row in rows)
    served = sum(sent.reply.is_done for sent in run.sent)
    broken_off = sum(sent.reply.status in {0, 200} for sent in run.sent) - served
    return (
        f"mixed run: requests={len(run.sent)} served={served} broken_off={broken_off} "
        f"refused={len(run.sent) - served - broken_off} kills={sum(run.kills)} charged_by_mark={swept} "
        f"commits={run.commits} seconds={seconds:.1f} difference_nano={difference_nano}"
    )


@pytest.mark.timeout(600 + REQUESTS // 5)
def test_every_charge_of_the_mixed_run_is_exact(
    deploy: Deploy, upstream: LoopbackUpstream, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every charge is what was counted or delivered, to the nano-dollar, whatever broke in between."""
    deployment = deploy(CREDIT_NANO)
    cases = {number: make_case(seed, number) for number in range(REQUESTS)}
    counting = Upstream(cases, {}, set())
    upstream.always(counting)
    run, began_s = MixedRun(deployment, cases, seed), time.monotonic()
    asyncio.run(run.send_all())
    seconds = time.monotonic() - began_s
    wait_until(lambda: deployment.ledger.reserves == 0, "the return of every reserve")
    total_nano, wrong = audit(run, deployment, counting)
    difference_nano = CREDIT_NANO - deployment.ledger.balance_nano - total_nano
    with capsys.disabled():
        shown = summary(run, deployment.ledger.rows().values(), seconds, difference_nano)
        sys.stdout.write(f"\n{shown} seed={seed}\n")
    assert wrong == [], f"{len(wrong)} wrong with seed {seed}"
    assert difference_nano == 0
    deployment.ledger.check()
