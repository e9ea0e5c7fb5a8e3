"""What is counted of files, memory and search. A reload keeps the counts."""

from prometheus_client import CollectorRegistry, Counter

from cadenza.observe.metrics import LabelledHistogram


class GroundingMetrics:
    """On the registry of a service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.results = Counter(
            "cadenza_grounding", "What a part of grounding did for a request.", ("part", "result"), registry=registry
        )
        self.failures = Counter(
            "cadenza_grounding_failures", "Parts of grounding left out.", ("part", "reason"), registry=registry
        )
        self.seconds = LabelledHistogram(
            "cadenza_grounding_seconds", "How long a part of grounding took.", "part", registry
        )
