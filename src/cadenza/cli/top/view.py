"""The numbers as lines of text that fit a screen. Pure."""

import textwrap
import time

import click

from cadenza.cli.top.numbers import RouteNumbers, TopNumbers, show_s

COLUMNS, LINES = 80, 24
PROBLEMS_MAX = 3
ROUTE_CHARS = 30
LABEL_CHARS = 12
MIB = 1024 * 1024
SORTS = ("name", "in flight", "last fault")
KEYS = "q quit   s sort routes"


def draw(numbers: TopNumbers, columns: int, lines: int, sort: str = SORTS[0], keys: str = "") -> list[str]:
    """At most `lines` lines of at most `columns` characters; styles are added, and count as nothing."""
    head = [_title(numbers), *_problems(numbers, columns), "", *_figures(numbers), ""]
    foot = ["", f"{keys} ({sort})"] if keys else []
    routes = _route_lines(numbers, sort, lines - len(head) - len(foot))
    cut = [_cut(line, columns) for line in [*head, *routes, *foot]][:lines]
    return [_style(line, number, numbers) for number, line in enumerate(cut)]


def _title(numbers: TopNumbers) -> str:
    at = time.strftime("%H:%M:%S UTC", time.gmtime(numbers.at_s))
    where = "" if numbers.addresses == 1 else f"   {numbers.answered} of {numbers.addresses} addresses"
    processes = f"{numbers.processes} process" + ("" if numbers.processes == 1 else "es")
    return f"cadenza top   {at}{where}   {processes}   {numbers.memory_bytes / MIB:,.0f} MiB"


def _problems(numbers: TopNumbers, columns: int) -> list[str]:
    """All is well, or the gravest problems, each on two lines at most."""
    if not numbers.problems:
        return ["All is well." if numbers.answered else ""]
    shown = list[str]()
    for problem in numbers.problems[:PROBLEMS_MAX]:
        shown += textwrap.wrap(f"! {problem}", columns, subsequent_indent="  ", max_lines=2, placeholder=" …")
    if (more := len(numbers.problems) - PROBLEMS_MAX) > 0:
        shown.append(f"! and {more} more: see the routes below, or 'cadenza doctor'")
    return shown


def _figures(numbers: TopNumbers) -> list[str]:
    tokens, first = numbers.tokens_per_s, numbers.first_token_s
    has_cost = numbers.cost_per_h or numbers.margin_per_h
    money = f"charged ${numbers.charged_per_h:,.4f}   "
    money += (
        f"cost ${numbers.cost_per_h:,.4f}   margin ${numbers.margin_per_h:,.4f}" if has_cost else "cost –   margin –"
    )
    figures = {
        "requests/s": f"{numbers.requests_per_s:<8,.1f} {_rates(numbers.statuses_per_s)}",
        "refused/s": _rates(numbers.refused_per_s) or "none",
        "faults/s": _rates(numbers.faults_per_s) or "none",
        "first token": "   ".join(f"{name} {show_s(value)}" for name, value in first.items()),
        "tokens/s": "   ".join(
            f"{name} {tokens.get(kind, 0):,.0f}"
            for name, kind in (("in", "prompt"), ("cached", "cached"), ("out", "completion"))
        ),
        "money/h": money,
        "slots": f"{numbers.slots_taken:,} of {numbers.slots_limit:,}   in flight {numbers.in_flight:,}   "
        f"holds {numbers.holds:,}",
        "store": f"commit p95 {show_s(numbers.commit_s)}   waiting {numbers.waiting_moves:,}   "
        f"loop lag p99 {show_s(numbers.loop_lag_s)}",
    }
    return [f"{name:<{LABEL_CHARS}} {text}".rstrip() for name, text in figures.items()]


def _rates(rates: dict[str, float]) -> str:
    return "   ".join(f"{name} {rate:,.1f}" for name, rate in rates.items())


def _route_lines(numbers: TopNumbers, sort: str, room: int) -> list[str]:
    """As many routes as there is room for; those that do not work come first."""
    if not numbers.routes:
        return []
    keys = {
        SORTS[1]: lambda one: (one.is_working, -one.in_flight, one.name),
        SORTS[2]: lambda one: (one.is_working, one.last_fault_s is None, one.last_fault_s or 0, one.name),
    }
    by_name = lambda one: (one.is_working, one.name)  # noqa: E731 as those above
    routes = sorted(numbers.routes, key=keys.get(sort, by_name))
    shown = routes if len(routes) < room else routes[: max(0, room - 2)]
    head = f"{'route':<{ROUTE_CHARS}} {'state':<9} {'in flight':>9}  last fault"
    more = [f"… and {len(routes) - len(shown)} more routes"] if len(shown) < len(routes) else []
    return [head, *map(_route_line, shown), *more]


def _route_line(route: RouteNumbers) -> str:
    fault = "" if route.last_fault_s is None else f"{route.last_fault}, {_ago(route.last_fault_s)} ago"
    load = f"{route.in_flight:,}/{route.limit:,}"
    return f"{_cut(route.name, ROUTE_CHARS):<{ROUTE_CHARS}} {route.state:<9} {load:>9}  {fault}".rstrip()


def _ago(time_s: int) -> str:
    minutes, seconds = divmod(time_s, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _cut(line: str, columns: int) -> str:
    return line if len(line) <= columns else line[: columns - 1] + "…"


def _style(line: str, number: int, numbers: TopNumbers) -> str:
    is_bad_route = any(line.startswith(_cut(one.name, ROUTE_CHARS)) and not one.is_working for one in numbers.routes)
    if line.startswith("! ") or is_bad_route:
        return click.style(line, fg="red")
    if line == "All is well.":
        return click.style(line, fg="green")
    return click.style(line, bold=True) if number == 0 or line.startswith("route ") else line
