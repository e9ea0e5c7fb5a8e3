"""Log and metrics: lines that a machine can read, places without texts, and counts under our own names."""

import io
import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cadenza.observe import Metrics, make_log, places

SECRET = "what a client said"


class Terminal(io.StringIO):
    """A stream that says of itself that it is a terminal."""

    def isatty(self) -> bool:
        return True


def fail(depth: int) -> None:
    if depth:
        fail(depth - 1)
    raise ValueError(SECRET)


def caught(depth: int) -> ValueError:
    with pytest.raises(ValueError, match=SECRET) as caught_error:
        fail(depth)
    return caught_error.value


def test_places_name_the_type_and_where_it_came_from() -> None:
    """The exception's type, then file, line and function of each frame, the innermost last."""
    kind, *frames = places(caught(2))
    assert kind == "ValueError"
    assert [frame.split(" ")[-1] for frame in frames] == ["caught", "fail", "fail", "fail"]
    assert all("test_metrics.py:" in frame for frame in frames)


def test_places_never_contain_the_text() -> None:
    """Neither the exception's own text nor that of its cause, its notes or its source lines is there."""
    cause = caught(0)
    cause.add_note(SECRET)
    try:
        raise KeyError(SECRET) from cause
    except KeyError as error:
        said = " ".join(places(error))
    assert SECRET not in said
    assert said.startswith("KeyError ")


def test_places_are_few() -> None:
    """Of a deep stack the innermost frames are enough."""
    assert len(places(caught(50))) == 9


def test_an_exception_that_was_never_raised_has_no_place() -> None:
    """Without a traceback only the type is known."""
    assert places(ValueError(SECRET)) == ["ValueError"]


def test_a_log_line_is_json() -> None:
    """Off a terminal each event is one JSON object on one line: level, time and the fields."""
    out = io.StringIO()
    log = make_log(out)
    log.info("request", request_id="r1\nr2", status=200)
    log.error("internal error", places=["ValueError"])
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {"event": "request", "level": "info", "request_id": "r1\nr2", "status": 200}
    assert (second["level"], second["places"]) == ("error", ["ValueError"])


def test_debug_lines_are_not_written() -> None:
    """The log begins at info."""
    out = io.StringIO()
    make_log(out).debug("detail")
    assert out.getvalue() == ""


def test_a_terminal_gets_lines_for_a_person() -> None:
    """On a terminal the line is text, not JSON."""
    out = Terminal()
    make_log(out).info("request", status=200)
    assert "request" in out.getvalue()
    assert not out.getvalue().startswith("{")


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_are_rendered_as_prometheus_reads_them() -> None:
    """Every metric that is noted appears in the text with its name, its labels and its value."""
    metrics = Metrics()
    metrics.requests.add("chat", "200")
    metrics.in_flight.inc()
    metrics.duration.add("chat", 0.02)
    metrics.first_byte.add("forte", 400)
    metrics.tokens.add("forte", "prompt", amount=9)
    metrics.faults.labels("acme", "busy").inc(2)
    shown = samples(metrics)
    assert shown["cadenza_requests_total", "chat", "200"] == 1
    assert shown["cadenza_requests_in_flight",] == 1
    assert shown["cadenza_request_seconds_count", "chat"] == 1
    assert shown["cadenza_request_seconds_bucket", "chat", "0.025"] == 1
    assert shown["cadenza_request_seconds_bucket", "chat", "0.01"] == 0
    assert shown["cadenza_first_byte_seconds_bucket", "forte", "300.0"] == 0
    assert shown["cadenza_first_byte_seconds_bucket", "forte", "+Inf"] == 1
    assert shown["cadenza_tokens_total", "forte", "prompt"] == 9
    assert shown["cadenza_upstream_faults_total", "busy", "acme"] == 2


def test_metrics_are_each_their_own() -> None:
    """Two services in one process do not count into each other."""
    one, other = Metrics(), Metrics()
    one.in_flight.inc()
    assert samples(other)["cadenza_requests_in_flight",] == 0
