"""A span that has ended, and the attributes that spans may have: numbers, our own names and ids, never content."""

import msgspec
from opentelemetry.proto.trace.v1.trace_pb2 import Span

ATTRIBUTES = frozenset(  # any other one is not exported
    {
        "cadenza.class_version",
        "cadenza.grounding",
        "cadenza.key_id",
        "cadenza.request_id",
        "cadenza.status",
        "error.type",
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.request.stream",
        "gen_ai.response.finish_reasons",
        "gen_ai.response.id",
        "gen_ai.response.model",
        "gen_ai.response.time_to_first_chunk",
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
        "http.request.method",
        "http.response.status_code",
        "http.route",
        "url.scheme",
    }
)

STEP, REQUEST, CALL = Span.SPAN_KIND_INTERNAL, Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT  # kinds
Value = str | bool | int | float | tuple[str, ...]


class EndedSpan(msgspec.Struct, frozen=True):
    """One step of a traced request. The times are Unix nanoseconds; `error` is the kind of failure, or empty."""

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes  # empty for the first span of a trace
    start_ns: int
    end_ns: int
    kind: "Span.SpanKind.ValueType" = STEP
    attributes: dict[str, Value] = {}
    error: str = ""
