"""The mixed run over a fleet: many concurrent requests of every kind through nginx, while gateways are killed.

At the end every single charge is what the client got and the upstream counted, and their sum is what the balance lost.
$CADENZA_FAULT_REQUESTS makes it longer; $CADENZA_FAULT_SEED repeats it, except for the instants of the kills.
"""

import asyncio
import os
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from tests.fault.mixed_cases import TURNED_AWAY, Case, SentCase, Upstream, check_answer, make_case
from tests.fault.test_mixed import SLOW_S, leave_of
from tests.fleet.cluster import Cluster
from tests.fleet.fleet import Fleet, FleetSpec, running_fleet
from tests.fleet.ledger import Row
from tests.fleet.requests import Clients
from tests.ledger_reader import cost_nano, delivered_cost_nano, left_cost_nano, usage_cost_nano
from tests.loopback import LoopbackUpstream
from tests.raw_client import send
from tests.tokens import count_tokens

REQUESTS = int(os.environ.get("CADENZA_FAULT_REQUESTS") or 300)
REQUESTS_PER_KILL = 300
AT_ONCE = 32
CREDIT_NANO = 10**15
NOTICED_S = 4.0  # until nginx no longer asks a gateway that was killed, on a busy machine
pytestmark = pytest.mark.slow(reason="a long mixed run")


