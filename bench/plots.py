"""The plots: CPU cost of each gateway, time each adds to the first token, and growth of Cadenza's cost.

Costs span four decades, so the scales are logarithmic and the marks are dots; a bar would need a baseline of zero.
"""

import io
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bench.figures import Cost, GatewayFigures, Results, Section
from bench.goals import FIRST_AT_ONCE, cpu_us
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
PANELS = {"plain": "Plain request", "burst": "Stream of 100 chunks", "spaced": "100 chunks, 5 ms apart"}
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
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left"), False),
    "axes.axisbelow": True,
    "axes.labelpad": 6,
    "grid.color": GUIDE,
    "grid.linewidth": 0.8,
    "xtick.color": GUIDE,
    "xtick.labelcolor": MUTED,
    "xtick.labelsize": 9,
    "ytick.color": GUIDE,
    "ytick.labelcolor": MUTED,
    "ytick.labelsize": 10,
    "ytick.major.size": 0,
    "ytick.major.pad": 6,
    **{f"figure.constrained_layout.{name}": pad for name, pad in (("w_pad", 0.12), ("h_pad", 0.12), ("hspace", 0.08))},
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
        figure, panels = _panels(len(names), 2.2)
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


def _panels(count: int, height_in: float) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, two in a line."""
    columns = min(2, count)
    lines = -(-count // columns)
    figure = Figure(figsize=(WIDTH_IN, height_in * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.remove()
    return figure, panels


def _draw_costs(gateways: Sequence[GatewayFigures]) -> Figure:
    rows = sorted(gateways, key=lambda one: cpu_us(one, "plain") or math.inf)
    figure = Figure(figsize=(WIDTH_IN, 1.1 + ROW_IN * len(rows)), layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharex=True, sharey=True)
    for panel, (kind, title) in zip(panels, PANELS.items(), strict=True):
        for row, one in enumerate(rows):
            if value := cpu_us(one, kind):
                panel.plot(value, row, "o", color=_colour(one), markersize=DOT_POINTS, clip_on=False)
                _label(panel, value, row, number(value), is_own=_is_own(one))
            else:
                _label_failure(panel, row, one, getattr(one, kind))
        panel.set_title(title)
        panel.set_xlabel("CPU µs (log scale, lower is better)")
    costs = [cpu_us(one, kind) for one in rows for kind in PANELS]
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
    marks = (("o", DOT_POINTS, PEER, "median"), ("D", DIAMOND_POINTS, PAPER, "99th percentile"))
    return [
        Line2D([], [], color=PEER, linestyle="none", marker=one, markersize=points, markerfacecolor=face, label=label)
        for one, points, face, label in marks
    ]


def _draw_growth(sections: Sequence[Section]) -> Figure:
    figure, panels = _panels(len(sections), 2.7)
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
        offset, side = ((0, 9), "center") if is_flat else ((2, 8), "right")  # a rising line leaves to the right
        _write(panel, number(cost), (size, cost), offset, ha=side, va="baseline")


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
    weight, colour = ("bold", OWN) if is_own else ("normal", INK)
    _write(panel, text, (value, row), (9, 0), fontweight=weight, color=colour)


def _label_failure(panel: Axes, row: int, one: GatewayFigures, cost: Cost | None) -> None:
    """Say that the requests failed, and why. The report says why a gateway could not run at all."""
    reason = (cost.error or "").rpartition("failed: ")[2] if cost and not one.failure else ""
    text, look = f"failed ({reason})" if reason else "failed", {"fontstyle": "italic", "color": MUTED}
    _write(panel, text, (0, row), (8, 0), xycoords=("axes fraction", "data"), **look)


def _write(panel: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **look: object) -> None:
    """A text beside a mark, on paper, so that no line crosses it."""
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.5}
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center_baseline", "fontsize": LABEL_POINTS, **look}
    panel.annotate(text, at, xytext=offset, bbox=box, **style)


def _is_own(one: GatewayFigures) -> bool:
    return one.name == "Cadenza"


def _colour(one: GatewayFigures) -> str:
    return OWN if _is_own(one) else PEER


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
