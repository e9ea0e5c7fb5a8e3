"""Sends spans and metrics to an OpenTelemetry collector. It needs the extra `cadenza[otlp]`.

Stance on failure: no request waits for it. Spans wait in a bounded queue; a collector that is slow, down or busy is
tried again with backoff, and spans for which the queue has no room are dropped and counted. Metrics are sums since the
start, so a push that failed is made up for by the next one. A stop sends what is left, within a bounded time.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from cadenza.observe import Observer
from cadenza.observe.worker_metrics import read_families
from cadenza.parts.otlp.encoding import encode_metrics, encode_spans, make_resource, make_span
from cadenza.parts.otlp.spans import EndedSpan, Value

QUEUE_MAX = 8192  # spans
BATCH_MAX = 512
SPANS_EVERY_S = 5.0
METRICS_EVERY_S = 60.0
BACKOFF_S_MAX = 60.0
FLUSH_S = 3.0
RETRIED = {429, 502, 503, 504}
RESULTS = ("exported", "full", "refused")  # of a span
TRACES_PATH, METRICS_PATH = "/v1/traces", "/v1/metrics"

Post = Callable[[str, bytes], Awaitable[int | None]]  # path and body -> the status; None if there was no answer


class OtlpExporter:
    """The exporter of one process."""

    def __init__(
        self,
        post: Post,
        observer: Observer,
        resource: Mapping[str, Value],
        every_s: float = SPANS_EVERY_S,
        flush_s: float = FLUSH_S,
    ) -> None:
        self._post = post
        self._every_s = every_s
        self._flush_s = flush_s
        self._observer = observer
        self._resource = make_resource(resource)
        self._started_ns = time.time_ns()
        self._queue: deque[Span] = deque()
        self._is_full = asyncio.Event()  # there is a whole batch
        self._failing: set[str] = set()  # paths whose last export failed
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, spans: Sequence[EndedSpan]) -> None:
        """Export the spans of a trace soon, or drop them if too many wait."""
        if len(self._queue) + len(spans) > QUEUE_MAX:
            self._observer.metrics.spans.add("full", amount=len(spans))
            return
        self._queue.extend(map(make_span, spans))
        if len(self._queue) >= BATCH_MAX:
            self._is_full.set()

    def start(self) -> None:
        for result in RESULTS:  # from zero on: Prometheus sees no increase in a series that begins above it
            self._observer.metrics.spans.add(result, amount=0)
        sending = self._keep_sending_spans(), self._keep_sending_metrics()
        self._tasks = [asyncio.create_task(one) for one in sending]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._flush_s):
                while self._queue and await self._send_spans():
                    pass
                await self._send_metrics()
        if self._queue:
            self._observer.log.warning("spans were not exported", dropped=len(self._queue))

    async def _keep_sending_spans(self) -> None:
        backoff_s = self._every_s
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_full.wait(), self._every_s)
            self._is_full.clear()
            while self._queue:
                if await self._send_spans():
                    backoff_s = self._every_s
                else:
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)

    async def _keep_sending_metrics(self) -> None:
        while True:
            await asyncio.sleep(METRICS_EVERY_S)
            await self._send_metrics()

    async def _send_spans(self) -> bool:
        """Send one batch. False if it must be sent again later."""
        batch = list(islice(self._queue, BATCH_MAX))
        status = await self._send(TRACES_PATH, encode_spans(self._resource, batch))
        if status is None or status in RETRIED:
            return False
        for _ in batch:
            self._queue.popleft()
        self._observer.metrics.spans.add("exported" if status < 300 else "refused", amount=len(batch))
        return True

    async def _send_metrics(self) -> None:
        families = read_families(self._observer.metrics.registry)
        await self._send(METRICS_PATH, encode_metrics(self._resource, families, self._started_ns, time.time_ns()))

    async def _send(self, path: str, body: bytes) -> int | None:
        """The status of the reply. The log has a line when exports begin to fail, and when they work again."""
        status, kind = await self._post(path, body), path.removeprefix("/v1/")
        if status is None or status >= 300:
            if path not in self._failing:
                self._failing.add(path)
                self._observer.log.warning("the collector does not take an export", kind=kind, status=status)
        elif path in self._failing:
            self._failing.remove(path)
            self._observer.log.info("the collector takes exports again", kind=kind)
        return status
