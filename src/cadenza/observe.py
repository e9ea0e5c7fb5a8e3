"""Structured log and metrics: a leaf that anyone may import. Counts and metadata only, never content.

Labels and fields are names of our own (endpoint, class, provider, fault kind), never what a client or an upstream sent.
"""

import contextlib
import logging
import os
import signal
import sys
import traceback
from typing import TextIO, cast

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from structlog.typing import FilteringBoundLogger as Log

__all__ = ["FaultPoint", "Log", "Metrics", "Observer", "make_log", "places"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


def make_log(stream: TextIO | None = None) -> Log:
    """Lines for a person on a terminal, JSON everywhere else."""
    out = stream or sys.stderr
    last: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if out.isatty() else structlog.processors.JSONRenderer()
    )
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(cast("TextIO", SafeStream(out))),
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True), last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    return log


class SafeStream:
    """A stream that drops what it cannot write: a full disk or a closed pipe must not stop the service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def places(error: BaseException) -> list[str]:
    """Where an exception came from, without its text, which may quote what a client sent."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{type(error).__name__}", *(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-8:])]


class FaultPoint:
    """A named step of a request at which a test may have the process killed: `held`, or `written:3` for its third time.

    Armed by the environment alone; where it is not, a call of it is a comparison.
    """

    def __init__(self, armed: str | None = None) -> None:
        self._name, _, times = (armed or "").partition(":")
        self._left = int(times or 1)

    def __call__(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


class Metrics:
    """What Prometheus is shown."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "cadenza_requests", "Requests answered.", ["endpoint", "status"], registry=self.registry
        )
        self.in_flight = Gauge("cadenza_requests_in_flight", "Requests being answered.", registry=self.registry)
        self.duration = Histogram(
            "cadenza_request_seconds",
            "From the first byte in to the last byte out.",
            ["endpoint"],
            registry=self.registry,
            buckets=SECONDS,
        )
        self.first_byte = Histogram(
            "cadenza_first_byte_seconds",
            "From the first byte in to the first of the reply.",
            ["class_id"],
            registry=self.registry,
            buckets=SECONDS,
        )
        self.tokens = Counter("cadenza_tokens", "Tokens served.", ["class_id", "kind"], registry=self.registry)
        self.faults = Counter(
            "cadenza_upstream_faults", "Upstream failures.", ["provider", "kind"], registry=self.registry
        )
        self.refused = Counter(
            "cadenza_refused", "Requests told to come back later.", ["reason"], registry=self.registry
        )
        self.tasks = Gauge("cadenza_tasks", "Tasks of the event loop.", registry=self.registry)
        self.slots = Gauge("cadenza_slots_taken", "Chat requests in flight.", registry=self.registry)
        self.retries = Counter(
            "cadenza_retries", "Requests that needed another route.", ["result"], registry=self.registry
        )
        self.continued = Counter(
            "cadenza_continued", "Streams that broke off and went on here.", ["provider"], registry=self.registry
        )
        of_route = ["provider", "model"]
        self.route_limit = Gauge(
            "cadenza_route_limit", "How much a route is given at once.", of_route, registry=self.registry
        )
        self.route_in_flight = Gauge(
            "cadenza_route_in_flight", "Requests that a route answers.", of_route, registry=self.registry
        )
        self.route_resting = Gauge("cadenza_route_resting", "1 while a route rests.", of_route, registry=self.registry)
        self.ledger_commits = Counter("cadenza_ledger_commits", "Transactions of the ledger.", registry=self.registry)
        self.ledger_retries = Counter(
            "cadenza_ledger_retries", "Batches of the ledger that the store did not take.", registry=self.registry
        )
        self.ledger_refused = Counter(
            "cadenza_ledger_refused", "Moves that broke a rule of the ledger: look at the log.", registry=self.registry
        )
        self.ledger_short = Counter(
            "cadenza_ledger_short_nano", "Nano-dollars that were due and no account had.", registry=self.registry
        )
        self.doubtful_usage = Counter(
            "cadenza_doubtful_usage",
            "Replies whose upstream's counts cannot be true.",
            ["provider"],
            registry=self.registry,
        )

    def render(self) -> bytes:
        return generate_latest(self.registry)


class Observer:
    """What whoever does something worth knowing is handed: the log, the metrics, and the fault point of a test."""

    def __init__(self, log: Log, at: FaultPoint | None = None) -> None:
        self.log = log
        self.metrics = Metrics()
        self.at = at or FaultPoint()
