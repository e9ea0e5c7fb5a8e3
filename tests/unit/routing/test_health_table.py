"""The health of all routes: one for each model of each provider, with its metrics and its log line."""

import io
import json

from cadenza.core.faults import FaultKind
from cadenza.core.records import Route
from cadenza.observe import Observer, make_log
from cadenza.routing.health import HealthTable
from cadenza.upstreams.base import Fault

KEY = "key_a"
NOW_MS = 1_800_000_000_000
MOST = 100
LARGE = Route("acme", "large", 1000, 100)
SMALL = Route("acme", "small", 1000, 100)


class ObservedTable:
    """A table with a clock that only the test moves, its log and its metrics."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.log = io.StringIO()
        self._observer = Observer(make_log(self.log))
        self.table = HealthTable(MOST, self._observer, lambda: self.now_s)

    def gauge(self, name: str, **labels: str) -> float | None:
        """The value of a gauge for the route LARGE."""
        labels |= {"provider": "acme", "model": "large"}
        return self._observer.metrics.registry.get_sample_value(name, labels)

    def fail(self, fault: Fault) -> None:
        """A request on the route LARGE that ends with this fault."""
        attempt = self.table.of(LARGE).begin(KEY)
        assert attempt
        attempt.record_fault(fault)
        attempt.end()


def test_routes_of_one_model_share_their_health() -> None:
    """Classes that use the same model of the same provider share one health; another model has its own."""
    table = ObservedTable().table
    assert table.of(Route("acme", "large", 500, 50, order=3)) is table.of(LARGE)
    assert table.of(SMALL) is not table.of(LARGE)
    assert table.of(Route("other", "large", 1000, 100)) is not table.of(LARGE)


def test_a_resting_route_is_logged() -> None:
    """A warning names the provider, the model and the length of the rest."""
    observed = ObservedTable()
    observed.fail(Fault(FaultKind.FAILED, 503, 7.25))
    line = json.loads(observed.log.getvalue())
    assert line.pop("timestamp")
    facts = {"level": "warning", "provider": "acme", "model": "large", "open_s": 7.25}
    assert line == {"event": "the circuit of a route opened", **facts}


def test_metrics_show_the_health_of_a_route() -> None:
    """The limit, the requests in flight and whether the circuit is open are gauges by provider and model."""
    observed = ObservedTable()
    assert observed.table.of(LARGE).begin(KEY)
    assert observed.gauge("cadenza_route_limit") == MOST
    assert observed.gauge("cadenza_route_in_flight") == 1
    assert observed.gauge("cadenza_route_state", state="open") == 0
    observed.fail(Fault(FaultKind.BUSY, 429, 7.0))
    assert observed.gauge("cadenza_route_state", state="open") == 1
    observed.now_s += 7.0
    assert observed.gauge("cadenza_route_state", state="open") == 0


def test_a_route_rests_until_its_time_is_over() -> None:
    """A rest reaches known and new routes, outlives a reset, is no failure, and ends by itself or early."""
    observed = ObservedTable()
    table = observed.table
    assert table.of(LARGE).begin(KEY)
    assert table.rest({"acme/large": NOW_MS + 60_000, "acme/small": NOW_MS + 30_000}, NOW_MS)
    table.reset(MOST)
    for route, left_s in ((LARGE, 60.0), (SMALL, 30.0)):
        health = table.of(route)
        assert (health.begin(KEY, is_last_resort=True), health.is_usable, health.is_failing) == (None, False, False)
        observed.now_s += left_s
        assert (health.begin(KEY) is None, health.is_usable) == (False, True)
        observed.now_s -= left_s
    assert observed.gauge("cadenza_route_resting") == 1
    assert not table.rest({"acme/large": NOW_MS + 60_000, "acme/small": NOW_MS + 30_000}, NOW_MS + 9_000)
    assert table.rest({"acme/small": NOW_MS + 5_000}, NOW_MS)
    assert [table.of(route).is_resting for route in (LARGE, SMALL)] == [False, True]
    assert observed.gauge("cadenza_route_resting") == 0


def test_a_reset_reaches_every_route() -> None:
    """After a reload no circuit is open, and known and new routes have the new ceiling."""
    observed = ObservedTable()
    observed.fail(Fault(FaultKind.BUSY, 429, 7.0))
    observed.table.reset(9)
    assert not observed.table.of(LARGE).is_open
    assert observed.gauge("cadenza_route_limit") == 9
    assert observed.table.of(SMALL).limit == 9
