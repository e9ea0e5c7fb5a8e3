"""The simulation itself: it is deterministic, finds nothing in the ledger as it is, and finds what is planted."""

import pytest
from msgspec.structs import replace

from tests.simulation.plan import DOLLAR_NANO, PlannedFault, make_plan
from tests.simulation.run import run_plan, shrink
from tests.simulation.themes import THEMES, Database, Theme


@pytest.mark.parametrize("theme", THEMES)
def test_a_seed_breaks_no_rule(theme: Theme) -> None:
    """Whatever the first seed does to processes, store and clients, no invariant of the money is broken."""
    done = run_plan(make_plan(1, requests=100, theme=theme))
    assert done.broken == ()
    assert done.whole > 0


@pytest.mark.slow(reason="simulates thousands of requests")
@pytest.mark.parametrize(
    ("database", "theme"), [("postgres", None), ("sqlite", None), ("postgres", "limited"), ("postgres", "owing")]
)
def test_one_seed_is_one_run(database: Database, theme: Theme | None) -> None:
    """The same seed does the same, step by step, and leaves the same rows."""
    plan = make_plan(3, requests=100, database=database, theme=theme)
    one, two = run_plan(plan, is_traced=True), run_plan(plan, is_traced=True)
    assert one.trace == two.trace
    assert (one.digest, one.steps) == (two.digest, two.steps)


def test_a_loss_of_valkey_breaks_no_rule() -> None:
    """A process that is cut off from Valkey, and a Valkey that comes back empty, give no key more than is stated."""
    plan = make_plan(3, requests=250, theme="limited")
    cut = PlannedFault(90, 3.0, "cut valkey", process=0, lasts_s=4.0, account=0)
    restart = PlannedFault(91, 12.0, "restart valkey", process=0, lasts_s=2.0, account=0)
    done = run_plan(replace(plan, faults=(cut, restart)))
    assert done.broken == ()
    assert done.whole > 0


@pytest.mark.slow(reason="simulates thousands of requests")
def test_the_shortest_history() -> None:
    """Of a run that breaks a rule, what the rule does not need is left out."""
    plan = make_plan(7, requests=60, database="postgres")
    rich = next(number for number, account in enumerate(plan.accounts) if account.credit_nano >= DOLLAR_NANO)
    theft = PlannedFault(99, 0.9, "theft", process=0, lasts_s=0.0, account=rich)
    plan = replace(plan, faults=(*plan.faults, theft))
    broken = run_plan(plan).broken
    assert [one.rule for one in broken] == ["an account has what its entries give and take"]
    shortest = shrink(plan, broken[0].rule, lambda _: None)
    assert (shortest.requests, shortest.commands, shortest.faults) == ((), (), (theft,))
