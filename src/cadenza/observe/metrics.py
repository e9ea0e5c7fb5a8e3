"""The metrics for Prometheus. Labels are our own names (endpoint, class, provider, fault), never text of a client."""

import platform
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from cadenza.core.money import NANO_PER_DOLLAR

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
BRIEF_SECONDS = (0.0005, 0.001, 0.0025, *SECONDS[:11])  # of what usually takes milliseconds
MOVES = (1, 2, 4, 8, 16, 32, 64, 128)


class LabelledCounter(Collector):
    """A counter by labels for every request. An addition to `counts` takes 0.1 µs; the library's counter takes 2.7."""

    def __init__(self, name: str, description: str, labels: tuple[str, ...], registry: CollectorRegistry) -> None:
        self._family = (name, description, labels)
        self.counts: dict[tuple[str | int, ...], float] = defaultdict(int)
        registry.register(self)

    def add(self, *labels: str, amount: float = 1) -> None:
        self.counts[labels] += amount

    def collect(self) -> Iterator[Metric]:
        name, description, labels = self._family
        family = CounterMetricFamily(name, description, labels=labels)
        for values, count in self.counts.items():
            family.add_metric([*map(str, values)], count)
        yield family


class LabelledHistogram(Collector):
    """A histogram by one label, or by none (""), as fast for the same reason."""

    def __init__(
        self,
        name: str,
        description: str,
        label: str,
        registry: CollectorRegistry,
        bounds: tuple[float, ...] = SECONDS,
    ) -> None:
        self._family = (name, description, [label] if label else [])
        self._bounds = bounds
        empty = [0.0, *[0] * (len(bounds) + 1)]  # the sum, and the counts of the buckets
        self._cells = defaultdict[str, list[float]](empty.copy)  # by label
        registry.register(self)
        if not label:
            self._cells[""] = empty.copy()  # shown before the first value, as the library does

    def add(self, label: str, value: float) -> None:
        cell = self._cells[label]
        cell[0] += value
        cell[1 + bisect_left(self._bounds, value)] += 1

    def count(self, label: str = "") -> int:
        """How many values were added."""
        return int(sum(self._cells.get(label, ())[1:]))

    def collect(self) -> Iterator[Metric]:
        name, description, labels = self._family
        family = HistogramMetricFamily(name, description, labels=labels)
        bounds = [*map(str, map(float, self._bounds)), "+Inf"]
        for value, (total, *counts) in self._cells.items():
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric([value] if labels else [], buckets, total)
        yield family


class ServedCounts:
    """What the replies of one provider in one class have counted."""

    __slots__ = ("cached", "charged_nano", "completion", "cost_nano", "prompt", "unknown_nano")

    def __init__(self) -> None:
        self.prompt = self.cached = self.completion = 0  # tokens
        self.charged_nano = 0  # for replies whose cost is known
        self.unknown_nano = 0  # for the others
        self.cost_nano = 0


