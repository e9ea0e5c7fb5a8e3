"""`make bench`: measure every gateway side by side, then Cadenza alone; write tables and plots to .bench/report.

With `--publish` they go to docs/performance, which is part of the repository.

If a gateway or a part cannot be measured, the report gives the reason and the run continues with the rest.
"""

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bench import agent, alone, documents, fleet, growth, ledger, long_ledger, machine, neighbours, real
from bench.figures import Results, Section
from bench.gateways.base import Gateway
from bench.gateways.cadenza import Cadenza
from bench.gateways.install import ROOT, WORK_DIR
from bench.gateways.litellm import LiteLLM
from bench.gateways.nginx import Nginx
from bench.gateways.portkey import Portkey
from bench.gateways.routers import Router
from bench.gateways.tensorzero import TensorZero
from bench.machine import CannotRun
from bench.measure import FULL, QUICK, Site, measure_all
from bench.plots import draw_plots
from bench.report import read_report, render, write_report
from bench.testbed import step, upstream

Measure = Callable[[Site], list[Section]]
GATEWAYS = "gateways"
BESIDE: dict[str, Measure] = {"agent": agent.measure_agent, "real": real.measure_real}
OWN: dict[str, Measure] = {
    "alone": alone.measure_alone,
    "growth": growth.measure_growth,
    "ledger": ledger.measure_ledger,
    "documents": documents.measure_documents,
    "fleet": fleet.measure_fleet,
    "valkey": fleet.measure_with_valkey,
    "long-ledger": long_ledger.measure_long_ledger,
    "neighbours": neighbours.measure_neighbours,
}
PARTS = (GATEWAYS, *BESIDE, *OWN)
APART = ("real", "neighbours", "valkey", "long-ledger")  # measured only if they are named
DEFAULT = [part for part in PARTS if part not in APART]
PUBLISHED = ROOT / "docs" / "performance"


def main() -> int:
    options = read_options()
    if options.redraw:
        write_report(
            read_report(options.output), options.output, draw_plots(read_report(options.output), options.output)
        )
        return 0
    results = Results(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        is_quick=options.quick,
        machine=machine.facts(),
        versions={"commit": machine.commit()},
    )
    try:
        chosen = choose_gateways(options.only)
        with upstream() as (folder, port):
            site = Site(folder, port, QUICK if options.quick else FULL, step, chosen)
            for part in options.parts:
                measure_part(part, results, site)
    except CannotRun as reason:
        sys.stderr.write(f"bench: {reason}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("bench: interrupted; the report was not changed.\n")
        return 130
    write_report(results, options.output, draw_plots(results, options.output))
    sys.stdout.write(render(results, ()))
    sys.stderr.write(f"Report written to {options.output}.\n")
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the cost of gateways, side by side.")
    parser.add_argument("--quick", action="store_true", help="short runs and a small store; takes about two minutes")
    parser.add_argument("--only", default="", help="comma-separated gateways, for example cadenza,nginx (default: all)")
    parser.add_argument(
        "--parts", help=f"comma-separated, of {', '.join(PARTS)}; without it, all but {', '.join(APART)}"
    )
    for part in ("real", "neighbours"):
        parser.add_argument(f"--{part}", action="store_const", const=part, dest="parts", help=f"measure {part} alone")
    parser.add_argument("--output", type=Path, help="folder for the report (default: .bench/report)")
    parser.add_argument("--publish", action="store_true", help="write the report of a full run to docs/performance")
    parser.add_argument("--redraw", action="store_true", help="redraw the page and the plots of the published figures")
    options = parser.parse_args()
    if options.publish and (options.only or options.quick or options.output or options.parts):
        parser.error("--publish is for a full run: leave out --only, --parts, --quick and --output")
    options.output = options.output or (PUBLISHED if options.publish or options.redraw else WORK_DIR / "report")
    options.parts = options.parts.split(",") if options.parts else DEFAULT
    if unknown := set(options.parts) - {*PARTS}:
        parser.error(f"unknown part {unknown.pop()!r}; choose from {', '.join(PARTS)}")
    return options


def choose_gateways(only: str) -> list[Gateway]:
    peers = (Nginx(), Router("vllm-router"), Router("sglang-router", "launch"), TensorZero(), Portkey(), LiteLLM())
    every: dict[str, Gateway] = {one.name.lower(): one for one in (Cadenza(), *peers)}
    names = [name.strip().lower() for name in only.split(",") if name.strip()] or list(every)
    if unknown := [name for name in names if name not in every]:
        raise CannotRun(f"unknown gateway {unknown[0]!r}; choose from {', '.join(every)}")
    return [every[name] for name in names]


def measure_part(part: str, results: Results, site: Site) -> None:
    """Parts about Cadenza are left out if it was not chosen. The figures of several accounts stand beside gateways."""
    if part == GATEWAYS:
        results.direct, results.gateways = measure_all(site)
        results.versions |= {one.name: one.version for one in results.gateways if one.version}
    elif part in BESIDE:
        results.beside += sections_or_failure(part, BESIDE[part], site)
    elif any(gateway.name == Cadenza.name for gateway in site.gateways):
        shown = results.beside if part == "neighbours" else results.sections
        shown += sections_or_failure(part, OWN[part], site)


def sections_or_failure(part: str, measure: Measure, site: Site) -> list[Section]:
    try:
        return measure(site)
    except Exception as error:  # noqa: BLE001 the edge of a part: report the failure, measure the others
        note = f"Not measured: {type(error).__name__}: {error}"
        return [Section(title=part.capitalize(), note=note, lines=[])]


if __name__ == "__main__":
    sys.exit(main())
