"""Traces and metrics reach an OpenTelemetry collector, which decodes them with the classes of the protocol itself."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.loopback import ROLE, Good, LoopbackUpstream, Request, Reset, Sse, Status, said
from tests.raw_client import RawClient
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec

NEEDLE = "n33dle-of-a-trace"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "vendor=t61rcWkgMzE"}
UNTRACED_ID = "0af7651916cd43dd8448eb211c80319c"
UNTRACED = {"traceparent": f"00-{UNTRACED_ID}-b7ad6b7169203331-00"}
BODY = {"model": "forte", "messages": [{"role": "user", "content": NEEDLE}], "user": NEEDLE}
OBSERVE = '[observe]\notlp_url = "{}"\nsample = 0\nheaders_env = "OTLP"\n'
HEADERS = "authorization=Bearer for-the-collector"


class Tree(msgspec.Struct, frozen=True):
    """A span by its name, and the spans below it, in the order of their starts."""

    name: str
    below: tuple["Tree", ...] = ()


class Collected(msgspec.Struct, frozen=True):
    """What a collector got from a service that has stopped, and what the upstreams got."""

    exports: list[Request]
    upstream: list[Request]
    spans: dict[str, list[Span]]  # by trace id
    resource: dict[str, Any]


def values_of(attributes: Any) -> dict[str, Any]:
    def value_of(pair: KeyValue) -> Any:
        kind = pair.value.WhichOneof("value")
        assert kind
        value = getattr(pair.value, kind)
        return [one.string_value for one in value.values] if kind == "array_value" else value

    return {pair.key: value_of(pair) for pair in attributes}


def tree_of(spans: list[Span], parent_id: str) -> tuple[Tree, ...]:
    below = sorted(
        (one for one in spans if one.parent_span_id.hex() == parent_id), key=lambda one: one.start_time_unix_nano
    )
    return tuple(Tree(one.name, tree_of(spans, one.span_id.hex())) for one in below)


def named(spans: list[Span], name: str) -> Span:
    [found] = [one for one in spans if one.name == name]
    return found


@pytest.fixture(scope="module")
def collected(shared_upstream: LoopbackUpstream) -> Iterator[Collected]:
    """A stream whose first route fails, one that breaks off, a refusal, and two requests that are not traced."""
    with LoopbackUpstream() as failing, LoopbackUpstream() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTLP", HEADERS)
        collector.always(Status(200))
        failing.always(Status(503, NEEDLE.encode()))
        spec = ServiceSpec(
            providers={"failing": failing.base_url, "good": shared_upstream.base_url},
            routes={
                "forte": [RouteSpec("failing", "one"), RouteSpec("good", "two", 1)],
                "mezzo": [RouteSpec("good", "two")],
            },
            more_toml=OBSERVE.format(collector.base_url.removesuffix("/v1")),
        )
        with Service(spec) as service:
            api = RawClient(service.port, service.key)
            shared_upstream.always(Good(NEEDLE))
            assert api.post(BODY | {"stream": True}, PARENT).status == 200
            shared_upstream.script(Sse([ROLE, said(NEEDLE), Reset()]))
            api.post(
                BODY | {"stream": True, "model": "mezzo"},
                {**PARENT, "traceparent": f"00-{'a' * 32}-{PARENT_ID}-01"},
            )
            api.post(BODY | {"model": NEEDLE}, {"traceparent": f"00-{'b' * 32}-{PARENT_ID}-01"})
            assert api.post(BODY | {"model": "mezzo"}, UNTRACED).status == 200
            assert api.post(BODY | {"model": "mezzo"}).status == 200
            service.stop()
        exports = collector.requests
        received = [ExportTraceServiceRequest.FromString(one.body) for one in exports if one.path == "/v1/traces"]
        upstream = [*failing.requests, *shared_upstream.requests]
        shared_upstream.reset()
        [resource] = {
            one.resource.SerializeToString(): one.resource for got in received for one in got.resource_spans
        }.values()
        spans: dict[str, list[Span]] = {}
        for got in received:
            for span in got.resource_spans[0].scope_spans[0].spans:
                spans.setdefault(span.trace_id.hex(), []).append(span)
        yield Collected(exports, upstream, spans, values_of(resource.attributes))


def test_one_trace_of_a_stream_whose_first_route_failed(collected: Collected) -> None:
    """The trace of the client goes on: each step is a span, and each route that was tried."""
    answered = Tree("route good/two", (Tree("first token"), Tree("relay")))
    chat = Tree("chat forte", (Tree("route failing/one"), answered))
    steps = tuple(map(Tree, ("rate", "read", "slot", "hold")))
    whole = Tree("POST /v1/chat/completions", (*steps, chat, Tree("settle")))
    assert tree_of(collected.spans[TRACE_ID], PARENT_ID) == (whole,)


def test_attributes_of_the_chat(collected: Collected) -> None:
    """They are those of the conventions for generative AI: class, provider, tokens and how it ended."""
    spans = collected.spans[TRACE_ID]
    chat = values_of(named(spans, "chat forte").attributes)
    assert chat.pop("gen_ai.response.id").startswith("chatcmpl-")
    assert 0 < chat.pop("gen_ai.response.time_to_first_chunk") < 60
    assert chat == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "good",
        "gen_ai.request.model": "forte",
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "two",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.output_tokens": 7,
        "cadenza.class_version": 1,
    }
    failed = named(spans, "route failing/one")
    assert failed.status.code == failed.status.STATUS_CODE_ERROR
    assert values_of(failed.attributes).items() >= {"error.type": "failed", "http.response.status_code": 503}.items()
    whole = values_of(named(spans, "POST /v1/chat/completions").attributes)
    assert whole.items() >= {"http.response.status_code": 200, "cadenza.status": 200, "url.scheme": "http"}.items()


def test_a_stream_that_broke_off(collected: Collected) -> None:
    """The route, the chat and the request have the kind of the fault, though the status that was sent is 200."""
    spans = collected.spans["a" * 32]
    for name in ("route good/two", "relay", "chat mezzo", "POST /v1/chat/completions"):
        assert values_of(named(spans, name).attributes)["error.type"] == "truncated", name
    assert values_of(spans[0].attributes).items() >= {"http.response.status_code": 200, "cadenza.status": 502}.items()


def test_a_refused_request(collected: Collected) -> None:
    """The step that it ended in has the error, and no upstream was asked."""
    assert [one.name for one in collected.spans["b" * 32]] == ["POST /v1/chat/completions", "rate", "read", "slot"]
    assert named(collected.spans["b" * 32], "slot").status.code


def test_upstreams_continue_the_trace(collected: Collected) -> None:
    """Each is told the span of its own attempt; of a request that is not traced here, what its client said."""
    told: list[Mapping[str, str]] = [one.headers for one in collected.upstream]
    routes = [named(collected.spans[TRACE_ID], name).span_id.hex() for name in ("route failing/one", "route good/two")]
    sent = [one.get("traceparent") for one in told]
    assert sent[:2] == [f"00-{TRACE_ID}-{span_id}-01" for span_id in routes]
    assert [one.get("tracestate") for one in told[:2]] == [PARENT["tracestate"]] * 2
    assert sent[-2:] == [UNTRACED["traceparent"], None]
    assert set(collected.spans) == {TRACE_ID, "a" * 32, "b" * 32}


def test_exports_have_no_content(collected: Collected) -> None:
    """Neither the messages, nor what upstreams said, nor the state of the client's trace is in any byte of them."""
    sent = b"".join(one.body for one in collected.exports)
    assert len(sent) > 1000
    assert [needle for needle in (NEEDLE, "t61rcWkgMzE") if needle.encode() in sent] == []
    assert {one.headers["authorization"] for one in collected.exports} == {"Bearer for-the-collector"}
    assert collected.resource["service.name"] == "cadenza"


def test_metrics_are_those_of_the_metrics_page(collected: Collected) -> None:
    """The last push has the counters of the service, with their labels, and histograms with their buckets."""
    last = [one.body for one in collected.exports if one.path == "/v1/metrics"][-1]
    [scoped] = ExportMetricsServiceRequest.FromString(last).resource_metrics[0].scope_metrics
    metrics = {one.name: one for one in scoped.metrics}
    requests = {
        values_of(point.attributes)["status"]: point.as_double for point in metrics["cadenza_requests"].sum.data_points
    }
    assert requests == {"200": 3, "400": 1, "502": 1}
    assert metrics["cadenza_requests"].sum.is_monotonic
    [point] = metrics["cadenza_request_seconds"].histogram.data_points
    assert (point.count, sum(point.bucket_counts), len(point.bucket_counts)) == (5, 5, len(point.explicit_bounds) + 1)
    assert metrics["cadenza_request_seconds"].unit == "s"
    assert metrics["cadenza_workers"].gauge.data_points[0].as_double == 1
