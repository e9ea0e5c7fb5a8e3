"""Charts: valid SVG, true proportions, and text that cannot become markup."""

import itertools
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.parts.site.charts import (
    PLOT_PX,
    STEPS_MAX,
    Bars,
    Series,
    axis_dollars,
    compact,
    scale,
    share_bar,
    stacked_bars,
    swatch,
)

HOSTILE = '"><script>alert(1)</script>'
VALUES = st.lists(st.integers(0, 10**18), min_size=1, max_size=92)


def draw(*layers: list[int], name: str = "forte") -> ET.Element:
    days = [str(number) for number in range(len(layers[0]))]
    series = [Series(name, number, values) for number, values in enumerate(layers, 1)]
    return ET.fromstring(str(stacked_bars(Bars("A chart", days, days, series, str))))


def heights(chart: ET.Element, number: int) -> list[int]:
    """Of the layers of a series, with the gap below each."""
    return [1 + int(one.attrib["height"]) for one in chart.iter("rect") if one.get("fill") == f"url(#s{number})"]


def test_heights_are_in_proportion() -> None:
    """A value of half the highest line is a bar of half the height, and layers stand on each other."""
    chart = draw([50, 25], [50, 0])
    assert heights(chart, 1) == [PLOT_PX // 2, PLOT_PX // 4]
    assert heights(chart, 2) == [PLOT_PX // 2]


def test_nothing_is_a_thin_line() -> None:
    """A day of zero has a line of its own, and a chart of zeros is drawn too."""
    chart = draw([0, 0, 0])
    assert [one.get("height") for one in chart.iter("rect") if one.get("class") == "zero"] == ["1", "1", "1"]
    assert heights(chart, 1) == []


@given(VALUES, VALUES, VALUES)
def test_any_values_can_be_drawn(one: list[int], two: list[int], three: list[int]) -> None:
    """Every bar is within the picture, every value above zero can be seen, and every bar tells its sum."""
    days = min(map(len, (one, two, three)))
    chart = draw(one[:days], two[:days], three[:days])
    bars = [group for group in chart.iter("g") if group.get("class") == "bar-of-day"]
    for index, bar in enumerate(bars):
        title = bar.find("title")
        assert title is not None
        assert f": {one[index] + two[index] + three[index]}" in str(title.text)
        for rect in bar.iter("rect"):
            assert float(rect.get("y", "0")) >= 0
            assert int(rect.attrib["height"]) >= 1
    assert len(bars) == days


@given(st.integers(0, 10**20))
def test_the_scale_has_few_round_lines(largest: int) -> None:
    """Lines are 1, 2 or 5 times a power of ten apart, at most four, and the highest is not below the largest value."""
    step, top = scale(largest)
    assert re.fullmatch("[125]0*", str(step))
    assert top % step == 0
    assert top >= max(1, largest)
    assert top // step <= STEPS_MAX


@pytest.mark.parametrize("days", [1, 4, 5, 6, 30, 92])
def test_few_days_have_a_label(days: int) -> None:
    """At most five, evenly spaced, and the last day always."""
    chart = stacked_bars(
        Bars("A chart", [f"d{day}" for day in range(days)], ["x"] * days, [Series("a", 1, [0] * days)], str)
    )
    shown = [int(found) for found in re.findall(r">d(\d+)<", str(chart))]
    assert shown[0] == days - 1
    assert len(shown) == min(days, -(-days // -(-days // 5)))
    assert len({one - other for one, other in itertools.pairwise(shown)}) <= 1


def test_names_are_text() -> None:
    """The name of a series and the title cannot become markup."""
    chart = str(stacked_bars(Bars(HOSTILE, ["1"], [HOSTILE], [Series(HOSTILE, 1, [1])], str)))
    assert "<script" not in chart
    assert ET.fromstring(chart) is not None


def test_series_differ_by_hatching() -> None:
    """Each series has a pattern of its own, with another sign, in the legend as in the chart."""
    patterns = {one.attrib["id"]: [child.tag for child in one] for one in draw([1]).iter("pattern")}
    assert patterns == {"s1": ["rect"], "s2": ["rect", "path"], "s3": ["rect", "circle"], "s4": ["rect", "path"]}
    for number in (1, 2, 3):
        assert f"url(#s{number})" in str(swatch(number))


@pytest.mark.parametrize(("part", "whole", "width"), [(1, 4, "25.0%"), (0, 4, "0.0%"), (0, 0, "0%"), (4, 4, "100.0%")])
def test_a_share_is_as_long_as_it_is_large(part: int, whole: int, width: str) -> None:
    """A quarter is a bar of a quarter of the width, and a share of nothing is no error."""
    assert f'width="{width}"' in str(share_bar(part, whole))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10.0k"),
        (123_456, "123k"),
        (1_240_000, "1.24M"),
        (26_700_000, "26.7M"),
        (10**12, "1.00T"),
    ],
)
def test_large_numbers_are_short(number: int, text: str) -> None:
    """Up to ten thousand every digit, above it three and a unit."""
    assert compact(number) == text


@pytest.mark.parametrize(
    ("amount_nano", "text"), [(0, "$0"), (500_000_000, "$0.50"), (2 * 10**13, "$20.0k"), (50_000, "$0.00005")]
)
def test_axes_have_exact_dollars(amount_nano: int, text: str) -> None:
    """Whole dollars without cents, and parts of a dollar exactly."""
    assert axis_dollars(amount_nano) == text
