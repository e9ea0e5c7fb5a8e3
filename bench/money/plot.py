"""The plot: the whole replies of each gateway in each second of each run, its failures, and what its money became."""

import html
from collections.abc import Sequence

from bench.money.reckon import Reckoning
from bench.money.report import GatewayResult
from bench.svg import scheme_style

WIDTH, ROW, TOP = 960, 132, 40
LEFT, RIGHT = 230, 16  # of the bars
BARS = 84  # the height of the highest
TITLE = "Whole replies in each second while gateways fail, and money lost, doubled and overdrawn"


def draw(runs: Sequence[Sequence[GatewayResult]]) -> str:
    """An SVG with a row for each gateway that was measured, in each run."""
    measured = [(one, number) for number, run in enumerate(runs, start=1) for one in run if one.reckoning]
    seconds = max((len(one.served_per_s) for one, _ in measured), default=1)
    most = max((count for one, _ in measured for count in one.served_per_s), default=1) or 1
    height = TOP + ROW * len(measured) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{html.escape(TITLE)}</title>",
        scheme_style(),
        f'<rect width="{WIDTH}" height="{height}" fill="var(--paper)"/>',
        _text(LEFT, 20, f"Whole replies in each second (at most {most}), over {seconds} seconds", "muted"),
    ]
    width = (WIDTH - LEFT - RIGHT) / seconds
    for row, (one, number) in enumerate(measured):
        parts += _row(one, f"{one.name}, run {number}", TOP + row * ROW, (width, BARS / most))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _row(one: GatewayResult, title: str, top: int, scales: tuple[float, float]) -> list[str]:
    (width, scale), base = scales, top + 16 + BARS
    parts = [_text(16, top + 24, title, "ink", weight=600)]
    assert one.reckoning
    for line, text in enumerate(_lines(one.reckoning)):
        parts.append(_text(16, top + 44 + 17 * line, text, "muted"))
    for failure in one.failures:
        left, wide = LEFT + width * failure.at_s, max(2.0, width * failure.lasts_s)
        parts.append(_rect(left, top + 16, wide, BARS, "guide"))
        parts.append(_text(left, top + 12, failure.kind, "muted"))
    colour = "own" if one.name.startswith("cadenza") else "peer"
    for second, count in enumerate(one.served_per_s):
        if count:
            parts.append(_rect(LEFT + width * second, base - count * scale, width - 1, count * scale, colour))
    parts.append(_rect(LEFT, base, width * len(one.served_per_s), 1, "muted"))
    return parts


def _lines(figures: Reckoning) -> list[str]:
    due = figures.due_nano or 1
    lost = figures.lost_whole.nano + figures.lost_broken.nano
    over = figures.doubled.nano + figures.excess.nano + figures.unknown.nano
    return [
        f"lost {_share(lost, due)} of what was due",
        f"charged too much: {_share(over, due)}",
        f"overdraft: {_share(figures.overdraft.nano, due)}",
        f"accepted after revocation: {figures.accepted_after_revocation}",
        f"longest gap: {figures.longest_gap_s:.1f} s",
    ]


def _share(nano: int, due_nano: int) -> str:
    return f"{nano / due_nano:.2%}" if nano else "0"


def _rect(left: float, top: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="var(--{colour})"/>'


def _text(left: float, top: float, text: str, colour: str, weight: int = 400) -> str:
    style = f'font-size="12" font-weight="{weight}" fill="var(--{colour})"'
    return f'<text x="{left:.1f}" y="{top:.1f}" {style}>{html.escape(text)}</text>'
