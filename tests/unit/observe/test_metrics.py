"""Metrics: rendered as Prometheus reads them, under our own names."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cadenza.observe import Metrics
from cadenza.observe.metrics import SECONDS


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Each sample by its name and its label values in the order of the label names."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_are_rendered_as_prometheus_reads_them() -> None:
    """Every metric appears in the text with its name, its labels and its value."""
    metrics = Metrics()
    metrics.requests.add("chat", "200")
    metrics.in_flight.inc()
    metrics.served.counts["forte", "acme"].prompt += 9
    metrics.faults.labels("acme", "busy").inc(2)
    shown = samples(metrics)
    assert shown["cadenza_requests_total", "chat", "200"] == 1
    assert shown["cadenza_requests_in_flight",] == 1
    assert shown["cadenza_tokens_total", "forte", "prompt"] == 9
    assert shown["cadenza_upstream_faults_total", "busy", "acme"] == 2


@pytest.mark.parametrize("bound", SECONDS)
def test_a_histogram_counts_up_to_and_including_each_bound(bound: float) -> None:
    """A time at the bound is in its bucket and in all larger ones, and not in the smaller ones."""
    metrics = Metrics()
    metrics.duration.add("chat", bound)
    shown = samples(metrics)
    for other in SECONDS:
        assert shown["cadenza_request_seconds_bucket", "chat", str(other)] == (other >= bound)
    assert shown["cadenza_request_seconds_bucket", "chat", "+Inf"] == 1
    assert shown["cadenza_request_seconds_count", "chat"] == 1
    assert shown["cadenza_request_seconds_sum", "chat"] == bound


def test_a_time_above_all_bounds_is_counted() -> None:
    """It is only in the last bucket, which has no bound."""
    metrics = Metrics()
    metrics.first_byte.add("forte", 400)
    shown = samples(metrics)
    assert shown["cadenza_first_byte_seconds_bucket", "forte", "300.0"] == 0
    assert shown["cadenza_first_byte_seconds_bucket", "forte", "+Inf"] == 1


def test_each_service_has_its_own_metrics() -> None:
    """Two services in one process do not count into each other's metrics."""
    one, other = Metrics(), Metrics()
    one.in_flight.inc()
    assert samples(other)["cadenza_requests_in_flight",] == 0
