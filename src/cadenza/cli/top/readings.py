"""What services do now, and what they did between two readings. Pure."""

import msgspec

from cadenza.cli.running_service import Reading
from cadenza.observe.facts import RouteFact, read_routes
from cadenza.observe.problem import Problem

GAUGES = (
    *("cadenza_workers", "process_resident_memory_bytes", "cadenza_requests_in_flight", "cadenza_slots_taken"),
    *("cadenza_slots_limit", "cadenza_holds", "cadenza_ledger_waiting_moves"),
)
RATES = {  # the counter, its label, and of how many seconds
    "requests/s": ("cadenza_requests_total", "status", 1),
    "refused/s": ("cadenza_refused_total", "reason", 1),
    "faults/s": ("cadenza_upstream_faults_total", "provider", 1),
    "tokens/s": ("cadenza_tokens_total", "kind", 1),
    "charged $/h": ("cadenza_charged_dollars_total", "class_id", 3600),
    "cost $/h": ("cadenza_provider_cost_dollars_total", "class_id", 3600),
}
PERCENTILES = {
    "first token p50": ("cadenza_first_byte_seconds", 0.5),
    "p95": ("cadenza_first_byte_seconds", 0.95),
    "commit p95": ("cadenza_ledger_commit_seconds", 0.95),
    "loop lag p99": ("cadenza_loop_lag_seconds", 0.99),
}


class Numbers(msgspec.Struct, frozen=True):
    """Gauges of now, and rates and percentiles since an earlier reading; a percentile of nothing is None."""

    at_s: float
    answered: int
    gauges: dict[str, int]
    rates: dict[str, dict[str, float]]
    seconds: dict[str, float | None]
    routes: list[RouteFact]
    problems: list[Problem]


def compare(before: Reading, now: Reading) -> Numbers:
    grown, elapsed_s = now.samples.since(before.samples), max(now.at_s - before.at_s, 1e-9)
    return Numbers(
        now.at_s,
        now.answered,
        {name.removeprefix("cadenza_"): round(now.samples.total(name)) for name in GAUGES},
        {
            name: {part: each_s * value / elapsed_s for part, value in grown.by_label(metric, label).items() if value}
            for name, (metric, label, each_s) in RATES.items()
        },
        {name: grown.percentile(metric, part) for name, (metric, part) in PERCENTILES.items()},
        read_routes(now.samples),
        now.problems,
    )
