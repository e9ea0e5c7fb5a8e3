"""Charts as SVG, drawn on the server, and numbers as people read them.

Horizontal positions are percentages, so a chart fills its column and its text keeps its size on every screen. The style
sheet has the colour of each series (--series-1 and so on); hatching tells them apart without colour. A chart of many
bars is most of the bytes of a page, so each bar is as few characters as possible.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from markupsafe import Markup

from cadenza.core.money import NANO_PER_DOLLAR, format_dollars

PLOT_PX = 200
HEAD_PX = 12
FOOT_PX = 24
AXIS_PERCENT = 6  # of the width, for the labels of the values; the style sheet may give it a width in pixels
STEPS_MAX = 4
DAY_LABELS_MAX = 5
BAR_SHARE = 0.72  # of the width of a day
COLOURS = {1: "#0f8f83", 2: "#7c5ce0", 3: "#cf6a12", 4: "#4f7a5b"}  # where the style sheet has none
HATCHING = {  # drawn over the colour of a series
    1: Markup(""),
    2: Markup('<path d="M-1 7L7 -1M-1 1L1 -1M5 7L7 5" stroke="var(--surface, #fff)" stroke-width="1.4"/>'),
    3: Markup('<circle cx="3" cy="3" r="1.2" fill="var(--surface, #fff)"/>'),
    4: Markup('<path d="M3 0V6" stroke="var(--surface, #fff)" stroke-width="1.2"/>'),
}
UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k"))

Show = Callable[[int], str]


class Series(msgspec.Struct, frozen=True):
    """One layer of a stack. `number` chooses its colour and its hatching, so it stays the same on every chart."""

    name: str
    number: int
    values: list[int]


class Bars(msgspec.Struct, frozen=True):
    """Stacked bars: a label and a full name for each bar, and the layers from the bottom up."""

    title: str
    labels: list[str]
    names: list[str]
    series: list[Series]
    show: Show


def stacked_bars(bars: Bars, *, has_patterns: bool = True) -> Markup:
    """The chart, with the patterns of the series unless an earlier chart of the page has them.

    A bar shows its values on hover; the page also needs a table, for people who cannot hover.
    """
    totals = [sum(values) for values in zip(*(one.values for one in bars.series), strict=True)]
    step, top = scale(max(totals, default=0))
    height = HEAD_PX + PLOT_PX + FOOT_PX
    body = Markup("").join(
        [
            Markup("<defs>{}</defs>").format(Markup("").join(map(_pattern, HATCHING if has_patterns else ()))),
            *_value_axis(step, top, bars.show),
            Markup(
                '<svg class="plot" x="{}%" y="0" width="{}%" height="{}" overflow="visible" fill="transparent">'
            ).format(AXIS_PERCENT, 100 - AXIS_PERCENT, height),
            *_all_bars(bars, totals, top),
            *_day_axis(bars.labels),
            Markup("</svg>"),
        ]
    )
    return Markup(
        '<div class="chart"><svg role="img" width="100%" height="{}" overflow="visible"><title>{}</title>{}</svg></div>'
    ).format(height, bars.title, body)


def swatch(number: int) -> Markup:
    """The symbol of a series in a legend."""
    return Markup('<svg class="swatch" width="14" height="14" aria-hidden="true">{}</svg>').format(
        _filled(number, Markup('width="14" height="14" rx="3"'))
    )


def share_bar(part: int, whole: int, number: int = 1) -> Markup:
    """A bar for a row of a table, as long as the row's share."""
    percent = round(100 * part / whole, 1) if whole else 0
    return Markup('<svg class="share" width="100%" height="10" aria-hidden="true">{}</svg>').format(
        _filled(number, Markup('width="{}%" height="10" rx="2"').format(percent))
    )


