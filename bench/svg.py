"""Clean up matplotlib's SVG for a web page: small, and readable in light and dark colour schemes.

Plots are drawn with the light palette. Each of its colours becomes a CSS variable, which the dark scheme overrides.
"""

import html
import re
from typing import NamedTuple


class Colour(NamedTuple):
    """A colour of the palette in both schemes."""

    light: str
    dark: str


PALETTE = {
    "paper": Colour("#ffffff", "#0d1117"),
    "ink": Colour("#1f2328", "#e6edf3"),
    "muted": Colour("#59636e", "#9aa4af"),
    "guide": Colour("#dfe3e8", "#2d333b"),
    "own": Colour("#c2410c", "#ff8f5e"),
    "peer": Colour("#7d8590", "#8b949e"),
}
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"
DROPPED = (
    re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL),
    re.compile(r'<path d="[^"]*" style="fill: none"/>'),  # invisible
    re.compile(r" font-family: [^;]*;"),  # the root element sets it
    re.compile(r' transform="rotate\(-0 [^"]*"'),
    re.compile(r'(?<=<g) id="[^"]*"'),
    re.compile(r"<defs>\s*</defs>"),
)
BARE_GROUP = re.compile(r"<g>((?:(?!</?g\b).)*)</g>|<g/>()", re.DOTALL)  # an innermost one, without attributes
ATTRIBUTE = re.compile(r'(?<= )(?:d|x|y|width|height|viewBox)="[^"]*"')
DECIMALS = re.compile(r"-?\d+\.\d{2,}")
SPACE_BETWEEN_TAGS = re.compile(r">\s+<")


def tidy_svg(svg: str, title: str) -> str:
    """The same picture with a title for screen readers, colours for both schemes, and no more markup than it needs."""
    for dropped in DROPPED:
        svg = dropped.sub("", svg)
    svg = ATTRIBUTE.sub(_shorten, svg)
    svg = _unwrap_groups(svg)
    for role, colour in PALETTE.items():
        svg = svg.replace(colour.light, f"var(--{role})")
    svg = SPACE_BETWEEN_TAGS.sub(">\n<", svg).strip()
    head, _, rest = svg.partition(">")
    return f'{head} role="img">\n<title>{html.escape(title)}</title>\n{scheme_style()}{rest}\n'


def _shorten(attribute: re.Match[str]) -> str:
    """Round the numbers of an attribute to one decimal and put them on one line."""
    rounded = DECIMALS.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), attribute[0])
    return re.sub(r"\s+", " ", rounded).replace(' "', '"')


def _unwrap_groups(svg: str) -> str:
    while True:
        smaller = BARE_GROUP.sub(r"\1", svg)
        if smaller == svg:
            return svg
        svg = smaller


def scheme_style() -> str:
    light = " ".join(f"--{role}: {colour.light};" for role, colour in PALETTE.items())
    dark = " ".join(f"--{role}: {colour.dark};" for role, colour in PALETTE.items())
    return (
        f"<style>\nsvg {{ {light} font-family: {FONT}; }}\n"
        f"@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}\n"
        "* { stroke-linejoin: round; stroke-linecap: round }\n</style>"
    )
