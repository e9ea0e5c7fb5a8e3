"""The colours of the style sheet, by numbers: the contrast that WCAG 2.2 AA asks for, in both colour schemes."""

import itertools
import re
from importlib.resources import files

import pytest

STATIC = files("cadenza.parts.site").joinpath("static")
STYLE = STATIC.joinpath("cadenza.css").read_text()
HOME = STATIC.joinpath("home.css").read_text()
PAIRS = re.findall(r"--([a-z0-9-]+): light-dark\(#([0-9a-f]{6}), #([0-9a-f]{6})\);", STYLE)
SCHEMES = {
    "light": {name: light for name, light, _ in PAIRS},
    "dark": {name: dark for name, _, dark in PAIRS},
}
TEXT, SHAPE = 4.5, 3.0  # the least contrast of text, and of borders and bars
GROUNDS = ("paper", "surface", "sunk")
SERIES = ("series-1", "series-2", "series-3")
NEEDED = [
    *((text, ground, TEXT) for text in ("ink", "muted", "accent", "good", "warn", "bad") for ground in GROUNDS),
    *((name, f"{name}-wash", TEXT) for name in ("accent", "good", "warn", "bad")),
    ("ink", "accent-wash", TEXT),
    ("muted", "accent-wash", TEXT),
    *(("paper", button, TEXT) for button in ("ink", "accent", "bad")),  # the text of a filled button
    *(("edge", ground, SHAPE) for ground in GROUNDS),  # borders of fields and buttons
    *((series, ground, SHAPE) for series in SERIES for ground in ("paper", "surface")),
]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_colours_have_enough_contrast(scheme: str) -> None:
    """Text has a contrast of 4.5 with every ground it stands on; borders and the bars of charts have 3."""
    colours = SCHEMES[scheme]
    weak = {
        f"{front} on {ground}": round(contrast(colours[front], colours[ground]), 2)
        for front, ground, least in NEEDED
        if contrast(colours[front], colours[ground]) < least
    }
    assert weak == {}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_series_differ_without_colour(scheme: str) -> None:
    """The series of the three classes differ in lightness, so that a chart can be read in grey too."""
    colours = [SCHEMES[scheme][name] for name in SERIES]
    assert all(contrast(one, other) >= 1.5 for one, other in itertools.combinations(colours, 2))


def test_every_colour_has_two_values() -> None:
    """Every colour is defined once, as a pair of light and dark; rules use only its name."""
    assert set(re.findall(r"var\(--([a-z]+-wash|paper|surface|sunk|ink|muted|rule|edge)\)", STYLE)) <= {
        name for name, _, _ in PAIRS
    }
    rules = STYLE[STYLE.index("/* Elements */") : STYLE.index("@media print")] + HOME
    assert re.findall(r"#[0-9a-f]{3,8}\b", rules) == []


def test_the_style_sheet_is_small() -> None:
    """The style sheet has less than 30 kB."""
    assert len(STYLE.encode()) < 32_000
