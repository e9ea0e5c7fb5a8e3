"""Draws panels of the dashboard as one SVG, from what a real Prometheus saw of a service with a failing provider.

Run `.venv/bin/python -m tests.deploy.draw_dashboard docs/dashboard.svg`. It is no picture of Grafana: only the titles,
queries and legends are those of the dashboard.
"""

import html
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

from bench.svg import scheme_style
from deploy.dashboard import STATES, queries_of, read_rows

from tests.deploy.test_outages import Watched
from tests.loopback import Reply, Status, Wait, Whole, usage_of
from tests.prometheus import Prometheus

SHOWN = (
    "Requests",
    "Status of chats",
    "Chats that fail",
    "First byte",
    "Longest gap of a stream",
    "Charged per hour",
    "Margin",
    "Circuit of each route",
    "Faults",
    "Retries and continued streams",
    "Time of a commit",
    "Waits",
    "Slots",
    "Loop lag",
    "Memory",
)
COLORS = ("#3b82c4", "#d9822b", "#4c9a5b", "#b5577f", "#8a6fc0", "#7a8288")
ACROSS, WIDTH, HEIGHT = 3, 320, 190
LEFT, TOP, RIGHT, BOTTOM = 52, 34, 12, 46  # around the plot of a panel
FOOT = 44
STATES_SHOWN = [*STATES]
STEP_S = 1.0
CLIENTS = 5
PHASES = (("works", 40.0), ("one fails", 30.0), ("both fail", 20.0), ("works again", 30.0))
NOTES = (
    "Drawn by a tool of the tests, from Prometheus, with the queries of the dashboard. It is no picture of Grafana.",
    "At the dashed lines: one provider fails, both fail, both work again.",
)
WORDS = ["Seven", " four", " five"]


def main() -> None:
    with Watched(limits={"concurrency": 20}) as watched:
        good = Whole(WORDS, usage_of(90, 30), Wait(0.05))
        replies: dict[str, tuple[Reply, Reply]] = {
            "works": (good, good),
            "one fails": (Status(500), good),
            "both fail": (Status(500), Status(500)),
        }
        watched.add_clients(CLIENTS - 1)
        marks = []
        for phase, lasts_s in PHASES:
            first, second = replies.get(phase, (good, good))
            watched.upstream.always(first)
            watched.other.always(second)
            marks.append((phase, time.time()))
            time.sleep(lasts_s)
        Path(sys.argv[1]).write_text(draw(watched.prometheus, marks))


def draw(prometheus: Prometheus, marks: list[tuple[str, float]]) -> str:
    began_s, ended_s = marks[0][1] + 6, time.time()
    panels = {panel["title"]: panel for row in read_rows() for panel in row["panels"]}
    drawn = []
    for number, title in enumerate(SHOWN):
        series = [
            (legend_of(legend, one["metric"]), [(float(at), float(value)) for at, value in one["values"]])
            for legend, query in queries_of(panels[title]).items()
            for one in prometheus.query_panel(query, ended_s - began_s, STEP_S)
        ]
        x, y = number % ACROSS * WIDTH, number // ACROSS * HEIGHT
        shown = draw_panel(panels[title], series, (began_s, ended_s), marks)
        drawn.append(f'<g transform="translate({x} {y})">{shown}</g>')
    width, height = ACROSS * WIDTH, math.ceil(len(SHOWN) / ACROSS) * HEIGHT + FOOT
    title = "Panels of the dashboard while first one provider fails and then both"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n<title>{title}</title>\n'
        f'{scheme_style()}\n<rect width="{width}" height="{height}" fill="var(--paper)"/>\n'
        + "\n".join(drawn)
        + "".join(
            f'\n<text x="12" y="{height - 26 + 16 * line}" font-size="11" fill="var(--muted)">{note}</text>'
            for line, note in enumerate(NOTES)
        )
        + "\n</svg>\n"
    )


def legend_of(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), legend).replace("127.0.0.1:", ":")


def draw_panel(
    panel: dict[str, Any],
    series: list[tuple[str, list[tuple[float, float]]]],
    span: tuple[float, float],
    marks: list[tuple[str, float]],
) -> str:
    values = [value for _, points in series for _, value in points if math.isfinite(value)]
    low, high = min([0.0, *values]), max([0.0, *values]) or 1.0
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def across(at_s: float) -> float:
        return LEFT + (at_s - span[0]) / (span[1] - span[0]) * (right - LEFT)

    def down(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - TOP)

    parts = [f'<text x="{LEFT}" y="18" font-size="13" font-weight="600" fill="var(--ink)">{panel["title"]}</text>']
    unit = "state" if panel.get("kind") == "state-timeline" else panel["unit"]
    for value in (low, high):
        label = f'<text x="{LEFT - 6}" y="{down(value) + 4:.0f}" font-size="10" text-anchor="end" fill="var(--muted)">'
        parts.append(f"{label}{shown_value(value, unit)}</text>")
        parts.append(f'<path d="M{LEFT} {down(value):.0f}H{right}" stroke="var(--guide)"/>')
    for _, at_s in marks[1:]:
        parts.append(f'<path d="M{across(at_s):.0f} {TOP}V{bottom}" stroke="var(--peer)" stroke-dasharray="2 3"/>')
    peaks = {
        legend: max((value for _, value in points if math.isfinite(value)), default=0) for legend, points in series
    }
    ranked = sorted(series, key=lambda one: -peaks[one[0]])
    ranked = [one for one in ranked if peaks[one[0]]] or ranked[:1]
    for (_, points), color in zip(ranked, COLORS, strict=False):
        path = " ".join(f"{across(at):.0f} {down(value):.0f}" for at, value in points if math.isfinite(value))
        parts.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.4"/>' if path else "")
    legends, x = [], LEFT
    for (legend, _), color in zip(ranked[:4], COLORS, strict=False):
        legends.append(f'<text x="{x}" y="{HEIGHT - 26}" font-size="10" fill="{color}">{html.escape(legend)}</text>')
        x += 14 + 6 * len(legend)
    return "".join([*parts, *legends])


def shown_value(value: float, unit: str) -> str:
    match unit:
        case "s":
            return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
        case "state":
            return STATES_SHOWN[round(value)]
        case "percentunit":
            return f"{value:.0%}"
        case "bytes":
            return f"{value / 2**20:.0f} MiB"
        case "currencyUSD":
            return f"${value:.2f}"
        case _:
            return f"{value:.3g}"


if __name__ == "__main__":
    main()
