"""`make bench`: measure every gateway side by side, then Cadenza alone; write tables and plots to .bench/report.

With `--publish` they go to docs/performance, which is part of the repository.

If a gateway or a part cannot be measured, the report gives the reason and the run continues with the rest.
"""

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import rich.console

from bench import agent, alone, documents, fleet, growth, idle, ledger, machine, measure, mix, neighbours, real
from bench.figures import Results, Section
from bench.gateways.base import Gateway, running
from bench.gateways.cadenza import Cadenza
from bench.gateways.install import ROOT, WORK_DIR, debian_program
from bench.gateways.table import all_gateways
from bench.machine import CannotRun
from bench.measure import Site, measure_direct, measure_gateways
from bench.plots import draw_plots
from bench.report import show, write_report
from bench.testbed import progress_bar, upstream

PARTS = ("gateways", "agent", "alone", "growth", "ledger", "documents", "fleet")
APART = ("real", "neighbours")  # parts that are measured by themselves
STEPS_PER_GATEWAY = 5
PUBLISHED = ROOT / "docs" / "performance"
ALONE = (
    idle.measure_idle,  # first, while the process has no freed memory to reuse
    alone.measure_prompts,
    alone.measure_chunks,
    alone.measure_protocols,
    alone.measure_flood,
    alone.measure_neighbours,
)


def main() -> int:
    options = read_options()
    console = rich.console.Console(stderr=True)
    results = Results(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        is_quick=options.quick,
        machine=machine.facts(),
        versions={"commit": machine.commit()},
    )
    try:
        chosen = choose_gateways(options.only)
        with upstream() as (folder, port), progress_bar(console, count_steps(options, chosen)) as step:
            site = Site(folder, port, pace_of(options), step)
            measure_parts(results, site, chosen, options)
    except CannotRun as reason:
        console.print(f"bench: {reason}", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("bench: interrupted; the report was not changed.")
        return 130
    write_report(results, options.output, draw_plots(results, options.output))
    show(results, console)
    console.print(f"Report written to {options.output}.")
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the cost of gateways, side by side.")
    parser.add_argument("--quick", action="store_true", help="short runs and a small store; takes about two minutes")
    parser.add_argument("--only", default="", help="comma-separated gateways, for example cadenza,nginx (default: all)")
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="comma-separated parts to measure (default: %(default)s)"
    )
    parser.add_argument(
        "--real", action="store_const", const="real", dest="parts", help="measure a hosted service's mix alone"
    )
    parser.add_argument(
        "--neighbours",
        action="store_const",
        const="neighbours",
        dest="parts",
        help="measure an account beside another one's load alone",
    )
    parser.add_argument(
        "--scale", choices=growth.SCALES, help="how large the store grows (default: full, or quick with --quick)"
    )
    parser.add_argument("--output", type=Path, help="folder for the report (default: .bench/report)")
    parser.add_argument("--publish", action="store_true", help="write the report of a full run to docs/performance")
    options = parser.parse_args()
    if options.publish and (options.only or options.quick or options.output or options.parts != ",".join(PARTS)):
        parser.error("--publish is for a full run: leave out --only, --parts, --quick and --output")
    options.output = options.output or (PUBLISHED if options.publish else WORK_DIR / "report")
    options.scale = options.scale or ("quick" if options.quick else "full")
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - {*PARTS, *APART}:
        parser.error(f"unknown part {unknown.pop()!r}; choose from {', '.join((*PARTS, *APART))}")
    return options


def choose_gateways(only: str) -> list[Gateway]:
    every = {gateway.name.lower(): gateway for gateway in all_gateways()}
    names = [name.strip().lower() for name in only.split(",") if name.strip()] or list(every)
    if unknown := [name for name in names if name not in every]:
        raise CannotRun(f"unknown gateway {unknown[0]!r}; choose from {', '.join(every)}")
    return [every[name] for name in names]


