"""The results of a run: as JSON, as tables of Markdown, and as a plot."""

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


class MoneyResults(msgspec.Struct):
    """Everything that a run found."""

    date: str
    seed: int
    is_quick: bool
    machine: dict[str, str | int]
    gateways: list[GatewayResult]


Figure = Callable[[Reckoning], str]
ROWS: tuple[tuple[str, Figure], ...] = (
    ("requests that reached a process", lambda one: f"{one.asked:,}"),
    ("whole replies", lambda one: f"{one.endings.get('whole', 0):,}"),
    ("due, by the upstream's record", lambda one: dollars(one.due_nano)),
    ("charged", lambda one: dollars(one.charged_nano)),
    ("lost, of whole replies", lambda one: _amount(one.lost_whole)),
    ("lost, of other replies", lambda one: _amount(one.lost_broken)),
    ("charged twice", lambda one: _amount(one.doubled)),
    ("charged beyond what was due", lambda one: _amount(one.excess)),
    ("charged for no known request", lambda one: _amount(one.unknown)),
    ("served beyond the budget", lambda one: _amount(one.overdraft, "budget")),
    ("balances differ from their charges by", lambda one: dollars(abs(one.balance_off_nano))),
    ("requests accepted after the revocation", lambda one: str(one.accepted_after_revocation)),
    ("longest revocation", lambda one: f"{one.longest_revocation_s:.1f} s"),
    ("longest time without service", lambda one: f"{one.longest_gap_s:.1f} s"),
)


def render(results: MoneyResults) -> str:
    """The page with the table, in Markdown."""
    measured = [(one, one.reckoning) for one in results.gateways if one.reckoning]
    facts = results.machine
    about = (
        f"{'A quick' if results.is_quick else 'A full'} run of `make bench-money`, seed {results.seed}. "
        f"{results.date}, "
        f"{facts['cores']} cores ({facts['cpu']}), load average at the start {facts['load_average']}."
    )
    table = [_line("", *(f"{one.name} {one.version}" for one, _ in measured)), "|---|" + "--:|" * len(measured)]
    table += [_line(name, *(show(figures) for _, figures in measured)) for name, show in ROWS]
    notes = [f"- **{one.name}**: {_settings(one)}. {_sentence(one)}" for one, _ in measured]
    notes += [f"- **{one.name}** was not run: {one.reason}." for one in results.gateways if one.reason]
    return "\n".join(["# Results", "", about, "", *table, "", *notes]) + "\n"


def dollars(nano: int) -> str:
    return f"{nano / 1e9:.6f}"


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _amount(amount: CountedAmount, what: str = "request") -> str:
    return f"{dollars(amount.nano)} ({amount.count} {what}{'s' * (amount.count != 1)})" if amount.count else "0"


def _settings(one: GatewayResult) -> str:
    shown = {"processes": str(one.processes), **one.settings}
    return "; ".join(f"{name}: {value}" for name, value in shown.items())


def _sentence(one: GatewayResult) -> str:
    check = f" Its own check says: {one.own_check}" if one.own_check else ""
    return " ".join(one.promises) + check
