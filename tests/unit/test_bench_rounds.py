"""The figures of several rounds of `make bench` become one."""

import msgspec
import pytest
from bench.figures import Cost, GatewayFigures, Timing
from bench.report import cost_row


def measured(cpu_us: float, first_ms: float = 1.0) -> GatewayFigures:
    cost = Cost(cpu_us=cpu_us, served=10, per_s=1e6 / cpu_us, core_share=1.0)
    timing = Timing(at_once=64, first_p50_ms=first_ms, first_p99_ms=2 * first_ms, gap_p50_ms=5, gap_p99_ms=6)
    return GatewayFigures(
        name="Cadenza", version="1", cold_start_s=0.5, plain=cost, burst=cost, spaced=cost, added=[timing]
    )


def test_median_of_rounds() -> None:
    """One slow round changes neither the cost nor the latency, and the report shows how far the rounds differ."""
    found = GatewayFigures.median([measured(280, 0.5), measured(350, 9.0), measured(270, 0.6)])
    assert found.plain
    assert (found.plain.cpu_us, found.plain.served) == (280, 30)
    assert found.added[0].first_p50_ms == pytest.approx(0.6)
    assert cost_row(found)[2] == "280 (270–350)"


def test_single_round() -> None:
    """The figures of a single round stay as they are, and the report shows no range."""
    found = GatewayFigures.median([measured(280)])
    assert found.plain
    assert msgspec.structs.replace(found.plain, rounds_us=()) == measured(280).plain
    assert cost_row(found)[2] == "280"


def test_round_that_fails() -> None:
    """A round that fails is left out. If all fail, the reason is reported."""
    failed = GatewayFigures(name="Cadenza", failure="it did not start")
    found = GatewayFigures.median([failed, measured(280)])
    assert found.failure is None
    assert found.plain
    assert found.plain.cpu_us == 280
    assert GatewayFigures.median([failed, failed]).failure == "it did not start"
