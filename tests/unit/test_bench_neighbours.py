"""The rows of the goals for one account beside the load of another."""

import pytest
from bench.figures import Line, Results, Section
from bench.goals import NEIGHBOURS, goals
from bench.neighbour_loads import LOADS

pytestmark = pytest.mark.parts(reason="the bench has all parts")


def test_goals() -> None:
    """Beside each load a chat may take three times as long as alone, and 20 ms; a load that failed was not measured."""
    figures = {"alone_p99_ms": 10.0, "beside_p99_ms": 50.0}
    lines = [
        Line(subject="exports", figures=figures),
        Line(subject="renders", figures=figures | {"beside_p99_ms": 51.0}),
        Line(subject="erasure", figures={}, error="the load did not begin"),
    ]
    results = Results(date="", is_quick=True, machine={}, versions={})
    results.beside = [Section(title=f"{NEIGHBOURS}{store}", note="", lines=lines) for store in ("SQLite", "Postgres")]
    found = goals(results)
    assert [goal.verdict for goal in found] == ["met", "not met", "not measured"] * 2
    assert (found[0].limit, found[3].name) == (50, "Postgres, a chat beside exports, p99")


def test_erasure_is_last() -> None:
    """There are ten loads, and the one that ends the account comes after all others."""
    assert len(LOADS) == 10
    assert [*LOADS][-1] == "erasure"