class MixedRun:
    """Sends every case through nginx, and kills a gateway now and then."""

    def __init__(self, clients: Clients, cases: dict[int, Case], seed: int) -> None:
        self.sent = list[SentCase]()
        self.kills_s = list[float]()
        self._clients = clients
        self._cases = cases
        self._random = random.Random(seed)
        self._is_killing = asyncio.Lock()
        self._kill_after = {
            count + self._random.randrange(REQUESTS_PER_KILL // 2)
            for count in range(REQUESTS_PER_KILL // 2, len(cases), REQUESTS_PER_KILL)
        }

    async def send_all(self) -> None:
        waiting = iter(self._cases.values())
        async with asyncio.TaskGroup() as workers:
            for _ in range(AT_ONCE):
                workers.create_task(self._work(waiting))

    async def _work(self, waiting: Iterator[Case]) -> None:
        for case in waiting:
            self.sent.append(await self._send(case))
            if len(self.sent) in self._kill_after:
                await self._kill(self._random.randrange(len(self._clients.fleet.gateways)))

    async def _send(self, case: Case) -> SentCase:
        began_s = time.monotonic()
        if case.kind == "slow":
            asyncio.get_running_loop().call_later(SLOW_S, case.pause.release)
        reply = await send(self._clients.fleet.port, self._clients.key, case.request, leave_of(case))
        is_killed = any(kill_s > began_s - NOTICED_S for kill_s in self.kills_s)
        return SentCase(case, reply, is_killed=is_killed, ended_s=time.monotonic())

    def with_later_kills(self) -> list[SentCase]:
        """A kill right after a client left may come before what it got was charged."""
        return [
            msgspec.structs.replace(sent, is_killed=True)
            if any(0 <= kill_s - sent.ended_s < NOTICED_S for kill_s in self.kills_s)
            else sent
            for sent in self.sent
        ]

    async def _kill(self, number: int) -> None:
        async with self._is_killing:
            gateway = self._clients.fleet.gateways[number]
            self.kills_s.append(time.monotonic())
            gateway.process.kill()
            self.kills_s.append(time.monotonic())
            await asyncio.to_thread(gateway.start)


def expected_cost_nano(sent: SentCase, row: Row | None, upstream: Upstream) -> int:
    """What the request must have cost, computed only from what the client saw and what the upstream counted."""
    case, reply, class_id = sent.case, sent.reply, sent.case.request.class_id
    counted = upstream.counted.get(case.request.number)
    told = row.status if row and sent.is_killed and not reply.raw else reply.status  # a kill kept it from the client
    if told in TURNED_AWAY and case.request.number not in upstream.asked:
        return 0
    if row is None:
        assert sent.is_killed or (case.kind == "leaves" and not reply.raw), "a request that did not end in the ledger"
        assert not reply.is_done, "a complete reply without a durable charge"
        return 0
    if row.is_swept:
        assert sent.is_killed or case.kind == "leaves", "a request of a living process was swept"
        assert not reply.is_done, "a complete reply without a durable charge"
        assert row.completion_tokens <= count_tokens(reply.text), "more tokens are marked than were delivered"
        return cost_nano(class_id, row.prompt_tokens, row.completion_tokens) if row.completion_tokens else 0
    if not sent.is_killed:
        check_answer(case, reply)
    if case.kind == "leaves" and (case.request.number in upstream.asked or row.cost_nano > 0):
        return left_cost_nano(class_id, case.request.content, reply.chunks)
    if case.is_whole and counted:
        return usage_cost_nano(class_id, counted)
    return delivered_cost_nano(class_id, case.request.content, case.words if case.is_whole else reply.chunks)


def audit(run: MixedRun, clients: Clients, upstream: Upstream) -> tuple[int, list[str]]:
    """What all requests must have cost together, and the requests that did not cost what they must."""
    rows, total_nano, wrong = clients.fleet.ledger.rows(), 0, list[str]()
    for sent in run.with_later_kills():
        found = rows.pop(sent.case.request.request_id, [])
        row = found[0] if found else None
        try:
            assert len(found) <= 1, "more than one metering row"
            nano = expected_cost_nano(sent, row, upstream)
            assert (row.cost_nano if row else 0) == nano, f"should have cost {nano}"
            total_nano += nano
        except AssertionError as finding:
            wrong.append(f"{finding}: {sent.case.kind} {sent.case.request} at {sent.case.at} {row} {sent.reply.raw!r}")
    assert rows == {}, "charges without a request"
    return total_nano, wrong


@pytest.fixture
def seed() -> int:
    """$CADENZA_FAULT_SEED replays a run; pytest shows this line when the test fails."""
    chosen = int(os.environ.get("CADENZA_FAULT_SEED") or secrets.randbits(32))
    sys.stdout.write(f"CADENZA_FAULT_SEED={chosen}\n")
    return chosen


@pytest.fixture
def fleet(cluster: Cluster, fleet_upstream: LoopbackUpstream) -> Iterator[Fleet]:
    with running_fleet(cluster, FleetSpec(fleet_upstream.base_url)) as running:
        yield running


@pytest.mark.timeout(600 + REQUESTS // 5)
def test_every_charge_of_the_mixed_run_is_exact(
    fleet: Fleet, upstream: LoopbackUpstream, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every charge is what was counted or delivered, to the nano-dollar, whatever broke in between."""
    cases = {number: make_case(seed, number) for number in range(REQUESTS)}
    counting = Upstream(cases, {}, set())
    upstream.always(counting)
    clients = Clients(fleet, CREDIT_NANO)
    run, began_s = MixedRun(clients, cases, seed), time.monotonic()
    asyncio.run(run.send_all())
    seconds = time.monotonic() - began_s
    fleet.ledger.wait_until_nothing_is_held()
    total_nano, wrong = audit(run, clients, counting)
    difference_nano = CREDIT_NANO - fleet.ledger.balance_nano(clients.email) - total_nano
    served = sum(sent.reply.is_done for sent in run.sent)
    with capsys.disabled():
        statuses = sorted(Counter(sent.reply.status for sent in run.sent).items())
        shown = f"requests={len(run.sent)} {served=} {statuses=} kills={len(run.kills_s) // 2} seconds={seconds:.1f}"
        sys.stdout.write(f"\nmixed run over a fleet: {shown} difference_nano={difference_nano} seed={seed}\n")
    assert wrong == [], f"{len(wrong)} wrong with seed {seed}"
    assert difference_nano == 0
    fleet.check()
