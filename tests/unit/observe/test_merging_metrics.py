"""The metrics of several processes as one."""

from prometheus_client.parser import text_string_to_metric_families

from cadenza.observe import Metrics
from cadenza.observe.worker_metrics import merge, only_counted, read_families, render


def shown(*processes: Metrics) -> dict[tuple[str, ...], float]:
    """Each sample of the merged text by its name and its label values in the order of the label names."""
    text = render(merge([read_families(metrics.registry) for metrics in processes])).decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def own_lines(text: bytes) -> list[bytes]:
    return [line for line in text.splitlines() if not line.startswith(b"process_")]


def test_one_process_is_shown_as_it_is() -> None:
    """Merging the metrics of one process changes nothing in the text. Its CPU and memory change by themselves."""
    metrics = Metrics()
    metrics.requests.add("chat", "200")
    metrics.duration.add("chat", 0.2)
    metrics.route_limit.labels("acme", "large").set(7)
    merged = render(merge([read_families(metrics.registry)]))
    assert own_lines(merged) == own_lines(metrics.render())


def test_counters_and_histograms_are_added() -> None:
    """Labels that only one process has are kept, and those of both are added."""
    one, other = Metrics(), Metrics()
    for metrics in (one, other):
        metrics.requests.add("chat", "200", amount=2)
        metrics.duration.add("chat", 0.2)
        metrics.refused.labels("rate").inc()
    other.requests.add("chat", "502")
    found = shown(one, other)
    assert found["cadenza_requests_total", "chat", "200"] == 4
    assert found["cadenza_requests_total", "chat", "502"] == 1
    assert found["cadenza_refused_total", "rate"] == 2
    assert found["cadenza_request_seconds_bucket", "chat", "0.1"] == 0
    assert found["cadenza_request_seconds_bucket", "chat", "0.25"] == 2
    assert found["cadenza_request_seconds_count", "chat"] == 2
    assert found["cadenza_request_seconds_sum", "chat"] == 0.4


def test_gauges_are_added_but_for_states() -> None:
    """What is in flight and the limits of a route are sums; a route rests if it rests anywhere."""
    one, other = Metrics(), Metrics()
    for metrics, resting in ((one, 1), (other, 1)):
        metrics.in_flight.set(3)
        metrics.route_limit.labels("acme", "large").set(10)
        metrics.route_resting.labels("acme", "large").set(resting)
    found = shown(one, other)
    assert found["cadenza_requests_in_flight",] == 6
    assert found["cadenza_route_limit", "large", "acme"] == 20
    assert found["cadenza_route_resting", "large", "acme"] == 1
    assert found["cadenza_workers",] == 2


def test_states_of_a_route_are_counted_and_what_runs_is_shown_once() -> None:
    """How many workers have a circuit open, when the first of them began, and what is common to all of them."""
    one, other = Metrics(), Metrics()
    for metrics, state in ((one, "open"), (other, "open"), (other, "closed")):
        metrics.route_state.labels("acme", "large", state).set(1)
    found, own = shown(one, other), shown(one)
    assert found["cadenza_route_state", "large", "acme", "open"] == 2
    assert found["cadenza_route_state", "large", "acme", "closed"] == 1
    assert [value for (name, *_), value in found.items() if name == "cadenza_build_info"] == [1]
    assert found["process_start_time_seconds",] == own["process_start_time_seconds",]


def test_the_time_of_creation_is_the_first() -> None:
    """The time stamps of counters are not added."""
    one, other = Metrics(), Metrics()
    stamps = {name: value for (name, *_), value in shown(one).items() if name.endswith("_created")}
    assert stamps
    assert {name: value for (name, *_), value in shown(one, other).items() if name.endswith("_created")} == stamps


def test_gauges_end_with_their_process() -> None:
    """What is left of a process that ended is what it counted."""
    metrics = Metrics()
    metrics.requests.add("chat", "200")
    metrics.in_flight.set(3)
    names = {family.name for family in only_counted(read_families(metrics.registry))}
    assert "cadenza_requests" in names
    assert "cadenza_request_seconds" in names
    assert names & {"cadenza_requests_in_flight", "cadenza_workers"} == set()
