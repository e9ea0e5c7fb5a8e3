"""What can be wrong with the shared state."""

from collections.abc import Iterator

from cadenza.observe.facts import Facts
from cadenza.observe.problem import Found, Rule


def is_down(facts: Facts) -> Iterator[Found]:
    if 0 in facts.samples.of("cadenza_shared_state_up").values():
        yield Found()


SHARED_STATE_FAILS = Rule(
    "shared_state_fails",
    "ticket",
    "Valkey does not answer: each process keeps to its share of rates and slots.",
    "Start it, or check url in [shared_state]; nothing is lost.",
    is_down,
)
RULES = (SHARED_STATE_FAILS,)