def pace_of(options: argparse.Namespace) -> measure.Pace:
    return measure.QUICK if options.quick else measure.FULL


def count_steps(options: argparse.Namespace, chosen: list[Gateway]) -> int:
    steps = {
        "gateways": 2 + STEPS_PER_GATEWAY * len(chosen) * pace_of(options).rounds,
        "agent": agent.count_steps(len(chosen), pace_of(options).rounds),
        "real": real.count_steps(chosen),
        "neighbours": neighbours.count_steps(),
        "alone": len(ALONE),
        "growth": growth.count_steps(options.scale),
        "ledger": 1,
        "documents": 1,
        "fleet": fleet.count_steps(has_valkey=False),
    }
    return sum(steps[part] for part in options.parts)


def measure_parts(results: Results, site: Site, chosen: list[Gateway], options: argparse.Namespace) -> None:
    """Measure one part after another. Skip the parts about Cadenza if it was not chosen."""
    is_quick, has_own = options.quick, any(gateway.name == Cadenza.name for gateway in chosen)
    if "gateways" in options.parts:
        _find_wrk(site)
        results.direct = measure_direct(site)
        results.gateways = measure_gateways(chosen, site, results.direct)
        results.versions |= {one.name: one.version for one in results.gateways if one.version}
    if "agent" in options.parts:
        results.beside += _sections_or_failure("An agent's turn", lambda: agent.measure_agent(chosen, site))
    if "real" in options.parts:
        load = real.QUICK if is_quick else real.FULL
        results.beside += _sections_or_failure(mix.TITLE, lambda: real.measure_real(chosen, site, load))
    if has_own and "neighbours" in options.parts:
        loads = neighbours.QUICK if is_quick else neighbours.FULL
        results.beside += _sections_or_failure("Neighbours", lambda: neighbours.measure_neighbours(site, loads))
    if has_own and "alone" in options.parts:
        results.sections += _sections_or_failure("Cadenza alone", lambda: measure_alone(site, is_quick=is_quick))
    if has_own and "growth" in options.parts:
        results.sections += _sections_or_failure("Growth", lambda: growth.measure_growth(site, options.scale))
    if has_own and "ledger" in options.parts:
        site.step("the ledger")
        with machine.on_all_cores():
            volume = ledger.QUICK if is_quick else ledger.FULL
            results.sections += _sections_or_failure("The ledger", lambda: ledger.measure_ledger(volume))
    if has_own and "documents" in options.parts:
        site.step("documents")
        files = documents.QUICK if is_quick else documents.FULL
        results.sections += _sections_or_failure("Documents to text", lambda: documents.measure_documents(files))
    if has_own and "fleet" in options.parts:
        size = fleet.QUICK if is_quick else fleet.FULL
        results.sections += _sections_or_failure("Shared state", lambda: measure_fleet(site, size))


def measure_alone(site: Site, *, is_quick: bool) -> list[Section]:
    sections, size = [], alone.QUICK if is_quick else alone.FULL
    with running(Cadenza(), site.folder / "alone", site.upstream_port) as started:
        for one in ALONE:
            site.step(one.__name__.replace("_", " "))
            sections.append(one(started, size))
    return sections


def measure_fleet(site: Site, size: fleet.Size) -> list[Section]:
    with fleet.setups(site.folder, has_valkey=False) as chosen:
        return fleet.measure_fleets(chosen, site, size)


def _sections_or_failure(title: str, measured: Callable[[], list[Section]]) -> list[Section]:
    try:
        return measured()
    except Exception as error:  # noqa: BLE001 the edge of a part: report the failure, measure the others
        return [Section(title=title, note=f"Not measured: {type(error).__name__}: {error}", lines=[])]


def _find_wrk(site: Site) -> None:
    site.step("install wrk")
    try:
        debian_program("wrk", "wrk")
    except CannotRun as reason:
        site.step(f"use the built-in client instead of wrk: {reason}")


if __name__ == "__main__":
    sys.exit(main())
