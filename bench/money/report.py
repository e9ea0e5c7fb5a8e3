"""The results of all runs: as JSON, and as tables of Markdown."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from bench.money.reckon import CountedAmount, Reckoning
from bench.money.schedule import Failure


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
    began_at: str = ""
    commit: str = ""  # of this repository, in which Cadenza and the benchmark are
    load_before: str = ""  # the load average of the machine when it began
    load_after: str = ""


class MoneyResults(msgspec.Struct):
    """Everything that was found: the gateways of each run."""

    date: str
    seed: int
    is_quick: bool
    machine: dict[str, str | int]
    runs: list[list[GatewayResult]]


Value = float | CountedAmount
ROWS: tuple[tuple[str, Callable[[Reckoning], Value], str], ...] = (  # the unit is last
    ("requests that reached a process", lambda one: one.asked, ""),
    ("whole replies", lambda one: one.endings.get("whole", 0), ""),
    ("due, by the upstream's record", lambda one: one.due_nano, "dollars"),
    ("charged", lambda one: one.charged_nano, "dollars"),
    ("lost, of whole replies", lambda one: one.lost_whole, "request"),
    ("lost, of other replies", lambda one: one.lost_broken, "request"),
    ("charged twice", lambda one: one.doubled, "request"),
    ("charged beyond what was due", lambda one: one.excess, "request"),
    ("charged for no known request", lambda one: one.unknown, "request"),
    ("served beyond the budget", lambda one: one.overdraft, "budget"),
    ("balances differ from their charges by", lambda one: abs(one.balance_off_nano), "dollars"),
    ("requests accepted after the revocation", lambda one: one.accepted_after_revocation, ""),
    ("longest revocation", lambda one: one.longest_revocation_s, "seconds"),
    ("longest time without service", lambda one: one.longest_gap_s, "seconds"),
)


def render(results: MoneyResults) -> str:
    """The page, in Markdown: the least and the most of all runs, each run, and what the gateways promise."""
    facts, kind = results.machine, "quick" if results.is_quick else "full"
    by_name: dict[str, list[GatewayResult]] = {}
    for one in (one for run in results.runs for one in run if one.reckoning):
        by_name.setdefault(one.name, []).append(one)
    about = (
        f"Runs of `make bench-money`: {len(results.runs)}, {kind}, seed {results.seed}. {results.date}, "
        f"{facts['cores']} cores ({facts['cpu']}). A cell has the least and the most of all runs, if they differ."
    )
    page = ["# Results", "", about, "", *_table(by_name), ""]
    for number, run in enumerate(results.runs, start=1):
        measured = [one for one in run if one.reckoning]
        page += [f"## Run {number}", "", _line("gateway", "began", "commit", "load before", "load after")]
        page += ["|---|---|---|--:|--:|"]
        page += [_line(one.name, one.began_at, one.commit, one.load_before, one.load_after) for one in measured]
        page += ["", *_table({one.name: [one] for one in measured}), ""]
        page += [f"- **{one.name}**: {one.own_check}" for one in measured if one.own_check]
        page += [
            f"- **{one.name}** was not measured: {one.reason}." for one in run if one.reason and one.name in by_name
        ]
        page += [""]
    page += ["## Gateways", ""]
    page += [f"- **{name}**: {_settings(found[0])}. {' '.join(found[0].promises)}" for name, found in by_name.items()]
    reasons = {one.name: one.reason for run in results.runs for one in run if one.reason and one.name not in by_name}
    page += [f"- **{name}** was not run: {reason}." for name, reason in reasons.items()]
    return "\n".join(page) + "\n"


def dollars(nano: float) -> str:
    return f"{nano / 1e9:.6f}"


def _table(by_name: Mapping[str, Sequence[GatewayResult]]) -> list[str]:
    """A column for each gateway, with the least and the most of its results."""
    lines = [_line("", *(f"{name} {found[0].version}" for name, found in by_name.items()))]
    lines.append("|---|" + "--:|" * len(by_name))
    for name, read, unit in ROWS:
        cells = [_spread([read(one.reckoning) for one in found if one.reckoning], unit) for found in by_name.values()]
        lines.append(_line(name, *cells))
    return lines


def _spread(values: Sequence[Value], unit: str) -> str:
    least, most = (_show(choose(values, key=_size), unit) for choose in (min, max))
    return least if least == most else f"{least} to {most}"


def _size(value: Value) -> float:
    return value.nano if isinstance(value, CountedAmount) else value


def _show(value: Value, unit: str) -> str:
    if isinstance(value, CountedAmount):
        return f"{dollars(value.nano)} ({value.count} {unit}{'s' * (value.count != 1)})" if value.count else "0"
    return dollars(value) if unit == "dollars" else f"{value:.1f} s" if unit == "seconds" else f"{value:,}"


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _settings(one: GatewayResult) -> str:
    shown = {"processes": str(one.processes), **one.settings}
    return "; ".join(f"{name}: {value}" for name, value in shown.items())