class ServedReplies(Collector):
    """Tokens, charges and costs, by class and provider: one look-up for all the counters of a reply."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.counts: dict[tuple[str, str], ServedCounts] = defaultdict(ServedCounts)
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        of_class, of_provider = ["class_id"], ["class_id", "provider"]
        tokens = CounterMetricFamily("cadenza_tokens", "Tokens served.", labels=[*of_class, "kind"])
        charged = CounterMetricFamily(
            "cadenza_charged_dollars",
            "What accounts were charged, by whether the cost of the reply is known.",
            labels=[*of_provider, "cost"],
        )
        cost = CounterMetricFamily(
            "cadenza_provider_cost_dollars",
            "What providers charge for replies whose cost is known.",
            labels=of_provider,
        )
        by_kind: dict[tuple[str, str], int] = defaultdict(int)
        for (class_id, provider), counts in self.counts.items():
            for kind in ("prompt", "cached", "completion"):
                by_kind[class_id, kind] += getattr(counts, kind)
            charged.add_metric([class_id, provider, "known"], counts.charged_nano / NANO_PER_DOLLAR)
            charged.add_metric([class_id, provider, "unknown"], counts.unknown_nano / NANO_PER_DOLLAR)
            cost.add_metric([class_id, provider], counts.cost_nano / NANO_PER_DOLLAR)
        for labels, count in by_kind.items():
            tokens.add_metric(labels, count)
        yield from (tokens, charged, cost)


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
        self.registry = CollectorRegistry()
        self._define_process(log_dropped)
        self._define_requests()
        self._define_limits()
        self._define_routes()
        self._define_ledger()

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _count(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(name, description, labels, registry=self.registry)

    def _gauge(self, name: str, description: str, *labels: str) -> Gauge:
        return Gauge(name, description, labels, registry=self.registry)

    def _define_process(self, log_dropped: Callable[[], float]) -> None:
        ReadCounter("cadenza_log_dropped", "Lines of the log that could not be written.", log_dropped, self.registry)
        self._gauge("cadenza_workers", "Processes whose numbers are shown.").set(1)
        info = self._gauge("cadenza_build_info", "Always 1. Its labels say what runs.", "version", "python")
        info.labels(version("cadenza"), platform.python_version()).set(1)
        self.tasks = self._gauge("cadenza_tasks", "Tasks of the event loop.")
        self.spans = LabelledCounter("cadenza_spans", "Spans, exported or dropped.", ("result",), self.registry)
        self.loop_lag = LabelledHistogram(
            "cadenza_loop_lag_seconds", "How late the event loop runs a timer.", "", self.registry, BRIEF_SECONDS
        )
        ProcessCollector(registry=self.registry)

    def _define_requests(self) -> None:
        registry = self.registry
        self.requests = LabelledCounter("cadenza_requests", "Requests answered.", ("endpoint", "status"), registry)
        self.in_flight = self._gauge("cadenza_requests_in_flight", "Requests being answered.")
        from_the_first = "From the first byte of the request to the"
        self.duration = LabelledHistogram(
            "cadenza_request_seconds", f"{from_the_first} last of the reply.", "endpoint", registry
        )
        self.first_byte = LabelledHistogram(
            "cadenza_first_byte_seconds", f"{from_the_first} first of the reply.", "class_id", registry
        )
        self.stream_gap = LabelledHistogram(
            "cadenza_stream_gap_seconds", "The longest gap between two chunks of a stream.", "class_id", registry
        )
        self.served = ServedReplies(registry)

    def _define_limits(self) -> None:
        self.refused = self._count("cadenza_refused", "Requests refused that may be retried later.", "reason")
        self.waits = LabelledHistogram(
            "cadenza_wait_seconds",
            "How long requests waited, of those that waited.",
            "what",
            self.registry,
            BRIEF_SECONDS,
        )
        self.slots = self._gauge("cadenza_slots_taken", "Chat requests in flight.")
        self.slots_limit = self._gauge("cadenza_slots_limit", "The most that may be in flight now.")
        self.shared_state_up = self._gauge(
            "cadenza_shared_state_up", "0 while this process limits alone, without Valkey."
        )

    def _define_routes(self) -> None:
        count, gauge, of_route = self._count, self._gauge, ("provider", "model")
        self.faults = count("cadenza_upstream_faults", "Upstream failures.", "provider", "kind")
        self.retries = count("cadenza_retries", "Retries on another route, made or refused by the budget.", "result")
        self.continued = count(
            "cadenza_continued", "Streams that broke off elsewhere and continued on this provider.", "provider"
        )
        self.doubtful_usage = count(
            "cadenza_doubtful_usage", "Replies whose upstream counts could not be true.", "provider"
        )
        self.route_limit = gauge("cadenza_route_limit", "The most requests that a route is given at once.", *of_route)
        self.route_in_flight = gauge("cadenza_route_in_flight", "Requests in flight on a route.", *of_route)
        self.route_state = gauge(
            "cadenza_route_state", "1 for the state that the circuit of a route is in.", *of_route, "state"
        )
        self.route_resting = gauge("cadenza_route_resting", "1 while a route rests by hand.", *of_route)
        self.route_failing = gauge("cadenza_route_failing", "1 while the requests to a route fail.", *of_route)
        self.route_last_fault = gauge(
            "cadenza_route_last_fault_timestamp_seconds",
            "When a request to a route failed last.",
            *of_route,
            "kind",
            "status",
        )

    def _define_ledger(self) -> None:
        count, gauge = self._count, self._gauge
        self.holds = gauge("cadenza_holds", "Requests that hold credit.")
        self.reserves = gauge("cadenza_reserves", "Accounts of which this process has reserved credit.")
        self.reserved = gauge(
            "cadenza_reserved_dollars", "Credit that is reserved: used by requests, or spare.", "part"
        )
        self.ledger_commit_time = commit_time = LabelledHistogram(
            "cadenza_ledger_commit_seconds", "How long a transaction took.", "", self.registry, BRIEF_SECONDS
        )
        ReadCounter("cadenza_ledger_commits", "Transactions of the ledger.", commit_time.count, self.registry)
        self.ledger_batch = LabelledHistogram(
            "cadenza_ledger_batch_moves", "Holds and ends in one transaction.", "", self.registry, MOVES
        )
        self.ledger_waiting = gauge("cadenza_ledger_waiting_moves", "Holds and ends that wait for a transaction.")
        self.ledger_longest_wait = gauge(
            "cadenza_ledger_longest_wait_seconds", "How long one of them has waited, or is being written."
        )
        self.ledger_retries = count("cadenza_ledger_retries", "Batches of the ledger that the store did not accept.")
        self.ledger_refused = count("cadenza_ledger_refused", "Ledger entries refused by a rule: see the log.")
        self.ledger_short = count("cadenza_ledger_short_nano", "Nano-dollars due that the accounts did not have.")
        self.ledger_lost = count(
            "cadenza_ledger_lost", "Replies ended with an error because they could not be charged."
        )
        self.payment_events = count("cadenza_payment_events", "Events of the payment provider.", "result")
