"""Requests that schemathesis generates from the OpenAPI document, valid and invalid: each gets a documented reply.

No reply is a 5xx, because the upstream does not fail here, and no connection is reset. The requests are seeded: a
failure comes again, reduced to a small request.
"""

import base64
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import booleans
from schemathesis import Case, GenerationMode

from tests.cli.program import run_here
from tests.loopback import LoopbackUpstream
from tests.openapi import EVENTS, Document, closed, read_document
from tests.raw_client import RawClient
from tests.schemas import check_stream
from tests.service import Service, wait_until
from tests.service_config import CLASSES, RouteSpec, ServiceSpec

SEED = 13
TIMEOUT_S = 100.0
TEXT_FILE = base64.b64encode(b"A file that can be read.").decode()
ABLE = "vision = true\naudio = true\nfiles = true\n"
CREDIT_NANO = 10**15
CHAT, USAGE = "/v1/chat/completions", "/v1/usage"
VALID, INVALID = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
pytestmark = pytest.mark.slow(reason="generates requests for most of a minute")


class Batch(msgspec.Struct, frozen=True):
    """Generated requests of one operation. Without unknown fields, unless they are invalid."""

    method: str
    path: str
    mode: GenerationMode
    count: int
    has_tools: bool = False

    @property
    def name(self) -> str:
        return f"{self.mode.value} {self.path}{' with tools' if self.has_tools else ''}"


BATCHES = [
    Batch("POST", CHAT, VALID, 15),
    Batch("POST", CHAT, VALID, 10, has_tools=True),
    Batch("POST", CHAT, INVALID, 25),
    Batch("GET", "/v1/models/{model}", VALID, 6),
    Batch("GET", "/v1/models/{model}", INVALID, 10),
    Batch("GET", "/v1/usage", VALID, 12),
    Batch("GET", "/v1/usage", INVALID, 12),
]


class Target(msgspec.Struct, frozen=True):
    """A running service and its document. Requests have a valid key and share a connection."""

    service: Service
    document: Document
    session: requests.Session

    def send(self, case: Case[Any]) -> int:
        """Send a generated request once, check the reply, and return its status. A reset connection is an error."""
        key = {"Authorization": f"Bearer {self.service.key}"}
        generated = case.as_transport_kwargs(f"http://127.0.0.1:{self.service.port}", key)
        reply = self.session.request(**generated, timeout=TIMEOUT_S)  # `Case.call` would send it again after a reset
        assert reply.status_code < 500, reply.content
        self.document.check_reply((case.method, case.path), reply.status_code, reply.headers, reply.content)
        if reply.headers["content-type"].startswith(EVENTS):
            check_stream(reply.content)
        return reply.status_code


@pytest.fixture(scope="module")
def target(shared_upstream: LoopbackUpstream) -> Iterator[Target]:
    shared_upstream.reset()
    routes = {class_id: [RouteSpec("loopback", more_toml=ABLE)] for class_id in CLASSES}
    spec = ServiceSpec({"loopback": shared_upstream.base_url}, routes)
    with Service(spec, CREDIT_NANO) as service, requests.Session() as session:
        session.trust_env = False  # no proxy
        yield Target(service, read_document(service.port), session)


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: batch.name)
def test_generated_requests_get_documented_replies(target: Target, batch: Batch) -> None:
    """Every generated request gets a status and a body that the document has for its operation, and never a 5xx."""
    statuses = send_all(target, batch, SEED)
    assert statuses.total() >= min(batch.count, 4), statuses
    if batch.mode is VALID:  # not all are: the schema cannot say everything that the document says in words
        assert statuses[200] > statuses.total() / 3, statuses


def test_service_is_well_afterwards(target: Target) -> None:
    """After all these requests it is ready, holds no credit and has logged no fault."""
    wait_until(lambda: target.service.process.get("/readyz") == (200, "ready\n"), "the service being ready")
    assert RawClient(target.service.port, target.service.key).chat().status == 200
    assert "internal error" not in target.service.output
    assert run_here(target.service.folder, "ledger", "check").returncode == 0


def send_all(target: Target, batch: Batch, seed_: int) -> Counter[int]:
    """Send the requests of a batch and count the statuses."""
    document = closed(target.document.value)
    if batch.has_tools:
        need_tools(document["components"]["schemas"]["ChatRequest"])
    strategy = schemathesis.openapi.from_dict(document)[batch.path][batch.method].as_strategy(batch.mode)
    statuses = Counter[int]()

    @seed(seed_)
    @settings(
        max_examples=batch.count,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=strategy, stream=booleans())
    def send(case: Case[Any], stream: bool) -> None:
        if batch.path == CHAT and batch.mode is VALID:
            assert isinstance(case.body, dict)
            case.body = {**case.body, **coherent(case.body), "stream": stream}
        if batch.path == USAGE and batch.mode is VALID and {"start", "end"} <= case.query.keys():
            case.query["start"], case.query["end"] = sorted((case.query["start"], case.query["end"]))
        statuses[target.send(case)] += 1

    send()
    return statuses


def need_tools(chat_request: dict[str, Any]) -> None:
    """Have every generated request define tools."""
    chat_request["required"].append("tools")
    chat_request["properties"]["tools"] |= {"type": "array", "minItems": 1}


def coherent(body: dict[str, Any]) -> dict[str, Any]:
    """Each call has an answer, a file can be read, and `tools` has the tool choice: no schema can say this."""
    messages = list[dict[str, Any]]()
    for message in body["messages"]:
        for part in message.get("content") or ():
            if isinstance(part, dict) and "file" in part:
                part["file"]["file_data"] = TEXT_FILE
        if message["role"] != "tool":
            called = dict.fromkeys(call["id"] for call in message.get("tool_calls") or ())
            messages += [message, *({"role": "tool", "tool_call_id": call_id, "content": ""} for call_id in called)]
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools:
        choice = None
    elif isinstance(choice, dict):
        choice = forced(tools[0])
    return {"messages": messages or [{"role": "user", "content": ""}], "tool_choice": choice}


def forced(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool choice that forces this tool."""
    type_ = tool["type"]
    return {"type": type_, type_: {"name": tool[type_]["name"]}}
