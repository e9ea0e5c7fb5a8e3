"""The report: results.json with all figures, and results.md for readers."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.figures import TIMES, Cost, GatewayFigures, Results, Section
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
    "stream, 5 ms apart µs",
    "requests/s",
    "RSS idle MB",
    "RSS under load MB",
    "RSS after MB",
    "cold start s",
)
ALT_TEXTS = {
    "costs": "CPU time of each gateway per plain request and per stream, on a log scale",
    "first-token": "Time each gateway adds to the first token with 64 concurrent streams",
    "growth": "CPU time of Cadenza per request by prompt, stream, body, connections, keys and length of the ledger",
    "history": "Instructions of each kind of request, by the date of the commit",
}
METHOD = """\
Each gateway runs one worker on core 0; load and upstream run on core 1. µs are user and system time of the gateway's
process tree per request served: plain requests with 64 connections, streams of 100 chunks with 16. The gateways take
turns, each started anew, in as many rounds as the run has: figures are medians of the rounds, with the lowest and the
highest in brackets. A reply counts only if its status is 200, all of its chunks arrived and a stream ended with its
terminator. Requests/s are plain requests; "≥" means that the gateway's core was not busy, so the load generator was the
limit. Added times are differences of percentiles: through the gateway, minus the same load sent directly to the
upstream. That load is streams of 100 chunks (20 with one connection), 5 ms apart, started at random moments. A cold
start lasts until the first 200 to a chat request.

Cadenza runs with every feature on: a key in the store, limits, a hold and a charge per request in SQLite with full
durability, and the log in a file. The others do less: nginx, vllm-router and sglang-router check no keys and count no
tokens, TensorZero and Portkey run without a store, and LiteLLM runs with a master key only."""


def write_report(results: Results, folder: Path, pictures: Sequence[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    (folder / "results.md").write_text(render(results, pictures))


def read_report(folder: Path) -> Results:
    return msgspec.json.decode((folder / "results.json").read_bytes(), type=Results)


def render(results: Results, pictures: Sequence[Path]) -> str:
    parts = ["# Results", _environment(results), METHOD]
    if reached := render_goals(results):
        parts += ["## Goals", reached]
    if results.gateways:
        parts += ["## Gateways, side by side", table(COST_HEAD, [cost_row(one) for one in results.gateways])]
        parts += _errors(results)
        parts += ["## Time added to the first token and to the gaps between chunks", render_times(results)]
    if results.beside:
        parts += ["## Side by side", *(render_section(section) for section in results.beside)]
    parts += ["## Plots", *(f"![{ALT_TEXTS[path.stem]}]({path.name})" for path in pictures)] if pictures else []
    if results.sections:
        parts += ["## Cadenza alone", *(render_section(section) for section in results.sections)]
    return "\n\n".join(parts) + "\n"


def render_goals(results: Results) -> str:
    rows = [
        (goal.name, _with_unit(goal.limit, goal.unit), _with_unit(goal.measured, goal.unit), goal.verdict)
        for goal in goals(results)
    ]
    return table(("goal", "at most", "measured", "result"), rows) if rows else ""


def cost_row(one: GatewayFigures) -> tuple[str, ...]:
    costs, sizes = (
        map(cost_cell, (one.plain, one.burst, one.spaced)),
        (one.rss_idle_mb, one.rss_load_mb, one.rss_after_mb),
    )
    return (one.name, one.version or EMPTY, *costs, rate(one.plain), *map(number, sizes), number(one.cold_start_s))


def cost_cell(cost: Cost | None) -> str:
    """The median and, of several rounds, the lowest and the highest: '286 (271–301)'."""
    if cost is None or cost.cpu_us is None or len(cost.rounds_us) < 2:
        return number(cost.cpu_us if cost else None)
    return f"{number(cost.cpu_us)} ({number(min(cost.rounds_us))}–{number(max(cost.rounds_us))})"


def render_times(results: Results) -> str:
    head = ("gateway", "streams", "first token p50 ms", "first token p99 ms", "gap p50 ms", "gap p99 ms")
    rows = [("directly to the upstream", timing) for timing in results.direct]
    rows += [(one.name, timing) for one in results.gateways for timing in one.added if not timing.error]
    shown = [(name, str(one.at_once), *(f"{getattr(one, time):,.2f}" for time in TIMES)) for name, one in rows]
    return table(head, shown)


def render_section(section: Section) -> str:
    names = list(dict.fromkeys(name for line in section.lines for name in line.figures))
    head = (section.axis or "", *map(figure_label, names))
    rows = [(line.subject, *(number(line.figures.get(name)) for name in names)) for line in section.lines]
    wrong = [f"{line.subject}: {line.error}." for line in section.lines if line.error]
    parts = [f"### {section.title}", section.note, table(head, rows) if rows else "", *wrong]
    return "\n\n".join(part for part in parts if part)


def figure_label(name: str) -> str:
    """'cpu_us_per_chunk' -> 'CPU µs per chunk'."""
    return (
        UNIT.sub(lambda unit: f" {UNITS[unit[1]]}", name).replace("_", " ").replace("cpu", "CPU").replace("rss", "RSS")
    )


def rate(cost: Cost | None) -> str:
    if cost is None or not cost.served:
        return EMPTY
    return ("≥ " if cost.core_share < BUSY_SHARE else "") + number(cost.per_s)


def number(value: float | None) -> str:
    """About three significant digits, or all digits of a larger number."""
    if value is None:
        return EMPTY
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ("---", *["--:"] * (len(head) - 1)), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def _errors(results: Results) -> list[str]:
    """What could not be measured, and why."""
    lines = []
    for one in results.gateways:
        if one.failure:
            lines.append(f"- {one.name} was not measured: {one.failure}")
        costs = {"plain requests": one.plain, "streams": one.burst, "spaced streams": one.spaced}
        lines += [f"- {one.name}, {what}: {cost.error}" for what, cost in costs.items() if cost and cost.error]
        if not (one.spaced and one.spaced.error):  # otherwise the same failure is listed above
            lines += [
                f"- {one.name}, latency of {late.at_once} streams: {late.error}" for late in one.added if late.error
            ]
    return ["\n".join(lines)] if lines else []


def _environment(results: Results) -> str:
    machine, commit = results.machine, results.versions["commit"]
    length = "A quick run with rough figures." if results.is_quick else "A full run."
    busy = " Other work was running on the machine." if float(machine["load_average"]) > IDLE_LOAD else ""
    return (
        f"{length} {results.date}, Cadenza at {commit}, {machine['cores']} cores ({machine['cpu']}, "
        f"{machine['architecture']}), Linux {machine['kernel']}, {machine['python']}, "
        f"load average at the start {machine['load_average']}.{busy}"
    )


def _with_unit(value: float | None, unit: str) -> str:
    return EMPTY if value is None else f"{number(value)} {unit}"
