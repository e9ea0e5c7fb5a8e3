"""`make bench-money`: gateways with budgets, while their processes and networks fail; see docs/money.md.

Writes results.json, results.md and plot.svg, and all records of each gateway, to .bench/money. If a gateway cannot be
measured, the report gives the reason and the run continues with the rest.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench import machine
from bench.gateways.install import ROOT, WORK_DIR
from bench.machine import CannotRun
from bench.money.plot import draw
from bench.money.report import GatewayResult, MoneyResults, render
from bench.money.run import Run
from bench.money.schedule import FULL, QUICK
from bench.money.table import all_gateways

RECORDS = WORK_DIR / "money"
PUBLISHED = ROOT / "docs" / "money"
ENDED = 143  # the exit code of a shell after SIGTERM


def main() -> int:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))
    gateways = all_gateways()
    wanted = [name for name in options.only.split(",") if name] or list(gateways)
    if unknown := [name for name in wanted if name not in gateways]:
        sys.stderr.write(f"bench: unknown gateway {unknown[0]!r}; choose from {', '.join(gateways)}\n")
        return 1
    results = MoneyResults(
        datetime.now(UTC).isoformat(timespec="seconds"), options.seed, options.quick, machine.facts(), []
    )
    for folder in (RECORDS, options.output):
        folder.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        results.gateways.append(measure(name, options))
    (options.output / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    (options.output / "results.md").write_text(render(results))
    (options.output / "plot.svg").write_text(draw(results.gateways))
    sys.stdout.write(render(results))
    sys.stderr.write(f"Written to {options.output}.\n")
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.money", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a short run of each gateway; takes a few minutes")
    parser.add_argument("--only", default="", help=f"comma-separated gateways (default: {','.join(all_gateways())})")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default: %(default)s)")
    parser.add_argument("--publish", action="store_true", help="write the report of a full run to docs/money")
    options = parser.parse_args()
    if options.publish and (options.only or options.quick):
        parser.error("--publish is for a full run: leave out --only and --quick")
    options.output = PUBLISHED if options.publish else RECORDS
    return options


def measure(name: str, options: argparse.Namespace) -> GatewayResult:
    gateway = all_gateways()[name]
    if isinstance(gateway, str):
        return GatewayResult(name, reason=gateway)
    sys.stderr.write(f"{name} ...\n")
    WORK_DIR.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="money-", dir=WORK_DIR) as folder:
        try:
            return asyncio.run(
                Run(gateway, QUICK if options.quick else FULL, options.seed, RECORDS).measure(Path(folder))
            )
        except CannotRun as reason:
            return GatewayResult(name, reason=str(reason))
        except Exception as error:  # noqa: BLE001 the edge of a gateway: report the failure, measure the others
            return GatewayResult(name, reason=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(main())
