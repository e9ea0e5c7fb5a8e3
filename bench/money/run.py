"""One run: the load with its failures, then the wait, then what was charged."""

import asyncio
import time
from pathlib import Path

import msgspec

from bench.money.clients import ScriptedClients
from bench.money.deployment import MoneyGateway
from bench.money.load import ScriptedLoad
from bench.money.reckon import Evidence, reckon
from bench.money.report import GatewayResult
from bench.money.schedule import FaultPlan
from bench.money.upstream import RecordingUpstream


def measure(gateway: MoneyGateway, plan: FaultPlan, seed: int, folder: Path, output: Path) -> GatewayResult:
    """One gateway under one plan, in a folder of its own. All records of it are written to the folder `output`."""
    version, upstream = gateway.install(), RecordingUpstream()
    with upstream.running() as port, gateway.running(folder, port) as under_test:
        clients = ScriptedClients(seed, under_test.address)
        load = ScriptedLoad(plan, under_test, clients)
        asyncio.run(load.run())
        for process in under_test.processes:
            process.wait_until_ready()
        time.sleep(gateway.settle_s)
        ledger = under_test.read()
    wallets = [purse.wallet(ledger) for purse in load.purses]
    evidence = Evidence(wallets, clients.asked, upstream.served, ledger.billed, load.began_s, load.ended_s)
    (output / f"{gateway.name}.json").write_bytes(msgspec.json.encode(evidence))
    return GatewayResult(
        name=gateway.name,
        version=version,
        processes=len(under_test.processes),
        settings=under_test.settings,
        promises=gateway.promises,
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
