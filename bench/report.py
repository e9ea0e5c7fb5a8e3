"""The report: results.json as measured, results.md for a reader, plots beside them, the costs on the terminal."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import rich.console
import rich.table

from bench.figures import Cost, GatewayFigures, Results, Section, Timing
from bench.goals import goals

EMPTY = "–"
BUSY_SHARE = 0.9
IDLE_LOAD = 0.5
UNIT = re.compile(r"_(us|ms|s|kb|mb)(?=_per_|$)")
UNITS = {"us": "µs", "ms": "ms", "s": "s", "kb": "kB", "mb": "MB"}
COST_HEAD = (
    "gateway",
    "version",
    "plain request µs",
    "100-chunk stream µs",
    "chunks 5 ms apart µs",
    "requests/s",
    "RSS idle MB",
    "load MB",
    "after MB",
    "cold start s",
)
SHOWN = (0, 2, 3, 4, 5, 7, 9)  # what of it fits a terminal
SHOWS = {
    "costs": "CPU time per plain request and per stream of each gateway, on log scales",
    "first-token": "what each gateway adds to the time to the first token at 64 streams at once",
    "growth": "Cadenza's CPU time per request against the length of prompt, stream and ledger, and the number of keys",
}
METHOD = """\
One worker of each gateway on core 0; load and upstream on core 1. µs are user and system time of the gateway's whole
process tree over the requests that it served: plain requests at 64 connections, streams of 100 chunks at 16. Only
replies with status 200, all of their chunks and a terminator count. Requests/s are those of the plain requests; "≥"
where the gateway's core was not busy, so that the load was the limit. Times are what a gateway adds to the percentiles
of the same load straight to the upstream: streams of 100 chunks (one by one: of 20), 5 ms apart, begun at random
moments. A start is cold until the first 200 to a chat request.

Cadenza has everything on: a key in the store, limits, a hold and a charge per request on SQLite with full durability,
the log in a file. The others do less: nginx, vllm-router and sglang-router know no keys and count nothing, TensorZero
and Portkey run without a store, LiteLLM with a master key only."""


def write_report(results: Results, folder: Path, pictures: Sequence[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    (folder / "results.md").write_text(render(results, pictures))


def render(results: Results, pictures: Sequence[Path]) -> str:
    parts = ["# Results", _setting(results), METHOD]
    if reached := goals(results):
        rows = [
            (goal.name, _with(goal.limit, goal.unit), _with(goal.measured, goal.unit), goal.verdict) for goal in reached
        ]
        parts += ["## Goals", table(("goal", "at most", "measured", ""), rows)]
    if results.gateways:
        parts += ["## Gateways, side by side", table(COST_HEAD, [cost_row(one) for one in results.gateways])]
        parts += _complaints(results)
        parts += ["## Added to the first token, and to the gaps between chunks", render_times(results)]
    parts += ["## Plots", *(f"![{SHOWS[path.stem]}]({path.name})" for path in pictures)] if pictures else []
    if results.sections:
        parts += ["## Cadenza alone", *(render_section(section) for section in results.sections)]
    return "\n\n".join(parts) + "\n"


def show(results: Results, console: rich.console.Console) -> None:
    if not results.gateways:
        return
    shown = rich.table.Table(box=None, header_style="bold")
    for column in SHOWN:
        shown.add_column(COST_HEAD[column], no_wrap=column == 0, justify="right" if column else "left")
    for one in results.gateways:
        row = cost_row(one)
        shown.add_row(*(row[column] for column in SHOWN))
    console.print(shown)
    for line in _complaints(results):
        console.print(line, markup=False, highlight=False)


def cost_row(one: GatewayFigures) -> tuple[str, ...]:
    return (
        one.name,
        one.version or EMPTY,
        *(number(cost.cpu_us if cost else None) for cost in (one.plain, one.burst, one.spaced)),
        rate(one.plain),
        number(one.rss_idle_mb),
        number(one.rss_load_mb),
        number(one.rss_after_mb),
        number(one.cold_start_s),
    )


def render_times(results: Results) -> str:
    head = ("gateway", "at once", "first token p50 ms", "p99 ms", "gap p50 ms", "p99 ms")
    rows = [timing_row("straight to the upstream", timing) for timing in results.direct]
    rows += [timing_row(one.name, timing) for one in results.gateways for timing in one.added if not timing.complaint]
    return table(head, rows)


def timing_row(name: str, timing: Timing) -> tuple[str, ...]:
    times = (timing.first_p50_ms, timing.first_p99_ms, timing.gap_p50_ms, timing.gap_p99_ms)
    return (name, str(timing.at_once), *(f"{value:,.2f}" for value in times))


def render_section(section: Section) -> str:
    names = list(dict.fromkeys(name for line in section.lines for name in line.figures))
    head = (section.axis or "", *map(spoken, names))
    rows = [(line.subject, *(number(line.figures.get(name)) for name in names)) for line in section.lines]
    wrong = [f"{line.subject}: {line.complaint}." for line in section.lines if line.complaint]
    parts = [f"### {section.title}", section.note, table(head, rows) if rows else "", *wrong]
    return "\n\n".join(part for part in parts if part)


def spoken(name: str) -> str:
    """'cpu_us_per_chunk' -> 'CPU µs per chunk'."""
    return (
        UNIT.sub(lambda unit: f" {UNITS[unit[1]]}", name).replace("_", " ").replace("cpu", "CPU").replace("rss", "RSS")
    )


def rate(cost: Cost | None) -> str:
    if cost is None or not cost.served:
        return EMPTY
    return ("≥ " if cost.core_share < BUSY_SHARE else "") + number(cost.per_s)


def number(value: float | None) -> str:
    """Three figures or the whole number."""
    if value is None:
        return EMPTY
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ("---", *["--:"] * (len(head) - 1)), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def _complaints(results: Results) -> list[str]:
    """What was not measured, and why: for the reader of the table above it."""
    lines = []
    for one in results.gateways:
        if one.failure:
            lines.append(f"- {one.name} was not measured: {one.failure}")
        costs = {"plain requests": one.plain, "streams": one.burst, "spaced streams": one.spaced}
        lines += [f"- {one.name}, {what}: {cost.complaint}" for what, cost in costs.items() if cost and cost.complaint]
        if not (one.spaced and one.spaced.complaint):  # else it is told already
            lines += [
                f"- {one.name}, times at {late.at_once}: {late.complaint}" for late in one.added if late.complaint
            ]
    return ["\n".join(lines)] if lines else []


def _setting(results: Results) -> str:
    machine, commit = results.machine, results.versions["commit"]
    length = "A quick run: short, and so rough." if results.is_quick else "A full run."
    busy = " The machine was busy with other things." if float(machine["load_average"]) > IDLE_LOAD else ""
    return (
        f"{length} {results.date}, Cadenza at {commit}, {machine['cores']} cores ({machine['cpu']}, "
        f"{machine['architecture']}), Linux {machine['kernel']}, CPython {machine['python']}, "
        f"load average at the start {machine['load_average']}.{busy}"
    )


def _with(value: float | None, unit: str) -> str:
    return EMPTY if value is None else f"{number(value)} {unit}"
