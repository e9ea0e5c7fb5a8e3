"""One run: the load with its failures, then the wait, then what was charged."""

import asyncio
from pathlib import Path

import msgspec

from bench.money.clients import ScriptedClients
from bench.money.deployment import GatewayUnderTest, MoneyGateway
from bench.money.load import ScriptedLoad
from bench.money.reckon import Evidence, reckon
from bench.money.report import GatewayResult
from bench.money.schedule import FaultPlan
from bench.money.upstream import RecordingUpstream


class Run:
    """One gateway under one plan. All records of it are written to the folder `output`."""

    def __init__(self, gateway: MoneyGateway, plan: FaultPlan, seed: int, output: Path) -> None:
        self._gateway = gateway
        self._plan = plan
        self._seed = seed
        self._evidence_file = output / f"{gateway.name}.json"

    async def measure(self, folder: Path) -> GatewayResult:
        version = await asyncio.to_thread(self._gateway.install)
        upstream = RecordingUpstream()
        with upstream.running() as port:
            context = self._gateway.running(folder, port)
            under_test = await asyncio.to_thread(context.__enter__)
            try:
                return await self._measure(under_test, upstream, version)
            finally:
                await asyncio.to_thread(context.__exit__, None, None, None)

    async def _measure(self, under_test: GatewayUnderTest, upstream: RecordingUpstream, version: str) -> GatewayResult:
        clients = ScriptedClients(self._seed, under_test.address)
        load = ScriptedLoad(self._plan, under_test, clients)
        await load.run()
        for process in under_test.processes:
            await asyncio.to_thread(process.wait_until_ready)
        await asyncio.sleep(self._gateway.settle_s)
        ledger = await asyncio.to_thread(under_test.read)
        wallets = [purse.wallet(ledger) for purse in load.purses]
        evidence = Evidence(wallets, clients.asked, upstream.served, ledger.billed, load.began_s, load.ended_s)
        self._evidence_file.write_bytes(msgspec.json.encode(evidence))
        return GatewayResult(
            name=self._gateway.name,
            version=version,
            processes=len(under_test.processes),
            settings=under_test.settings,
            promises=self._gateway.promises,
            failures=load.failures,
            reckoning=reckon(evidence),
            own_check=ledger.own_check,
            served_per_s=served_per_s(evidence),
        )


def served_per_s(evidence: Evidence) -> list[int]:
    """The whole replies in each second of the load, to steady clients."""
    steady = {wallet.name for wallet in evidence.wallets if wallet.is_steady}
    counts = [0] * int(evidence.ended_s - evidence.began_s)
    for one in evidence.asked:
        second = int(one.ended_s - evidence.began_s)
        if one.ending == "whole" and one.wallet in steady and 0 <= second < len(counts):
            counts[second] += 1
    return counts
