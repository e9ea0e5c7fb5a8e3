"""The export of spans: nothing waits for a collector, and what it does not get is counted."""

import asyncio
import io
import json
from typing import Any

from prometheus_client import generate_latest

from cadenza.observe import Observer, make_log
from cadenza.parts.otlp.encoding import make_span
from cadenza.parts.otlp.exporter import QUEUE_MAX, TRACES_PATH, OtlpExporter
from cadenza.parts.otlp.spans import EndedSpan

SPAN = EndedSpan(name="rate", trace_id=b"t" * 16, span_id=b"s" * 8, parent_id=b"", start_ns=1, end_ns=2)
WAIT_S = 30.0


class Exporting:
    """An exporter whose collector answers its posts of spans with these statuses, and then with 200."""

    def __init__(self, *statuses: int | None) -> None:
        self._out = io.StringIO()
        self._statuses = [*statuses]
        self.posts = 0
        self.taken = asyncio.Event()  # a post of spans
        self.observer = Observer(make_log(self._out))
        self.exporter = OtlpExporter(self.post, self.observer, {}, every_s=0.001, flush_s=0.05)

    async def post(self, path: str, _body: bytes) -> int | None:
        if path != TRACES_PATH:
            return 200
        self.posts += 1
        if self._statuses:
            return self._statuses.pop(0)
        self.taken.set()
        return 200

    @property
    def lines(self) -> list[tuple[str, Any]]:
        lines = [json.loads(line) for line in self._out.getvalue().splitlines()]
        return [(line["event"], line.get("status", line.get("dropped"))) for line in lines]

    @property
    def counted(self) -> dict[str, float]:
        families = {family.name: family for family in self.observer.metrics.registry.collect()}
        counted = {sample.labels["result"]: sample.value for sample in families["cadenza_spans"].samples}
        return {result: count for result, count in counted.items() if count}


async def test_a_busy_collector_is_tried_again() -> None:
    """A batch is sent until it is taken; the log has the first failure and the end of it."""
    one = Exporting(503, None, 429)
    one.exporter.add([SPAN] * 3)
    one.exporter.start()
    async with asyncio.timeout(WAIT_S):
        await one.taken.wait()
    await one.exporter.stop()
    assert (one.posts, one.counted) == (4, {"exported": 3})
    assert one.lines == [("the collector does not take an export", 503), ("the collector takes exports again", None)]


async def test_a_batch_that_is_refused_is_dropped() -> None:
    """It would be refused again. Later ones are sent."""
    one = Exporting(400)
    one.exporter.add([SPAN] * 2)
    await one.exporter.stop()
    one.exporter.add([SPAN])
    await one.exporter.stop()
    assert one.counted == {"refused": 2, "exported": 1}


async def test_the_queue_is_bounded() -> None:
    """Spans for which there is no room are dropped and counted."""
    one = Exporting()
    for _ in range(3):
        one.exporter.add([SPAN] * (QUEUE_MAX // 2))
    assert one.counted == {"full": QUEUE_MAX // 2}
    assert b'cadenza_spans_total{result="full"}' in generate_latest(one.observer.metrics.registry)


async def test_a_stop_does_not_wait_for_a_silent_collector() -> None:
    """It tries for a bounded time, and logs how many spans are lost."""

    async def never(_path: str, _body: bytes) -> int | None:
        await asyncio.Future()
        return None

    out = io.StringIO()
    exporter = OtlpExporter(never, Observer(make_log(out)), {}, flush_s=0.01)
    exporter.add([SPAN] * 5)
    async with asyncio.timeout(WAIT_S):
        await exporter.stop()
    assert json.loads(out.getvalue())["dropped"] == 5


def test_only_listed_attributes_are_exported() -> None:
    """An attribute that is not on the list is left out, whatever code adds it."""
    span = EndedSpan(
        name="rate",
        trace_id=b"t" * 16,
        span_id=b"s" * 8,
        parent_id=b"",
        start_ns=2,
        end_ns=1,
        attributes={"gen_ai.input.messages": "content", "cadenza.status": 200},
    )
    made = make_span(span)
    assert [pair.key for pair in made.attributes] == ["cadenza.status"]
    assert made.end_time_unix_nano == 2
