"""The one record of every request: from an outcome to its metrics and its log line."""

import io
import json
from typing import Any

import pytest
from msgspec.structs import replace

from cadenza.core.records import Outcome, Usage
from cadenza.observe import Observer, make_log

CHAT = Outcome(
    request_id="req_1",
    endpoint="chat",
    status=200,
    duration_ms=1500,
    ended_at=1_800_000_000_000,
    key_id="key_a",
    account_id="acct_a",
    completion_id="chatcmpl-x",
    class_id="forte",
    provider="acme",
    model="acme-large",
    usage=Usage(9, 3, 2),
    first_byte_ms=400,
)
CHAT_LINE = {
    "request_id": "req_1",
    "endpoint": "chat",
    "status": 200,
    "ms": 1500,
    "key_id": "key_a",
    "completion_id": "chatcmpl-x",
    "class_id": "forte",
    "provider": "acme",
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "event": "request",
    "level": "info",
}
UNUSED = Outcome(request_id="req_2", endpoint="models", status=401, duration_ms=2, ended_at=1_800_000_000_000)


class Recorder:
    """An observer, and what it wrote."""

    def __init__(self, *outcomes: Outcome) -> None:
        self._out = io.StringIO()
        self._observer = Observer(make_log(self._out))
        self.record = self._observer.record
        for outcome in outcomes:
            self.record(outcome)

    @property
    def lines(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._out.getvalue().splitlines()]
        assert all(line.pop("timestamp") for line in lines)
        return lines

    def value(self, name: str, **labels: str) -> float | None:
        return self._observer.metrics.registry.get_sample_value(name, labels)


@pytest.mark.parametrize("status", [200, 499])
def test_the_log_line_of_a_chat_has_both_ids_and_its_tokens(status: int) -> None:
    """Request id, completion id, key, class, provider, status, time and tokens; also if the client disconnected."""
    assert Recorder(replace(CHAT, status=status)).lines == [{**CHAT_LINE, "status": status}]


@pytest.mark.parametrize("status", [200, 499])
def test_the_metrics_of_a_chat(status: int) -> None:
    """Requests by endpoint and status, durations, first bytes by class, and tokens by class and kind."""
    recorder = Recorder(replace(CHAT, status=status), replace(CHAT, status=status))
    assert recorder.value("cadenza_requests_total", endpoint="chat", status=str(status)) == 2
    assert recorder.value("cadenza_request_seconds_count", endpoint="chat") == 2
    assert recorder.value("cadenza_request_seconds_sum", endpoint="chat") == pytest.approx(3.0)
    assert recorder.value("cadenza_first_byte_seconds_count", class_id="forte") == 2
    assert recorder.value("cadenza_first_byte_seconds_sum", class_id="forte") == pytest.approx(0.8)
    for kind, tokens in (("prompt", 18), ("cached", 4), ("completion", 6)):
        assert recorder.value("cadenza_tokens_total", class_id="forte", kind=kind) == tokens


def test_a_request_without_a_key_and_without_credit_has_only_the_basic_facts() -> None:
    """Its line has no empty fields, and it counts no tokens and no first byte."""
    recorder = Recorder(UNUSED)
    assert recorder.lines == [
        {"request_id": "req_2", "endpoint": "models", "status": 401, "ms": 2, "event": "request", "level": "info"}
    ]
    assert recorder.value("cadenza_requests_total", endpoint="models", status="401") == 1
    assert recorder.value("cadenza_first_byte_seconds_count", class_id="") is None
    assert recorder.value("cadenza_tokens_total", class_id="", kind="prompt") is None


def test_a_chat_that_is_not_charged_counts_no_tokens() -> None:
    """Without usage and first byte the line still has both ids, and the fault that ended the request."""
    recorder = Recorder(replace(CHAT, status=502, usage=None, first_byte_ms=None, fault="timed_out"))
    [line] = recorder.lines
    assert (line["request_id"], line["completion_id"], line["fault"]) == ("req_1", "chatcmpl-x", "timed_out")
    assert "prompt_tokens" not in line
    assert recorder.value("cadenza_tokens_total", class_id="forte", kind="prompt") is None
    assert recorder.value("cadenza_first_byte_seconds_count", class_id="forte") is None


def test_money_is_counted_by_class_and_provider() -> None:
    """In dollars; charges apart by whether the cost is known, so that the margin is a difference of two counters."""
    recorder = Recorder()
    recorder.record(CHAT, 3_000_000_000, 1_250_000_000)
    recorder.record(CHAT, 500_000_000, None)
    of_route = {"class_id": "forte", "provider": "acme"}
    assert recorder.value("cadenza_charged_dollars_total", cost="known", **of_route) == 3
    assert recorder.value("cadenza_charged_dollars_total", cost="unknown", **of_route) == 0.5
    assert recorder.value("cadenza_provider_cost_dollars_total", **of_route) == 1.25
    assert recorder.value("cadenza_tokens_total", class_id="forte", kind="prompt") == 18


def test_the_longest_gap_of_a_stream_is_counted_by_class() -> None:
    """One value for each stream, and none for a reply without a gap."""
    recorder = Recorder(replace(CHAT, gap_ms=2000), CHAT)
    assert recorder.value("cadenza_stream_gap_seconds_count", class_id="forte") == 1
    assert recorder.value("cadenza_stream_gap_seconds_sum", class_id="forte") == 2


@pytest.mark.parametrize("is_doubtful", [True, False])
def test_doubtful_usage_is_counted_by_provider_and_logged(is_doubtful: bool) -> None:
    """Counts of an upstream that could not be true are visible in the metrics and in the line."""
    recorder = Recorder(replace(CHAT, has_doubtful_usage=is_doubtful))
    assert recorder.value("cadenza_doubtful_usage_total", provider="acme") == (1 if is_doubtful else None)
    events = [line["event"] for line in recorder.lines]
    assert ("an upstream's counts cannot be true" in events) is is_doubtful
