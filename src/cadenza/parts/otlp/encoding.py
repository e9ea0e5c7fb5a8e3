"""Spans and metrics as OTLP, the format of OpenTelemetry collectors. It needs the extra `cadenza[otlp]`.

The metrics are those of /metrics, from the same registry.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status, TracesData

from cadenza.observe.worker_metrics import Family, Labels
from cadenza.parts.otlp.spans import ATTRIBUTES, EndedSpan, Value

SCOPE = InstrumentationScope(name="cadenza")
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
UNITS = {"_seconds": "s", "_bytes": "By"}  # by the end of a metric's name


def make_resource(attributes: Mapping[str, Value]) -> Resource:
    """What every export says of its process."""
    return Resource(attributes=_key_values(attributes))


def make_span(ended: EndedSpan) -> Span:
    attributes = {name: value for name, value in ended.attributes.items() if name in ATTRIBUTES}
    if ended.error:
        attributes["error.type"] = ended.error
    return Span(
        trace_id=ended.trace_id,
        span_id=ended.span_id,
        parent_span_id=ended.parent_id,
        name=ended.name,
        kind=ended.kind,
        start_time_unix_nano=ended.start_ns,
        end_time_unix_nano=max(ended.start_ns, ended.end_ns),
        attributes=_key_values(attributes),
        status=Status(code=Status.STATUS_CODE_ERROR) if ended.error else None,
    )


def encode_spans(resource: Resource, spans: Iterable[Span]) -> bytes:
    scoped = ScopeSpans(scope=SCOPE, spans=spans)
    data = TracesData(resource_spans=[ResourceSpans(resource=resource, scope_spans=[scoped])])
    return bytes(data.SerializeToString())


def encode_metrics(resource: Resource, families: Iterable[Family], start_ns: int, now_ns: int) -> bytes:
    """All metrics, counted since `start_ns`."""
    metrics = [make_metric(family, start_ns, now_ns) for family in families if family.samples]
    scoped = ScopeMetrics(scope=SCOPE, metrics=metrics)
    data = MetricsData(resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scoped])])
    return bytes(data.SerializeToString())


def make_metric(family: Family, start_ns: int, now_ns: int) -> Metric:
    unit = next((unit for end, unit in UNITS.items() if family.name.endswith(end)), "")
    metric = Metric(name=family.name, description=family.help, unit=unit)
    if family.kind == "histogram":
        points = _histogram_points(family, start_ns, now_ns)
        metric.histogram.CopyFrom(Histogram(data_points=points, aggregation_temporality=CUMULATIVE))
        return metric
    numbers = [
        NumberDataPoint(
            attributes=_key_values(dict(labels)), start_time_unix_nano=start_ns, time_unix_nano=now_ns, as_double=value
        )
        for name, labels, value in family.samples
        if not name.endswith("_created")
    ]
    if family.kind == "counter":
        metric.sum.CopyFrom(Sum(data_points=numbers, aggregation_temporality=CUMULATIVE, is_monotonic=True))
    else:
        metric.gauge.CopyFrom(Gauge(data_points=numbers))
    return metric


def _histogram_points(family: Family, start_ns: int, now_ns: int) -> list[HistogramDataPoint]:
    """Prometheus counts what is below each bound, and OTLP what is between two."""
    below: dict[Labels, dict[float, float]] = defaultdict(dict)
    sums: dict[Labels, float] = {}
    for name, labels, value in family.samples:
        if name.endswith("_bucket"):
            bound = dict(labels)["le"]
            below[tuple(one for one in labels if one[0] != "le")][float(bound)] = value
        elif name.endswith("_sum"):
            sums[labels] = value
    points = []
    for labels, counts in below.items():
        totals = [int(counts[bound]) for bound in sorted(counts)]
        points.append(
            HistogramDataPoint(
                attributes=_key_values(dict(labels)),
                start_time_unix_nano=start_ns,
                time_unix_nano=now_ns,
                count=totals[-1],
                sum=sums.get(labels),
                bucket_counts=[total - before for before, total in zip([0, *totals], totals, strict=False)],
                explicit_bounds=sorted(counts)[:-1],
            )
        )
    return points


def _key_values(attributes: Mapping[str, Value]) -> list[KeyValue]:
    return [KeyValue(key=name, value=_any_value(value)) for name, value in attributes.items()]


def _any_value(value: Value) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=one) for one in value]))
