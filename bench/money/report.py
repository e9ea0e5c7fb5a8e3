"""The results of a run: as JSON, as tables of Markdown, and as a plot."""

from collections.abc import Mapping, Sequence

import msgspec

from bench.money.reckon import CountedAmount, Reckoning
from bench.money.schedule import Failure

SHOWN = 1e9


class GatewayResult(msgspec.Struct):
    """The result of one gateway, or the reason why there is none."""

    name: str
    version: str = ""
    processes: int = 0
    settings: Mapping[str, str] = {}
    promises: Sequence[str] = ()
    failures: Sequence[Failure] = ()
    reckoning: Reckoning | None = None
    own_check: str = ""
    served_per_s: Sequence[int] = ()
    reason: str = ""  # why it was not measured


class MoneyResults(msgspec.Struct):
    """Everything that a run found."""

    date: str
    seed: int
    is_quick: bool
    machine: dict[str, str | int]
    gateways: list[GatewayResult]


COLUMNS = (
    "gateway", "asked", "whole", "due", "charged", "lost, whole replies", "lost, broken replies", "doubled",
    "overcharged", "overdraft", "accepted after revocation", "revocation", "longest gap",
)  # fmt: skip


def render(results: MoneyResults) -> str:
    """The tables, in Markdown."""
    measured = [one for one in results.gateways if one.reckoning]
    rows = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "--:|" * (len(COLUMNS) - 1)]
    rows += [_row(one, one.reckoning) for one in measured if one.reckoning]
    notes = [f"- **{one.name}** {one.version}, {_settings(one)}. {' '.join(one.promises)}" for one in measured]
    notes += [f"- **{one.name}** was not run: {one.reason}" for one in results.gateways if one.reason]
    return "\n".join([*rows, "", *notes]) + "\n"


def dollars(nano: int) -> str:
    return f"{nano / SHOWN:.6f}"


def _row(one: GatewayResult, figures: Reckoning) -> str:
    cells = [
        one.name,
        f"{figures.asked:,}",
        f"{figures.endings.get('whole', 0):,}",
        dollars(figures.due_nano),
        dollars(figures.charged_nano),
        _sum(figures.lost_whole),
        _sum(figures.lost_broken),
        _sum(figures.doubled),
        _sum(CountedAmount(figures.excess.count + figures.unknown.count, figures.excess.nano + figures.unknown.nano)),
        _sum(figures.overdraft),
        str(figures.accepted_after_revocation),
        f"{figures.longest_revocation_s:.1f} s",
        f"{figures.longest_gap_s:.1f} s",
    ]
    return "| " + " | ".join(cells) + " |"


def _sum(amount: CountedAmount) -> str:
    return f"{dollars(amount.nano)} ({amount.count})" if amount.count else "0"


def _settings(one: GatewayResult) -> str:
    return ", ".join(f"{name} {value}" for name, value in {"processes": one.processes, **one.settings}.items())