def scale(largest: int) -> tuple[int, int]:
    """The spacing of the grid lines (1, 2 or 5 times a power of ten), and the value of the top one."""
    step = 1
    while step * STEPS_MAX < largest:
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    return step, step * max(1, -(-largest // step))


def count(number: int) -> str:
    return f"{number:,}"


def compact(number: int) -> str:
    """Three digits and a unit for large numbers: 1.24M."""
    for size, unit in UNITS:
        if number >= size and number >= 10_000:
            digits = 2 if number < 10 * size else 1 if number < 100 * size else 0
            return f"{number / size:.{digits}f}{unit}"
    return count(number)


def axis_dollars(amount_nano: int) -> str:
    whole, rest = divmod(amount_nano, NANO_PER_DOLLAR)
    return f"${compact(whole)}" if rest == 0 else f"${format_dollars(amount_nano)}"


def _value_axis(step: int, top: int, show: Show) -> Iterator[Markup]:
    for value in range(0, top + 1, step):
        y = _y(value, top)
        yield Markup('<line class="grid" x1="{}%" x2="100%" y1="{}" y2="{}" {}/>').format(
            AXIS_PERCENT, y, y, Markup('stroke="currentColor" stroke-opacity=".18"')
        )
        yield Markup('<text x="{}%" y="{}" {}>{}</text>').format(
            AXIS_PERCENT - 1, y + 4, Markup('text-anchor="end" font-size="12" fill="currentColor"'), show(value)
        )


def _all_bars(bars: Bars, totals: list[int], top: int) -> Iterator[Markup]:
    day_width = 100 / max(1, len(totals))
    for index, total in enumerate(totals):
        x, width = round((index + (1 - BAR_SHARE) / 2) * day_width, 2), round(BAR_SHARE * day_width, 2)
        lines = [f"{bars.names[index]}: {bars.show(total)}"]
        lines += [f"{one.name} {bars.show(one.values[index])}" for one in bars.series if one.values[index]]
        yield Markup('<g class="bar-of-day"><title>{}</title>').format("\n".join(lines))
        yield Markup('<rect x="{}%" width="{}%" height="{}"/>').format(
            round(index * day_width, 2), round(day_width, 2), HEAD_PX + PLOT_PX
        )  # invisible: it shows the tooltip
        across = Markup('x="{}%" width="{}%"').format(x, width)
        yield from _stack([(one.number, one.values[index]) for one in bars.series], top, across)
        yield Markup("</g>")


def _stack(layers: Sequence[tuple[int, int]], top: int, across: Markup) -> Iterator[Markup]:
    """One bar, with a thin gap between its layers. A day without values is a thin line."""
    reached = 0
    if not any(value for _, value in layers):
        yield Markup('<rect class="zero" {} y="{}" height="1" fill="currentColor" fill-opacity=".35"/>').format(
            across, HEAD_PX + PLOT_PX - 1
        )
    for number, value in layers:
        if value:
            bottom, reached = _y(reached, top), reached + value
            y = min(_y(reached, top), bottom - 1)
            yield _filled(number, Markup('{} y="{}" height="{}"').format(across, y, max(1, bottom - y - 1)))


def _day_axis(labels: Sequence[str]) -> Iterator[Markup]:
    """The last day always has its label. Below a narrow bar it ends with the bar, to stay inside the chart."""
    every, last = -(-len(labels) // DAY_LABELS_MAX), len(labels) - 1
    for index in range(last, -1, -every):
        share, anchor = (1.0, "end") if index == last and every > 1 else (0.5, "middle")
        yield Markup('<text x="{}%" y="{}" text-anchor="{}" {}>{}</text>').format(
            round((index + share) * 100 / len(labels), 3),
            HEAD_PX + PLOT_PX + FOOT_PX - 7,
            anchor,
            Markup('font-size="12" fill="currentColor"'),
            labels[index],
        )


def _pattern(number: int) -> Markup:
    return Markup(
        '<pattern id="s{}" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<rect width="6" height="6" fill="var(--series-{}, {})"/>{}</pattern>'
    ).format(number, number, COLOURS[number], HATCHING[number])


def _filled(number: int, place: Markup) -> Markup:
    """A rectangle in the colour and with the hatching of a series. The patterns are in the chart of the same page."""
    return Markup('<rect fill="url(#s{})" {}/>').format(number, place)


def _y(value: int, top: int) -> int:
    return HEAD_PX + PLOT_PX - value * PLOT_PX // top
