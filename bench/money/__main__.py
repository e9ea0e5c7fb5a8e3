"""`make bench-money`: gateways with budgets, while their processes and networks fail; see docs/money.md.

Each run measures all gateways, one after the other. Writes results.json, results.md and plot.svg, and all records of
each gateway in each run, to .bench/money. If a gateway cannot be measured, the report gives the reason and the run
continues with the rest.
"""

import argparse
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench import machine
from bench.gateways.install import ROOT, WORK_DIR
from bench.machine import CannotRun
from bench.money import run
from bench.money.cadenza import CadenzaGateway
from bench.money.deployment import MoneyGateway
from bench.money.litellm import LiteLLMOnPostgres
from bench.money.plot import draw
from bench.money.report import GatewayResult, MoneyResults, render
from bench.money.schedule import FULL, QUICK

RECORDS = WORK_DIR / "money"
PUBLISHED = ROOT / "docs" / "money"
RUNS = 3
ENDED = 143  # the exit code of a shell after SIGTERM

NOT_RUN = {  # and why
    "bifrost": "its npm package downloads the gateway from a host that is no package registry",
    "mlflow": "no accounts: a budget of its gateway belongs to the server or a workspace, not to a key",
    "otari": "its gateway is in no package registry; the package of that name is a client",
    "portkey": "no accounts: its open-source gateway has neither keys of its own nor budgets",
    "sglang-router": "no accounts",
    "tensorzero": "no accounts: it has keys, and limits of requests and tokens over time, but no budgets",
    "vllm-router": "no accounts",
}
MEASURED = (CadenzaGateway(on_postgres=False), CadenzaGateway(on_postgres=True), LiteLLMOnPostgres())
GATEWAYS: dict[str, MoneyGateway | str] = {**{one.name: one for one in MEASURED}, **NOT_RUN}


def main() -> int:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))
    wanted = [name for name in options.only.split(",") if name] or list(GATEWAYS)
    if unknown := [name for name in wanted if name not in GATEWAYS]:
        sys.stderr.write(f"bench: unknown gateway {unknown[0]!r}; choose from {', '.join(GATEWAYS)}\n")
        return 1
    results = MoneyResults(now(), options.seed, options.quick, machine.facts(), [])
    options.output.mkdir(parents=True, exist_ok=True)
    for number in range(1, options.runs + 1):
        records = RECORDS / f"run-{number}"
        records.mkdir(parents=True, exist_ok=True)
        results.runs.append([measure(name, options, number, records) for name in wanted])
    (options.output / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    (options.output / "results.md").write_text(render(results))
    (options.output / "plot.svg").write_text(draw(results.runs))
    sys.stdout.write(render(results))
    sys.stderr.write(f"Written to {options.output}.\n")
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.money", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short runs of each gateway, of a few minutes")
    parser.add_argument("--runs", type=int, default=RUNS, help="how often all gateways are run (default: %(default)s)")
    parser.add_argument("--only", default="", help=f"comma-separated gateways (default: {','.join(GATEWAYS)})")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default: %(default)s)")
    parser.add_argument("--publish", action="store_true", help="write the report of a full run to docs/money")
    options = parser.parse_args()
    if options.publish and (options.only or options.quick or options.runs < RUNS):
        parser.error(f"--publish is for {RUNS} full runs or more: leave out --only and --quick")
    options.output = PUBLISHED if options.publish else RECORDS
    return options


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def measure(name: str, options: argparse.Namespace, number: int, records: Path) -> GatewayResult:
    """One gateway in one run, with the commit, and the load of the machine before and after."""
    gateway = GATEWAYS[name]
    if isinstance(gateway, str):
        return GatewayResult(name, reason=gateway)
    sys.stderr.write(f"run {number} of {options.runs}: {name} ...\n")
    WORK_DIR.mkdir(exist_ok=True)
    plan, began_at, load = QUICK if options.quick else FULL, now(), machine.load_average()
    with tempfile.TemporaryDirectory(prefix="money-", dir=WORK_DIR) as folder:
        try:
            result = run.measure(gateway, plan, options.seed, Path(folder), records)
            return msgspec.structs.replace(
                result, began_at=began_at, commit=machine.commit(), load_before=load, load_after=machine.load_average()
            )
        except CannotRun as reason:
            return GatewayResult(name, reason=str(reason))
        except Exception as error:  # noqa: BLE001 the edge of a gateway: report the failure, measure the others
            return GatewayResult(name, reason=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(main())
