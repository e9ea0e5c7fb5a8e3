"""The metrics for Prometheus. Labels are our own names (endpoint, class, provider, fault), never text of a client."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class LabelledCounter(Collector):
    """A counter by labels for every request. An addition takes 0.4 µs; the library's own counter takes 2.7."""

    def __init__(self, name: str, description: str, labels: tuple[str, ...], registry: CollectorRegistry) -> None:
        self._family = (name, description, labels)
        self._values: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def add(self, *labels: str, amount: float = 1) -> None:
        self._values[labels] = self._values.get(labels, 0) + amount

    def collect(self) -> Iterator[Metric]:
        name, description, labels = self._family
        family = CounterMetricFamily(name, description, labels=labels)
        for values, count in self._values.items():
            family.add_metric(values, count)
        yield family


class LatencyHistogram(Collector):
    """A histogram of seconds by one label, as fast for the same reason."""

    def __init__(self, name: str, description: str, label: str, registry: CollectorRegistry) -> None:
        self._family = (name, description, label)
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        registry.register(self)

    def add(self, label: str, seconds: float) -> None:
        counts = self._counts.get(label)
        if counts is None:
            counts = self._counts[label] = [0] * (len(SECONDS) + 1)
        counts[bisect_left(SECONDS, seconds)] += 1
        self._sums[label] = self._sums.get(label, 0.0) + seconds

    def collect(self) -> Iterator[Metric]:
        name, description, label = self._family
        family = HistogramMetricFamily(name, description, labels=[label])
        for value, counts in self._counts.items():
            bounds = [*map(str, SECONDS), "+Inf"]
            family.add_metric([value], list(zip(bounds, accumulate(counts), strict=True)), self._sums[value])
        yield family


class ReadCounter(Collector):
    """A counter that is kept elsewhere and read when it is shown."""

    def __init__(self, name: str, description: str, read: Callable[[], float], registry: CollectorRegistry) -> None:
        self._family = (name, description)
        self._read = read
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(*self._family, value=self._read())


class Metrics:
    """All metrics of one service. `log_dropped` returns how many lines of the log could not be written."""

    def __init__(self, log_dropped: Callable[[], float] = int) -> None:
        registry = self.registry = CollectorRegistry()

        def count(name: str, description: str, *labels: str) -> Counter:
            return Counter(name, description, labels, registry=registry)

        def gauge(name: str, description: str, *labels: str) -> Gauge:
            return Gauge(name, description, labels, registry=registry)

        ReadCounter("cadenza_log_dropped", "Lines of the log that could not be written.", log_dropped, registry)
        gauge("cadenza_workers", "Processes whose numbers are shown.").set(1)
        self.requests = LabelledCounter("cadenza_requests", "Requests answered.", ("endpoint", "status"), registry)
        self.in_flight = gauge("cadenza_requests_in_flight", "Requests being answered.")
        from_the_first = "From the first byte of the request to the"
        self.duration = LatencyHistogram(
            "cadenza_request_seconds", f"{from_the_first} last of the reply.", "endpoint", registry
        )
        self.first_byte = LatencyHistogram(
            "cadenza_first_byte_seconds", f"{from_the_first} first of the reply.", "class_id", registry
        )
        self.spans = LabelledCounter("cadenza_spans", "Spans, exported or dropped.", ("result",), registry)
        self.tokens = LabelledCounter("cadenza_tokens", "Tokens served.", ("class_id", "kind"), registry)
        self.faults = count("cadenza_upstream_faults", "Upstream failures.", "provider", "kind")
        self.refused = count("cadenza_refused", "Requests refused that may be retried later.", "reason")
        self.grounding = count("cadenza_grounding", "What a part of grounding did for a request.", "part", "result")
        self.grounding_failures = count(
            "cadenza_grounding_failures", "Parts of grounding that were left out.", "part", "reason"
        )
        self.tasks = gauge("cadenza_tasks", "Tasks of the event loop.")
        self.slots = gauge("cadenza_slots_taken", "Chat requests in flight.")
        self.shared_state_up = gauge("cadenza_shared_state_up", "0 while this process limits alone, without Valkey.")
        self.retries = count("cadenza_retries", "Retries on another route, made or refused by the budget.", "result")
        self.continued = count(
            "cadenza_continued", "Streams that broke off elsewhere and continued on this provider.", "provider"
        )
        of_route = ("provider", "model")
        self.route_limit = gauge("cadenza_route_limit", "The most requests that a route is given at once.", *of_route)
        self.route_in_flight = gauge("cadenza_route_in_flight", "Requests in flight on a route.", *of_route)
        self.route_resting = gauge("cadenza_route_resting", "1 while the circuit of a route is open.", *of_route)
        self.route_failing = gauge("cadenza_route_failing", "1 while the requests to a route fail.", *of_route)
        self.route_last_fault = gauge(
            "cadenza_route_last_fault_timestamp_seconds",
            "When a request to a route failed last.",
            *of_route,
            "kind",
            "status",
        )
        self.canary_share = gauge("cadenza_canary_share", "Percent of accounts that a candidate serves.", "class_id")
        self.canary_requests = LabelledCounter(
            "cadenza_canary_requests", "Requests that the test of a canary counted.", ("class_id", "side"), registry
        )
        self.canary_rollbacks = count("cadenza_canary_rollbacks", "Canaries rolled back.", "class_id", "measure")
        self.holds = gauge("cadenza_holds", "Requests that hold credit.")
        self.ledger_commits = count("cadenza_ledger_commits", "Transactions of the ledger.")
        self.ledger_retries = count("cadenza_ledger_retries", "Batches of the ledger that the store did not accept.")
        self.ledger_refused = count("cadenza_ledger_refused", "Ledger entries refused by a rule: see the log.")
        self.ledger_short = count("cadenza_ledger_short_nano", "Nano-dollars due that the accounts did not have.")
        self.ledger_lost = count(
            "cadenza_ledger_lost", "Replies ended with an error because they could not be charged."
        )
        self.watch_score = gauge(
            "cadenza_watch_score", "The score of the last watch of a class, from 0 to 1.", "class_id"
        )
        self.watch_drift = gauge(
            "cadenza_watch_drift", "1 if the last watch of a class found that this has changed.", "class_id", "measure"
        )
        self.payment_events = count("cadenza_payment_events", "Events of the payment provider.", "result")
        self.doubtful_usage = count(
            "cadenza_doubtful_usage", "Replies whose upstream counts could not be true.", "provider"
        )

    def render(self) -> bytes:
        return generate_latest(self.registry)
