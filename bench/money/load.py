"""The load of a run: wallets, the clients that use them, and the failures and revocations at their times."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from bench.machine import CannotRun
from bench.money.clients import ScriptedClients
from bench.money.deployment import GatewayProcess, GatewayUnderTest, Ledger
from bench.money.reckon import Wallet
from bench.money.schedule import REVOKED_AFTER_S, REVOKED_USE_S, SMALL_USE_S, Failure, FaultPlan

STEADY_WALLETS, STEADY_CLIENTS = 4, 3
SMALL_CLIENTS, REVOKED_CLIENTS = 8, 3
WARM_CLIENTS, WARM_S = 6, 6.0  # before the load: first requests are slow
LARGE_NANO = 100 * 10**9
SMALL_NANO = 4_000_000
SHORT_WORDS = 20


class Purse(msgspec.Struct):
    """A wallet while the run goes on. `words` is shared by its clients, so that no two prompts are alike."""

    name: str
    key: str
    budget_nano: int
    words: Iterator[int]
    is_steady: bool
    revoked_s: float | None = None
    revoking_s: float = 0.0

    def wallet(self, ledger: Ledger) -> Wallet:
        spent_nano = ledger.spent_nano.get(self.name, 0)
        return Wallet(self.name, self.budget_nano, spent_nano, self.revoked_s, self.revoking_s, self.is_steady)


class ScriptedLoad:
    """The load of one gateway. `began_s` and `ended_s` are those of the plan, without the warm-up."""

    def __init__(self, plan: FaultPlan, under_test: GatewayUnderTest, clients: ScriptedClients) -> None:
        self.purses = list[Purse]()
        self.began_s = self.ended_s = 0.0
        has_network = under_test.processes[0].store_link is not None
        self.failures = [one for one in plan.failures if has_network or not one.is_partition]
        self._plan = plan
        self._under_test = under_test
        self._clients = clients

    async def run(self) -> None:
        plan = self._plan
        steady = await self._open("steady", LARGE_NANO, STEADY_WALLETS)
        small = await self._open("small", SMALL_NANO, len(plan.small_s))
        revoked = await self._open("revoked", LARGE_NANO, len(plan.revoked_s))
        [warm] = await self._open("warm", LARGE_NANO, 1)
        await self._ask(warm, WARM_CLIENTS, time.monotonic() + WARM_S, is_eager=True)
        self.began_s = time.monotonic()
        self.ended_s = self.began_s + plan.load_s
        tasks: list[Awaitable[None]] = [self._ask(one, STEADY_CLIENTS, self.ended_s, is_eager=False) for one in steady]
        tasks += [self._use_small(one, at_s) for one, at_s in zip(small, plan.small_s, strict=True)]
        for one, at_s in zip(revoked, plan.revoked_s, strict=True):
            tasks += [self._use_revoked(one, at_s), self._revoke(one, at_s)]
        tasks += [fail(self._under_test.processes, failure) for failure in self.failures]
        await asyncio.gather(*tasks)

    async def _open(self, name: str, budget_nano: int, count: int) -> list[Purse]:
        opened = []
        for number in range(count):
            key = await asyncio.to_thread(self._under_test.create, f"{name}-{number}", budget_nano)
            words = itertools.count(SHORT_WORDS)
            opened.append(Purse(f"{name}-{number}", key, budget_nano, words, is_steady=name == "steady"))
        self.purses += opened
        return opened

    async def _ask(self, purse: Purse, count: int, until_s: float, *, is_eager: bool) -> None:
        ask = self._clients.ask_until
        asking = [ask(purse.name, purse.key, purse.words, until_s, is_eager=is_eager) for _ in range(count)]
        await asyncio.gather(*asking)

    async def _use_small(self, purse: Purse, at_s: float) -> None:
        await asyncio.sleep(at_s)
        await self._ask(purse, SMALL_CLIENTS, time.monotonic() + SMALL_USE_S, is_eager=True)

    async def _use_revoked(self, purse: Purse, at_s: float) -> None:
        await asyncio.sleep(at_s - REVOKED_USE_S)
        until_s = time.monotonic() + REVOKED_USE_S + REVOKED_AFTER_S
        await self._ask(purse, REVOKED_CLIENTS, until_s, is_eager=True)

    async def _revoke(self, purse: Purse, at_s: float) -> None:
        await asyncio.sleep(at_s)
        asked_s = time.monotonic()
        while purse.revoked_s is None and time.monotonic() < self.ended_s:
            with contextlib.suppress(CannotRun):  # it is not done: an operator would try again
                await asyncio.to_thread(self._under_test.revoke, purse.name)
                purse.revoked_s = time.monotonic()
            purse.revoking_s = time.monotonic() - asked_s


async def fail(processes: Sequence[GatewayProcess], failure: Failure) -> None:
    """Begin the failure at its time, and end it."""
    await asyncio.sleep(failure.at_s)
    hit = processes if failure.kind == "kill all" else [processes[failure.process % len(processes)]]
    begin, end = ACTIONS[failure.kind]
    await asyncio.gather(*(asyncio.to_thread(begin, process) for process in hit))
    await asyncio.sleep(failure.lasts_s)
    await asyncio.gather(*(asyncio.to_thread(end, process) for process in hit))


Action = Callable[[GatewayProcess], None]
ACTIONS: dict[str, tuple[Action, Action]] = {
    "kill": (GatewayProcess.kill, GatewayProcess.start),
    "kill all": (GatewayProcess.kill, GatewayProcess.start),
    "pause": (GatewayProcess.pause, GatewayProcess.resume),
    "drop": (lambda process: process.link.stall(), lambda process: process.link.resume()),
    "refuse": (lambda process: process.link.cut(), lambda process: process.link.restore()),
}
