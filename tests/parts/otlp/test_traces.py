"""Which requests are traced, and the spans of those that end in unusual ways."""

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path

from cadenza.core.faults import FaultKind
from cadenza.core.money import Price
from cadenza.core.records import ReplyResult, Route, Usage
from cadenza.gateway.api import CHAT, Router
from cadenza.ledger.rules import Hold
from cadenza.parts.otlp.spans import ATTRIBUTES, EndedSpan
from cadenza.parts.otlp.traces import FOLLOWED_PER_S, TracedRecord, Tracer
from cadenza.upstreams.base import Fault
from tests.docs.markdown import ROOT
from tests.unit.gateway.client import Client
from tests.unit.gateway.funded_store import FundedStore
from tests.unit.gateway.gateways import running_api
from tests.unit.gateway.scripted_upstream import ScriptedUpstream

PARENT = [(b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
FIRST, SECOND = Route("first", "one", 1000, 100), Route("second", "two", 1000, 100)
HOLD = Hold("chatcmpl-one", "a", "k", "forte", 100, 50, Price(10, 30), stream=True, started_at=1)
BROKEN = Fault(FaultKind.TRUNCATED)


def reached() -> list[str]:
    return ["identified", "read", "admitted", "quoted"]


def traced_chat(*marks: str) -> TracedRecord:
    """The record of a chat that has reached these steps, its credit held at the last."""
    record = TracedRecord(Client().open(), len, CHAT, None)
    record.endpoint = "chat"
    for mark in marks:
        record.at(mark)
    return record


def held_chat() -> TracedRecord:
    record = traced_chat(*reached())
    record.held(HOLD)
    record.at("held")
    return record


def ask(record: TracedRecord) -> None:
    """An upstream is asked, and told the trace."""
    assert record.upstream_headers
    assert record.upstream_headers().startswith(b"traceparent: 00-")


def shown(spans: Sequence[EndedSpan]) -> list[tuple[str, str]]:
    return [(span.name, span.error) for span in spans]


async def test_a_continued_stream() -> None:
    """Both routes are in the trace: the one that broke off with its fault, and the one that went on."""
    record = held_chat()
    ask(record)
    record.routed(FIRST)
    record.at("opened")
    record.broke_off(FIRST, BROKEN)
    ask(record)
    record.routed(SECOND)
    for mark in ("relayed", "settled", "finished"):
        record.at(mark)
    record.outcome(200, ReplyResult(Usage(1, 2), "stop"))
    chat = [("chat forte", ""), ("route first/one", "truncated"), ("first token", ""), ("relay", "truncated")]
    went_on = [("route second/two", ""), ("first token", ""), ("relay", "")]
    assert shown(record.spans())[-8:] == [("settle", ""), *chat, *went_on]


async def test_a_client_that_leaves_before_the_first_token() -> None:
    """The route that worked for it has an error and no first token."""
    record = held_chat()
    ask(record)
    record.ended_by(asyncio.CancelledError())
    record.left_to(FIRST)
    record.outcome(499)
    assert shown(record.spans())[-2:] == [("chat forte", "disconnected"), ("route first/one", "disconnected")]


async def test_a_route_that_is_not_told_the_trace() -> None:
    """Its attempt begins when credit is held, or when the attempt before it failed."""
    record = held_chat()
    record.failed(FIRST, BROKEN)
    record.routed(SECOND)
    spans = {span.name: span for span in record.spans()}
    assert spans["route first/one"].start_ns == spans["chat forte"].start_ns
    assert spans["route second/two"].start_ns == spans["route first/one"].end_ns


async def test_grounding_has_its_parts() -> None:
    """Each part has a span below `grounding`; one that failed has an error, and the request goes on."""
    record = traced_chat("identified", "read", "admitted")
    record.gathered("memory", time.perf_counter(), "added")
    record.gathered("search", time.perf_counter(), "late")
    record.at("quoted")
    spans = {span.name: span for span in record.spans()}
    grounding = spans["grounding"]
    assert not grounding.error
    parts = [spans["grounding memory"], spans["grounding search"]]
    assert [(part.parent_id, part.error) for part in parts] == [(grounding.span_id, ""), (grounding.span_id, "late")]


async def test_clients_cannot_have_everything_traced(funded: FundedStore) -> None:
    """Requests with the flag of a sampled trace are traced up to a number in each second, if they have a live key."""
    now_s, exported = [1.5], list[Sequence[EndedSpan]]()
    followed = [*PARENT, *funded.key_headers]
    async with running_api(funded, ScriptedUpstream()) as api:
        router = Router(api.gateway)
        tracer = Tracer(router, len, 0, exported.append, lambda: now_s[0])

        async def send(count: int, headers: list[tuple[bytes, bytes]]) -> int:
            exported.clear()
            for _ in range(count):
                client = Client()
                await tracer.serve(client.open(headers, method="GET", path="/v1/models"))
            return len(exported)

        assert await send(FOLLOWED_PER_S + 5, PARENT) == 0
        assert await send(FOLLOWED_PER_S + 5, followed) == FOLLOWED_PER_S
        assert await send(5, []) == 0
        now_s[0] = 2.0
        assert await send(1, followed) == 1
        assert shown(exported[0]) == [("GET /v1/models", ""), ("rate", "")]
        tracer = Tracer(router, len, 1, exported.append)
        assert await send(3, []) == 3


async def test_names_have_no_text_of_clients(funded: FundedStore) -> None:
    """A path that is not served, a model in a path and an id that the client chose are not in a trace."""
    exported = list[Sequence[EndedSpan]]()
    async with running_api(funded, ScriptedUpstream()) as api:
        tracer = Tracer(Router(api.gateway), len, 1, exported.append)
        for path in ("/v1/n33dle", "/v1/models/n33dle"):
            await tracer.serve(Client().open([(b"x-request-id", b"n33dle")], method="GET", path=path))
    assert [spans[0].name for spans in exported] == ["GET", "GET /v1/models/{model}"]
    assert "n33dle" not in repr(exported)


def test_the_docs_list_all_attributes() -> None:
    """docs/parts/otlp.md names the attributes that spans may have."""
    page = (Path(ROOT) / "docs" / "parts" / "otlp.md").read_text()
    assert set(re.findall(r"`((?:http|url|error|gen_ai|cadenza)\.[a-z_.]+)`", page)) == ATTRIBUTES
