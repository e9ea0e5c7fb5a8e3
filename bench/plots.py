"""The plots: CPU cost of each gateway, time each adds to the first token, and growth of Cadenza's cost.

Costs span four decades, so the scales are logarithmic and the marks are dots; a bar would need a baseline of zero.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bench.figures import Cost, GatewayFigures, Results, Section
from bench.goals import FIRST_AT_ONCE
from bench.report import ALT_TEXTS, figure_label, number
from bench.svg import PALETTE, tidy_svg

PAPER, INK, MUTED, GUIDE, OWN, PEER = (
    PALETTE[role].light for role in ("paper", "ink", "muted", "guide", "own", "peer")
)
WIDTH_IN = 10.0
ROW_IN = 0.36
DOT_POINTS = 8.0
DIAMOND_POINTS = 6.5  # looks as large as the dot
LABEL_POINTS = 9
FLAT_RATIO = 4
SHORT_NUMBERS = FuncFormatter(lambda value, _: _short(value))
DATES = FuncFormatter(lambda at_s, _: f"{datetime.fromtimestamp(at_s, UTC):%d %b, %H:%M}")
HALF_DAY_S = 12 * 60 * 60
PANELS: tuple[tuple[str, Callable[[GatewayFigures], Cost | None]], ...] = (
    ("Plain request", lambda one: one.plain),
    ("Stream of 100 chunks", lambda one: one.burst),
    ("100 chunks, 5 ms apart", lambda one: one.spaced),
)
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cadenza",
    "font.size": 10,
    "text.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.edgecolor": GUIDE,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.labelpad": 6,
    "grid.color": GUIDE,
    "grid.linewidth": 0.8,
    "xtick.color": GUIDE,
    "xtick.labelcolor": MUTED,
    "ytick.color": GUIDE,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 9,
    "ytick.labelsize": 10,
    "ytick.major.size": 0,
    "ytick.major.pad": 6,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.12,
    "figure.constrained_layout.hspace": 0.08,
}


def draw_plots(results: Results, folder: Path) -> list[Path]:
    """Write every plot that has figures, and return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    growing = [section for section in results.sections if section.axis and len(_points(section)) > 1]
    drawn = []
    with mpl.rc_context(STYLE):
        if any(not one.failure for one in results.gateways):
            drawn.append(_save(_draw_costs(results.gateways), folder / "costs.svg"))
            drawn.append(_save(_draw_first_tokens(results.gateways), folder / "first-token.svg"))
        if growing:
            drawn.append(_save(_draw_growth(growing), folder / "growth.svg"))
    return drawn


