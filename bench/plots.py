"""The plots: what requests cost in each gateway, what each adds to the first token, and how Cadenza's cost grows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from bench.figures import Cost, GatewayFigures, Results, Section
from bench.goals import FIRST_AT_ONCE
from bench.report import number, spoken

OWN, OTHER, FAINT = "#b5462f", "#8a97a6", "#d9dee4"
FLAT_RATIO = 4
PLAIN_NUMBERS = FuncFormatter(lambda value, _: f"{value:,.10g}")
PANELS: tuple[tuple[str, Callable[[GatewayFigures], Cost | None]], ...] = (
    ("plain request", lambda one: one.plain),
    ("100-chunk stream", lambda one: one.burst),
    ("100-chunk stream, 5 ms apart", lambda one: one.spaced),
)
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.hashsalt": "cadenza",
}


def draw_plots(results: Results, folder: Path) -> list[Path]:
    """Write each plot for which there are figures; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    measured = [one for one in results.gateways if not one.failure]
    growing = [section for section in results.sections if section.axis and len(_points(section)) > 1]
    drawn = []
    with mpl.rc_context(STYLE):
        if measured:
            drawn.append(_save(_draw_costs(measured), folder / "costs.svg"))
            drawn.append(_save(_draw_first_tokens(measured), folder / "first-token.svg"))
        if growing:
            drawn.append(_save(_draw_growth(growing), folder / "growth.svg"))
    return drawn


def _draw_costs(gateways: Sequence[GatewayFigures]) -> Figure:
    figure = Figure(figsize=(12, 1.2 + 0.42 * len(gateways)), layout="constrained")
    axes = figure.subplots(1, len(PANELS), sharey=True)
    for panel, (title, cost_in) in zip(axes, PANELS, strict=True):
        costs = [cost_in(one) for one in gateways]
        _draw_bars(panel, gateways, [cost.cpu_us if cost else None for cost in costs])
        panel.set_title(title)
        panel.set_xlabel("CPU µs, log scale; less is better")
    return figure


def _draw_bars(panel: Axes, gateways: Sequence[GatewayFigures], values: Sequence[float | None]) -> None:
    known = [value for value in values if value]
    least = min(known, default=1.0) / 3
    for row, (one, value) in enumerate(zip(gateways, values, strict=True)):
        panel.barh(row, value or 0, color=OWN if one.name == "Cadenza" else OTHER, height=0.66)
        panel.text((value or least) * 1.15, row, number(value) if value else "none", va="center", fontsize=9)
    panel.set_xscale("log")
    panel.set_xlim(least, max(known, default=10.0) * 6)
    panel.xaxis.set_major_formatter(PLAIN_NUMBERS)
    panel.set_yticks(range(len(gateways)), [one.name for one in gateways])
    panel.tick_params(axis="y", length=0)
    if not panel.yaxis_inverted():
        panel.invert_yaxis()


def _draw_first_tokens(gateways: Sequence[GatewayFigures]) -> Figure:
    figure = Figure(figsize=(9, 1.4 + 0.42 * len(gateways)), layout="constrained")
    panel = figure.subplots()
    for row, one in enumerate(gateways):
        color = OWN if one.name == "Cadenza" else OTHER
        if timing := one.added_at(FIRST_AT_ONCE):
            p50_ms, p99_ms = (max(0.01, value) for value in (timing.first_p50_ms, timing.first_p99_ms))
            panel.plot([p50_ms, p99_ms], [row, row], color=FAINT, linewidth=5, zorder=1, solid_capstyle="round")
            panel.scatter([p50_ms], [row], color=color, s=60, zorder=2, label="p50" if row == 0 else None)
            panel.scatter([p99_ms], [row], color=color, s=60, marker="D", zorder=2, label="p99" if row == 0 else None)
            panel.text(max(p50_ms, p99_ms) * 1.4, row, f"{p50_ms:,.2f} / {p99_ms:,.2f}", va="center", fontsize=9)
        else:
            panel.text(0.012, row, "none", va="center", fontsize=9)
    panel.set_xscale("log")
    panel.set_xlim(0.01, panel.get_xlim()[1] * 12)
    panel.xaxis.set_major_formatter(PLAIN_NUMBERS)
    panel.set_yticks(range(len(gateways)), [one.name for one in gateways])
    panel.tick_params(axis="y", length=0)
    panel.invert_yaxis()
    panel.set_title(f"Added to the first token at {FIRST_AT_ONCE} at once")
    panel.set_xlabel("ms, log scale; p50 (dot) and p99 (diamond); less is better")
    return figure


def _draw_growth(sections: Sequence[Section]) -> Figure:
    figure = Figure(figsize=(3.4 * len(sections), 3.4), layout="constrained")
    axes = figure.subplots(1, len(sections), squeeze=False)[0]
    for panel, section in zip(axes, sections, strict=True):
        _draw_line(panel, _points(section))
        panel.set_title(section.title)
        panel.set_xlabel(f"{section.axis}, log scale")
        panel.set_ylabel(spoken(next(iter(section.lines[0].figures))))
    return figure


def _draw_line(panel: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Cost against size; the cost from zero where it hardly grows, else on a log scale too."""
    sizes, costs = [size for size, _ in points], [cost for _, cost in points]
    is_flat = max(costs) < FLAT_RATIO * min(costs)
    panel.plot(sizes, costs, color=OWN, marker="o", linewidth=2)
    panel.set_xscale("log")
    panel.set_xlim(min(sizes) / 5, max(sizes) * 5)
    panel.set_xticks(sizes, [_short(size) for size in sizes])
    panel.xaxis.set_minor_locator(NullLocator())
    if is_flat:
        panel.set_ylim(0, max(costs) * 1.6)
    else:
        panel.set_yscale("log")
        panel.set_ylim(min(costs) / 2, max(costs) * 3)
    panel.yaxis.set_major_formatter(PLAIN_NUMBERS)
    side: Literal["center", "right"] = "center" if is_flat else "right"
    for size, cost in points:
        panel.annotate(number(cost), (size, cost), xytext=(2, 8), textcoords="offset points", ha=side, fontsize=9)


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
    figure.savefig(path, metadata={"Date": None})
    return path
