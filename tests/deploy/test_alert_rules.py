"""Each alert fires in its outage, and nowhere else: promtool runs the rules over series, with all their durations."""

import subprocess
from pathlib import Path

import pytest
import yaml
from deploy.dashboard import ALERTS

from tests.debian import find_or_install
from tests.deploy.files import alert_rules

pytestmark = pytest.mark.slow(reason="runs promtool, of Debian's packages")
RUN_S = 60.0
MINUTES = 30  # most alerts need less
STEPS_MAX = 150
INSTANCE = 'instance="a:8080",job="cadenza"'

Series = dict[str, str]


def counter(per_minute: float) -> str:
    return f"0+{per_minute:g}x{STEPS_MAX}"


def gauge(value: float) -> str:
    return f"{value:g}x{STEPS_MAX}"


def buckets(name: str, labels: str, counts: dict[str, float]) -> Series:
    """The series of a histogram: how many values a minute are at most each bound."""
    return {f'{name}_bucket{{{labels}{INSTANCE},le="{bound}"}}': counter(count) for bound, count in counts.items()}


def of(name: str, labels: str = "") -> str:
    return f"{name}{{{labels}{',' if labels else ''}{INSTANCE}}}"


CLASS, ROUTE = 'class_id="forte"', 'provider="acme",model="large"'
OK, BAD = of("cadenza_requests_total", 'endpoint="chat",status="200"'), 'endpoint="chat",status="502"'
HEALTHY: Series = {
    of("up"): gauge(1),
    OK: counter(600),
    of("cadenza_requests_total", BAD): counter(6),
    of("cadenza_charged_dollars_total", f'{CLASS},provider="acme",cost="known"'): counter(3),
    of("cadenza_provider_cost_dollars_total", f'{CLASS},provider="acme"'): counter(2),
    of("cadenza_ledger_short_nano_total"): counter(1e6),
    of("cadenza_upstream_faults_total", 'provider="acme",kind="failed"'): counter(6),
    of("cadenza_upstream_faults_total", 'provider="acme",kind="unauthorized"'): counter(0),
    of("cadenza_upstream_faults_total", 'provider="acme",kind="quota"'): counter(0),
    of("cadenza_route_state", f'{ROUTE},state="open"'): gauge(0),
    of("cadenza_route_state", f'{ROUTE},state="closed"'): gauge(1),
    of("cadenza_doubtful_usage_total", 'provider="acme"'): counter(0),
    of("cadenza_ledger_retries_total"): counter(0),
    of("cadenza_ledger_longest_wait_seconds"): gauge(0.25),
    of("cadenza_ledger_refused_total"): counter(0),
    of("cadenza_ledger_lost_total"): counter(0),
    of("cadenza_refused_total", 'reason="rate"'): counter(600),
    of("cadenza_refused_total", 'reason="slots"'): counter(6),
    of("cadenza_shared_state_up"): gauge(1),
    of("cadenza_grounding_failures_total", 'part="memory",reason="late"'): counter(1),
    of("cadenza_log_dropped_total"): counter(0),
    **buckets("cadenza_first_byte_seconds", f"{CLASS},", {"1.0": 500, "10.0": 590, "30.0": 600, "+Inf": 600}),
    **buckets("cadenza_stream_gap_seconds", f"{CLASS},", {"1.0": 580, "10.0": 599, "30.0": 600, "+Inf": 600}),
    **buckets("cadenza_ledger_commit_seconds", "", {"0.01": 600, "1.0": 600, "2.5": 600, "+Inf": 600}),
    **buckets("cadenza_loop_lag_seconds", "", {"0.01": 240, "0.25": 240, "0.5": 240, "+Inf": 240}),
}
OUTAGES: dict[str, Series] = {
    "CadenzaDown": {of("up"): gauge(0)},
    "CadenzaChatsFail": {of("cadenza_requests_total", BAD): counter(60)},
    "CadenzaFirstByteIsSlow": buckets(
        "cadenza_first_byte_seconds", f"{CLASS},", {"1.0": 400, "10.0": 400, "30.0": 600, "+Inf": 600}
    ),
    "CadenzaStreamsStall": buckets(
        "cadenza_stream_gap_seconds", f"{CLASS},", {"1.0": 540, "10.0": 540, "30.0": 600, "+Inf": 600}
    ),
    "CadenzaCreditShort": {of("cadenza_ledger_short_nano_total"): counter(1e8)},
    "CadenzaMarginIsNegative": {of("cadenza_provider_cost_dollars_total", f'{CLASS},provider="acme"'): counter(4)},
    "CadenzaProviderRejectsKey": {
        of("cadenza_upstream_faults_total", 'provider="acme",kind="unauthorized"'): f"0x{MINUTES - 5} 1x{MINUTES}"
    },
    "CadenzaProviderIsUnpaid": {
        of("cadenza_upstream_faults_total", 'provider="acme",kind="quota"'): f"0x{MINUTES - 5} 1x{MINUTES}"
    },
    "CadenzaRouteRests": {  # half-open at every second look
        of("cadenza_route_state", f'{ROUTE},state="open"'): " ".join(["1 0"] * STEPS_MAX)
    },
    "CadenzaCountsAreDoubtful": {of("cadenza_doubtful_usage_total", 'provider="acme"'): f"0x{MINUTES - 5} 1x{MINUTES}"},
    "CadenzaStoreFails": {of("cadenza_ledger_longest_wait_seconds"): gauge(30)},
    "CadenzaCommitsAreSlow": buckets(
        "cadenza_ledger_commit_seconds", "", {"0.01": 500, "1.0": 590, "2.5": 600, "+Inf": 600}
    ),
    "CadenzaLedgerRefused": {of("cadenza_ledger_refused_total"): f"0x{MINUTES - 5} 1x{MINUTES}"},
    "CadenzaRepliesLost": {of("cadenza_ledger_lost_total"): f"0x{MINUTES - 5} 1x{MINUTES}"},
    "CadenzaSaturated": {of("cadenza_refused_total", 'reason="slots"'): counter(120)},
    "CadenzaLimitsNotShared": {of("cadenza_shared_state_up"): gauge(0)},
    "CadenzaSearchFails": {of("cadenza_grounding_failures_total", 'part="search",reason="refused"'): counter(3)},
    "CadenzaLoopLags": buckets("cadenza_loop_lag_seconds", "", {"0.01": 200, "0.25": 200, "0.5": 240, "+Inf": 240}),
    "CadenzaLogDropped": {of("cadenza_log_dropped_total"): f"0x{MINUTES - 5} 1x{MINUTES}"},
}


LONG = {"CadenzaMarginIsNegative": 130}  # minutes until the alert fires


def case(series: Series, firing: list[str], minutes: int) -> dict[str, object]:
    """After this time exactly these alerts fire."""
    return {
        "name": " ".join(firing) or "healthy",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minutes}m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing],
            }
        ],
    }


def test_each_alert_has_its_outage() -> None:
    """No rule is without one."""
    assert set(OUTAGES) == {rule["alert"] for rule in alert_rules()}


def test_alerts_fire_in_their_outage_only(tmp_path: Path) -> None:
    """In each outage its own alert fires and no other; on a healthy service, none does."""
    outages: dict[str, Series] = {"": {}, **OUTAGES}
    cases = [
        case(HEALTHY | series, [alert] if alert else [], LONG.get(alert, MINUTES)) for alert, series in outages.items()
    ]
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": cases}))
    command = [find_or_install("promtool", "prometheus"), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
