"""The numbers as lines of text that fit a screen. Pure."""

import textwrap
import time

import click

from cadenza.cli.top.readings import Numbers

PROBLEMS_MAX = 3


def draw(numbers: Numbers, columns: int = 80, lines: int = 1000, keys: str = "") -> list[str]:
    """What is wrong, what it does, and every route, those that fail first."""
    of = numbers.gauges
    at = time.strftime("%H:%M:%S UTC", time.gmtime(numbers.at_s))
    title = f"cadenza top   {at}   addresses {numbers.answered}   processes {of['workers']}   {keys}".rstrip()
    shown = [click.style(title[:columns], bold=True)]
    for one in numbers.problems[:PROBLEMS_MAX]:
        text = textwrap.wrap(f"! {one.words} {one.advice}", columns, subsequent_indent="  ")
        shown += [click.style(line, fg="red" if one.severity == "page" else "yellow") for line in text]
    more = len(numbers.problems) - PROBLEMS_MAX
    shown += [f"! and {more} more: see 'cadenza doctor'"[:columns]] if more > 0 else []
    shown += [] if numbers.problems else [click.style("All is well."[:columns], fg="green")]
    figures = {
        name: "   ".join(f"{part} {value:,.4g}" for part, value in of.items()) for name, of in numbers.rates.items()
    }
    figures["times"] = "   ".join(f"{name} {_seconds(value)}" for name, value in numbers.seconds.items())
    figures["slots"] = f"{of['slots_taken']:,} of {of['slots_limit']:,}   in flight {of['requests_in_flight']:,}"
    figures["store"] = f"holds {of['holds']:,}   waiting {of['ledger_waiting_moves']:,}"
    figures["memory"] = f"{of['process_resident_memory_bytes'] / 2**20:,.0f} MiB"
    figures["route"] = f"{'':<18} {'state':<9} {'in flight':>9}  last fault"
    shown += ["", *(f"{name:<12} {text or 'none'}".rstrip()[:columns] for name, text in figures.items())]
    for route in sorted(numbers.routes, key=lambda one: (not one.is_broken, one.name)):
        fault = f"{route.fault}, {numbers.at_s - route.fault_at_s:,.0f} s ago" if route.fault else ""
        load = f"{route.in_flight}/{route.limit}"
        line = f"{route.name:<31} {route.state:<9} {load:>9}  {fault}".rstrip()[:columns]
        shown.append(click.style(line, fg="red") if route.is_broken else line)
    return shown[:lines]


def _seconds(value: float | None) -> str:
    return "–" if value is None else "> 5 min" if value == float("inf") else f"{value:g} s"
