"""One run: the load, the failures and the revocations at their times, then the wait, then what was charged."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec

from bench.machine import CannotRun
from bench.money.clients import ScriptedClients
from bench.money.deployment import GatewayProcess, GatewayUnderTest, MoneyGateway
from bench.money.reckon import Evidence, Wallet, reckon
from bench.money.report import GatewayResult
from bench.money.schedule import REVOKED_AFTER_S, REVOKED_USE_S, SMALL_USE_S, Failure, FaultPlan
from bench.money.upstream import RecordingUpstream

STEADY_WALLETS, STEADY_CLIENTS = 4, 4
SMALL_CLIENTS, REVOKED_CLIENTS = 8, 3
LARGE_NANO = 100 * 10**9
SMALL_NANO = 4_000_000
SHORT_WORDS = 20


class Purse(msgspec.Struct):
    """A wallet while the run goes on. `words` is shared by its clients, so that no two prompts are alike."""

    name: str
    key: str
    budget_nano: int
    words: Iterator[int]
    revoked_s: float | None = None
    revoking_s: float = 0.0


class Run:
    """One gateway under one plan."""

    def __init__(self, gateway: MoneyGateway, plan: FaultPlan, seed: int, output: Path) -> None:
        self._gateway = gateway
        self._plan = plan
        self._seed = seed
        self._evidence_file = output / f"{gateway.name}.json"
        self._upstream = RecordingUpstream()
        self._purses = list[Purse]()

    async def measure(self, folder: Path) -> GatewayResult:
        version = await asyncio.to_thread(self._gateway.install)
        async with self._upstream.running() as port:
            context = self._gateway.running(folder, port)
            under_test = await asyncio.to_thread(context.__enter__)
            try:
                return await self._measure(under_test, version)
            finally:
                await asyncio.to_thread(context.__exit__, None, None, None)

    async def _measure(self, under_test: GatewayUnderTest, version: str) -> GatewayResult:
        plan, clients = self._plan, ScriptedClients(self._seed, under_test.address)
        steady = [await self._open(under_test, f"steady-{number}", LARGE_NANO) for number in range(STEADY_WALLETS)]
        small = [await self._open(under_test, f"small-{number}", SMALL_NANO) for number in range(len(plan.small_s))]
        revoked = [
            await self._open(under_test, f"revoked-{number}", LARGE_NANO) for number in range(len(plan.revoked_s))
        ]
        began_s = time.monotonic()
        ended_s = began_s + plan.load_s

        async def use(purse: Purse, count: int, from_s: float, for_s: float, *, is_eager: bool) -> None:
            await asyncio.sleep(from_s)
            until_s = min(ended_s, time.monotonic() + for_s)
            asking = [
                clients.ask_until(purse.name, purse.key, purse.words, until_s, is_eager=is_eager) for _ in range(count)
            ]
            await asyncio.gather(*asking)

        async def revoke(purse: Purse, at_s: float) -> None:
            await asyncio.sleep(at_s)
            asked_s = time.monotonic()
            while purse.revoked_s is None and time.monotonic() < ended_s:
                with contextlib.suppress(CannotRun):  # it is not done: an operator would try again
                    await asyncio.to_thread(under_test.revoke, purse.name)
                    purse.revoked_s = time.monotonic()
                purse.revoking_s = time.monotonic() - asked_s

        tasks: list[Awaitable[None]] = [use(one, STEADY_CLIENTS, 0, plan.load_s, is_eager=False) for one in steady]
        tasks += [
            use(one, SMALL_CLIENTS, at, SMALL_USE_S, is_eager=True) for one, at in zip(small, plan.small_s, strict=True)
        ]
        for purse, at_s in zip(revoked, plan.revoked_s, strict=True):
            tasks.append(revoke(purse, at_s))
            tasks.append(
                use(purse, REVOKED_CLIENTS, at_s - REVOKED_USE_S, REVOKED_USE_S + REVOKED_AFTER_S, is_eager=True)
            )
        failures = [one for one in plan.failures if not one.is_partition or under_test.processes[0].store_link]
        tasks += [_fail(under_test, failure) for failure in failures]
        await asyncio.gather(*tasks)
        await asyncio.sleep(self._gateway.settle_s)
        ledger = await asyncio.to_thread(under_test.read)
        wallets = [
            Wallet(
                one.name,
                one.budget_nano,
                ledger.spent_nano.get(one.name, 0),
                one.revoked_s,
                one.revoking_s,
                one in steady,
            )
            for one in self._purses
        ]
        evidence = Evidence(wallets, clients.asked, self._upstream.served, ledger.billed, began_s, ended_s)
        self._evidence_file.write_bytes(msgspec.json.encode(evidence))
        return GatewayResult(
            name=self._gateway.name,
            version=version,
            processes=len(under_test.processes),
            settings=under_test.settings,
            promises=self._gateway.promises,
            failures=failures,
            reckoning=reckon(evidence),
            own_check=ledger.own_check,
            served_per_s=served_per_s(evidence),
        )

    async def _open(self, under_test: GatewayUnderTest, name: str, budget_nano: int) -> Purse:
        key = await asyncio.to_thread(under_test.create, name, budget_nano)
        self._purses.append(Purse(name, key, budget_nano, itertools.count(SHORT_WORDS)))
        return self._purses[-1]


async def _fail(under_test: GatewayUnderTest, failure: Failure) -> None:
    """Begin the failure at its time, and end it."""
    await asyncio.sleep(failure.at_s)
    hit = (
        under_test.processes
        if failure.kind == "kill all"
        else [under_test.processes[failure.process % len(under_test.processes)]]
    )
    begin, end = ACTIONS[failure.kind]
    await asyncio.gather(*(asyncio.to_thread(begin, process) for process in hit))
    await asyncio.sleep(failure.lasts_s)
    await asyncio.gather(*(asyncio.to_thread(end, process) for process in hit))


def _drop(process: GatewayProcess) -> None:
    assert process.store_link
    process.store_link.stall()


def _forward(process: GatewayProcess) -> None:
    assert process.store_link
    process.store_link.resume()


def _refuse(process: GatewayProcess) -> None:
    assert process.store_link
    process.store_link.cut()


def _accept(process: GatewayProcess) -> None:
    assert process.store_link
    process.store_link.restore()


Action = Callable[[GatewayProcess], None]
ACTIONS: dict[str, tuple[Action, Action]] = {
    "kill": (GatewayProcess.kill, GatewayProcess.start),
    "kill all": (GatewayProcess.kill, GatewayProcess.start),
    "pause": (GatewayProcess.pause, GatewayProcess.resume),
    "drop": (_drop, _forward),
    "refuse": (_refuse, _accept),
}


def served_per_s(evidence: Evidence) -> list[int]:
    """The whole replies in each second of the load, to steady clients."""
    steady = {wallet.name for wallet in evidence.wallets if wallet.is_steady}
    counts = [0] * int(evidence.ended_s - evidence.began_s)
    for one in evidence.asked:
        second = int(one.ended_s - evidence.began_s)
        if one.ending == "whole" and one.wallet in steady and second < len(counts):
            counts[second] += 1
    return counts