def draw_history(points: Sequence[tuple[int, Mapping[str, int]]], folder: Path) -> Path:
    """Instructions of each kind of request over time, in Unix seconds; the last value is written beside each line."""
    names = list(points[-1][1])
    every_s = HALF_DAY_S * max(1, round((points[-1][0] - points[0][0]) / 4 / HALF_DAY_S))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 2.2 * -(-len(names) // 2)), layout="constrained")
        panels = list(figure.subplots(-(-len(names) // 2), 2, squeeze=False).flat)
        for panel in panels[len(names) :]:
            panel.remove()
        for panel, name in zip(panels, names, strict=False):
            known = [(at, counts[name]) for at, counts in points if name in counts]
            times, counts = zip(*known, strict=True)
            panel.plot(times, counts, color=OWN, marker="o", markersize=3, linewidth=1.5)
            panel.set_ylim(0, max(counts) * 1.25)
            panel.yaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
            panel.yaxis.set_major_formatter(SHORT_NUMBERS)
            panel.xaxis.set_major_locator(mpl.ticker.MultipleLocator(every_s))
            panel.xaxis.set_major_formatter(DATES)
            panel.grid(axis="y")
            panel.tick_params(axis="y", labelsize=9)
            panel.set_title(f"{name}: {counts[-1]:,} instructions")
        return _save(figure, folder / "history.svg")


def _draw_costs(gateways: Sequence[GatewayFigures]) -> Figure:
    rows = sorted(gateways, key=lambda one: _cpu_us(one.plain) or math.inf)
    figure = Figure(figsize=(WIDTH_IN, 1.1 + ROW_IN * len(rows)), layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharex=True, sharey=True)
    for panel, (title, cost_of) in zip(panels, PANELS, strict=True):
        for row, one in enumerate(rows):
            if value := _cpu_us(cost_of(one)):
                panel.plot(value, row, "o", color=_colour(one), markersize=DOT_POINTS, clip_on=False)
                _label(panel, value, row, number(value), is_own=_is_own(one))
            else:
                _label_failure(panel, row, one, cost_of(one))
        panel.set_title(title)
        panel.set_xlabel("CPU µs (log scale, lower is better)")
    costs = [_cpu_us(cost_of(one)) for one in rows for _, cost_of in PANELS]
    _set_log_scale(panels[0], [cost for cost in costs if cost], room_right=20.0)
    _set_rows(panels[0], rows)
    return figure


def _draw_first_tokens(gateways: Sequence[GatewayFigures]) -> Figure:
    timings = {one.name: one.added_at(FIRST_AT_ONCE) for one in gateways}
    rows = sorted(gateways, key=lambda one: timing.first_p50_ms if (timing := timings[one.name]) else math.inf)
    figure = Figure(figsize=(WIDTH_IN, 1.4 + ROW_IN * len(rows)), layout="constrained")
    panel = figure.subplots()
    known = [value for one in timings.values() if one for value in (one.first_p50_ms, one.first_p99_ms) if value > 0]
    least = _set_log_scale(panel, known, room_right=12.0)
    for row, one in enumerate(rows):
        timing = timings[one.name]
        if timing is None:
            _label_failure(panel, row, one, one.spaced)
            continue
        p50_ms, p99_ms = (max(least, value) for value in (timing.first_p50_ms, timing.first_p99_ms))
        panel.plot([p50_ms, p99_ms], [row, row], color=_colour(one), linewidth=1.5)
        panel.plot(p50_ms, row, "o", color=_colour(one), markersize=DOT_POINTS, clip_on=False)
        panel.plot(p99_ms, row, "D", color=_colour(one), markersize=DIAMOND_POINTS, markerfacecolor=PAPER)
        text = f"{number(timing.first_p50_ms)} – {number(timing.first_p99_ms)} ms"
        _label(panel, max(p50_ms, p99_ms), row, text, is_own=_is_own(one))
    panel.set_title(f"Time added to the first token, {FIRST_AT_ONCE} concurrent streams")
    panel.set_xlabel("ms (log scale, lower is better)")
    _set_rows(panel, rows)
    panel.legend(
        handles=_percentile_marks(),
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),  # on the line of the title
        ncols=2,
        frameon=False,
        fontsize=LABEL_POINTS,
        handletextpad=0.2,
        borderpad=0.2,
    )
    return figure


def _percentile_marks() -> list[Line2D]:
    return [
        Line2D([], [], color=PEER, linestyle="none", marker="o", markersize=DOT_POINTS, label="median"),
        Line2D(
            [],
            [],
            color=PEER,
            linestyle="none",
            marker="D",
            markersize=DIAMOND_POINTS,
            markerfacecolor=PAPER,
            label="99th percentile",
        ),
    ]


def _draw_growth(sections: Sequence[Section]) -> Figure:
    columns = min(2, len(sections))
    lines = -(-len(sections) // columns)
    figure = Figure(figsize=(WIDTH_IN, 2.7 * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for panel in panels[len(sections) :]:
        panel.remove()
    for panel, section in zip(panels, sections, strict=False):
        _draw_line(panel, _points(section))
        panel.set_title(section.title)
        panel.set_xlabel(f"{section.axis} (log scale)")
        panel.set_ylabel(figure_label(next(iter(section.lines[0].figures))))
    figure.align_ylabels()
    return figure


def _draw_line(panel: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Cost against size. The cost starts at zero where it hardly grows; otherwise its scale is logarithmic too."""
    sizes, costs = [size for size, _ in points], [cost for _, cost in points]
    panel.plot(sizes, costs, color=OWN, marker="o", markersize=DOT_POINTS - 1, linewidth=2)
    panel.set_xscale("log")
    panel.set_xlim(min(sizes) / 3, max(sizes) * 3)
    panel.set_xticks(sizes, [_short(size) for size in sizes])
    panel.xaxis.set_minor_locator(NullLocator())
    is_flat = max(costs) < FLAT_RATIO * min(costs)
    if is_flat:
        panel.set_ylim(0, max(costs) * 1.35)
        panel.yaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    else:
        panel.set_yscale("log")
        panel.set_ylim(min(costs) / 2, max(costs) * 4)
        panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(SHORT_NUMBERS)
    panel.grid(axis="y")
    panel.tick_params(axis="y", labelsize=9)
    for size, cost in points:
        panel.annotate(
            number(cost),
            (size, cost),
            xytext=(0, 9) if is_flat else (2, 8),
            textcoords="offset points",
            ha="center" if is_flat else "right",  # a rising line leaves to the right
            fontsize=LABEL_POINTS,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.0},
        )


def _set_log_scale(panel: Axes, known: Sequence[float], room_right: float) -> float:
    """A logarithmic scale with room for a label after the last dot. Returns its least value."""
    least, most = min(known, default=1.0) / 2, max(known, default=10.0) * room_right
    panel.set_xscale("log")
    panel.set_xlim(least, most)
    panel.xaxis.set_major_locator(LogLocator(numticks=12))
    panel.xaxis.set_major_formatter(SHORT_NUMBERS)
    panel.xaxis.set_minor_locator(NullLocator())
    return least


def _set_rows(panel: Axes, rows: Sequence[GatewayFigures]) -> None:
    """One light line and one name for each gateway, the lowest value on top."""
    for drawn in panel.figure.axes:
        drawn.grid(axis="y")
    panel.set_yticks(range(len(rows)), [one.name for one in rows])
    panel.set_ylim(len(rows) - 0.4, -0.6)
    for name, one in zip(panel.get_yticklabels(), rows, strict=True):
        name.set_color(OWN if _is_own(one) else INK)
        name.set_fontweight("bold" if _is_own(one) else "normal")


def _label(panel: Axes, value: float, row: int, text: str, *, is_own: bool) -> None:
    panel.annotate(
        text,
        (value, row),
        xytext=(9, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=LABEL_POINTS,
        fontweight="bold" if is_own else "normal",
        color=OWN if is_own else INK,
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.5},
    )


def _label_failure(panel: Axes, row: int, one: GatewayFigures, cost: Cost | None) -> None:
    """Say that the requests failed, and why. The report says why a gateway could not run at all."""
    reason = (cost.error or "").rpartition("failed: ")[2] if cost and not one.failure else ""
    panel.annotate(
        f"failed ({reason})" if reason else "failed",
        (0, row),
        xycoords=("axes fraction", "data"),
        xytext=(8, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=LABEL_POINTS,
        fontstyle="italic",
        color=MUTED,
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.5},
    )


def _is_own(one: GatewayFigures) -> bool:
    return one.name == "Cadenza"


def _colour(one: GatewayFigures) -> str:
    return OWN if _is_own(one) else PEER


def _cpu_us(cost: Cost | None) -> float | None:
    return cost.cpu_us if cost else None


def _short(size: float) -> str:
    """'10,000' -> '10k'."""
    for least, letter in ((1e6, "M"), (1e3, "k")):
        if size >= least:
            return f"{size / least:g}{letter}"
    return f"{size:g}"


def _points(section: Section) -> list[tuple[float, float]]:
    known = [line for line in section.lines if line.size is not None and line.figures]
    return [(line.size or 0.0, next(iter(line.figures.values()))) for line in known]


def _save(figure: Figure, path: Path) -> Path:
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    path.write_text(tidy_svg(drawn.getvalue(), ALT_TEXTS[path.stem]))
    return path
