"""What can be wrong with web search."""

from collections.abc import Iterator

from cadenza.observe.facts import Facts
from cadenza.observe.findings import FEW
from cadenza.observe.problem import Found, Rule

FAILURES = "cadenza_grounding_failures_total"


def failed(facts: Facts) -> Iterator[Found]:
    if (count := facts.count(FAILURES, "search")) >= FEW:
        yield Found(f"{count:,} in the last 5 minutes.")


SEARCH_FAILS = Rule(
    "search_fails",
    "ticket",
    "Replies come without web search, because its engine fails.",
    f"{FAILURES} says why by its reason; 'cadenza doctor' asks the engine.",
    failed,
    counters={FAILURES: "part"},
)
RULES = (SEARCH_FAILS,)
