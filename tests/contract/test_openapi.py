"""/openapi.json is valid, describes every endpoint of the service and no others, and accepts its replies."""

import contextlib
import gzip
import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode

from cadenza.core.chat import SAMPLING
from cadenza.core.errors import CadenzaError
from cadenza.gateway.api import ENDPOINTS
from cadenza.gateway.validate import TOOL_FIELDS
from cadenza.parts.protocols import run as protocols
from cadenza.parts.site.docs.openapi import PLATFORM
from cadenza.parts.site.routes import ApiEndpoint
from cadenza.parts.site.site_map import SITE
from cadenza.server.probes import PATHS
from tests.account import open_account
from tests.contract.agent import WEATHER
from tests.loopback import STOP, Cut, Json, LoopbackUpstream, Sse, Status, chunk, completion, said, usage_chunk
from tests.openapi import Document, contents, read_document
from tests.parts.site.web.operators import account_id_of, make_operator
from tests.raw_client import MESSAGES, RawClient, Reply
from tests.schemas import COMPLETION, ERROR, MODEL_LIST, USAGE_CHUNK, Schema
from tests.service import Service
from tests.visitor import Seen, Visitor

pytestmark = pytest.mark.parts(reason="the document is the site's, with what parts add")

CHAT = ("POST", "/v1/chat/completions")
MESSAGE = ("POST", "/v1/messages")
COUNT = ("POST", "/v1/messages/count_tokens")
MODELS = ("GET", "/v1/models")
MODEL = ("GET", "/v1/models/{model}")
USAGE = ("GET", "/v1/usage")
NOT_API = {"/", "/health", "/metrics"}  # the home page, the second name of /healthz, and the operator's own
CALLS = [
    {
        "id": "fc_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": "{}"},
        "extra_content": {"a": 1},
    },
    {"id": "ctc_2", "type": "custom", "custom": {"name": "run", "input": "ls"}},
]
TOOLS = [WEATHER, {"type": "custom", "custom": {"name": "run"}}]
SAID: dict[str, dict[str, Any]] = {
    "text": {"content": "Hello."},
    "calls": {"tool_calls": CALLS},
    "refusal": {"refusal": "No."},
    "reasoning": {"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text"}], "content": "Hello."},
    "reasoning_content": {"reasoning_content": "Hm.", "content": "Hello."},
}
DESCRIBED = {one.path: one for one in (*ENDPOINTS, *protocols.ENDPOINTS) if one.name != "azure_chat"}
ENDPOINTS_OF_PLATFORM = [one for one in SITE.routes if isinstance(one, ApiEndpoint)]


def operation_of(one: ApiEndpoint) -> tuple[str, str]:
    return one.method, PLATFORM + one.path


def operations_of_api(document: Document) -> set[tuple[str, str]]:
    return {(method, path) for method, path in document.operations if not path.startswith(PLATFORM)}


@pytest.fixture(scope="module")
def operator(service: Service) -> Visitor:
    """A browser that is signed in to an operator's account."""
    email = service.create_account(10**9)
    make_operator(service, email)
    visitor = Visitor(service.port)
    visitor.sign_in(email)
    return visitor


@pytest.fixture(scope="module")
def document(service: Service) -> Document:
    return read_document(service.port)


def accept(document: Document, operation: tuple[str, str], reply: Reply, status: int = 200) -> None:
    assert reply.status == status, reply.body
    document.check_reply(operation, reply.status, reply.headers, reply.body)


def test_document_is_valid(document: Document) -> None:
    """It is valid OpenAPI 3.1, and every reference leads somewhere."""
    assert document.value["openapi"].startswith("3.1.")
    schemathesis.openapi.from_dict(document.value).validate()
    assert set(references(document.value)) <= set(components(document.value))


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        yield from value.get("mapping", {}).values() if "propertyName" in value else ()
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def components(value: dict[str, Any]) -> Iterator[str]:
    return (f"#/components/{kind}/{name}" for kind, named in value["components"].items() for name in named)


def test_every_component_is_used(document: Document) -> None:
    """It describes nothing that no operation refers to."""
    used = set(references(document.value))
    assert {name for name in components(document.value) if "/securitySchemes/" not in name} == used


def test_generators_can_read_it(document: Document) -> None:
    """What breaks generators is not there: see `flaws`. Clients that were generated are in tests/clients."""
    assert list(flaws(document.value)) == []
    schemas = document.value["components"]["schemas"]
    assert [name for name in schemas if f"New{name}" in schemas] == []  # the name of a constructor in Go
    values = [value for schema in schemas.values() for value in schema.get("enum", ())]
    assert len(values) == len(set(values)), "constants of two enums have one name in Go"
    ids = [one["operationId"] for item in document.value["paths"].values() for one in item.values()]
    assert len(ids) == len(set(ids))


def flaws(value: Any, place: str = "#", outer: str = "") -> Iterator[str]:
    """Arrays without items, values without a type, null alone, and choices of objects without a discriminator."""
    if isinstance(value, list):
        for index, part in enumerate(value):
            yield from flaws(part, f"{place}[{index}]", outer)
    if not isinstance(value, dict) or outer in ("example", "examples", "default", "mapping"):
        return
    if outer != "properties":
        if "array" in str(value.get("type")) and "items" not in value:
            yield f"{place}: an array without items"
        if ("enum" in value or "const" in value) and ("type" not in value or None in value.get("enum", ())):
            yield f"{place}: a value without a type, or null"
        if value.get("type") == "null" and outer != "anyOf":
            yield f"{place}: only null"
        refs = [one for one in [*value.get("oneOf", ()), *value.get("anyOf", ())] if "$ref" in one]
        if len(refs) > 1 and "discriminator" not in value and not place.endswith("ChatStreamEvent"):
            yield f"{place}: a choice without a discriminator"
        if "anyOf" in value and value.get("type") == "object":
            yield f"{place}: an object that is also a choice"
    for name, part in value.items():
        yield from flaws(part, f"{place}/{name}", name)


@pytest.mark.parametrize("is_compressed", [True, False])
def test_server_is_the_address_that_was_asked(service: Service, is_compressed: bool) -> None:
    """Its server is the address by which it was asked for, and every path below it is served."""
    for host in (f"127.0.0.1:{service.port}", "api.example.org"):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)) as connection:
            headers = {"host": host} | ({"accept-encoding": "gzip"} if is_compressed else {})
            connection.request("GET", "/openapi.json", headers=headers)
            body = connection.getresponse().read()
        value = json.loads(gzip.decompress(body) if is_compressed else body)
        assert [one["url"] for one in value["servers"]] == [f"http://{host}"]
    assert {path.split("/")[1] for path in value["paths"]} == {"v1", "platform", "healthz", "readyz", "openapi.json"}


def test_every_endpoint_is_described(document: Document) -> None:
    """Every endpoint of the service is in it with its methods, and nothing else is."""
    api = {(method, path) for path, one in DESCRIBED.items() for method in one.methods if method != "HEAD"}
    probes = {("GET", path) for path in (*PATHS, "/openapi.json") if path not in NOT_API}
    assert document.operations == api | probes | {operation_of(one) for one in ENDPOINTS_OF_PLATFORM}


def test_scopes_are_those_that_are_needed(document: Document) -> None:
    """Each endpoint of the API names the scope that its key needs, with any header; the others need no key."""
    for method, path in operations_of_api(document):
        scopes = [[DESCRIBED[path].scope]] * 3 if path in DESCRIBED else []
        security = document.value["paths"][path][method.lower()]["security"]
        assert [names for need in security for names in need.values()] == scopes


def test_every_field_that_goes_upstream_is_described(document: Document) -> None:
    """The fields that the service forwards are among those of a chat request."""
    assert document.value["components"]["schemas"]["ChatRequest"]["properties"].keys() >= {*SAMPLING, *TOOL_FIELDS}


def test_every_error_status_is_described(document: Document) -> None:
    """Every status of the service's own errors is described for some operation, except 405: it has no operation."""
    responses = document.value["paths"].values()
    described = {int(status) for item in responses for one in item.values() for status in one["responses"]}
    assert described >= {
        error.status for error in errors(CadenzaError) if error.__module__ == "cadenza.core.errors"
    } - {405}


def errors(base: type[CadenzaError]) -> Iterator[type[CadenzaError]]:
    yield base
    for error in base.__subclasses__():
        yield from errors(error)


@pytest.mark.parametrize("kind", SAID)
def test_completions_are_as_described(
    document: Document, api: RawClient, upstream: LoopbackUpstream, kind: str
) -> None:
    """Every kind of reply has only the fields that the document names, of the types that it names."""
    value = completion(None, "tool_calls" if kind == "calls" else "stop")
    value["choices"][0]["message"] |= SAID[kind]
    upstream.script(Json(value))
    accept(document, CHAT, api.chat(tools=TOOLS))


@pytest.mark.parametrize("kind", SAID)
def test_streams_are_as_described(document: Document, api: RawClient, upstream: LoopbackUpstream, kind: str) -> None:
    """Every kind of chunk has only the fields that the document names, of the types that it names."""
    calls = [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(CALLS)]
    deltas = calls if kind == "calls" else [{name: part} for name, part in SAID[kind].items()]
    upstream.script(Sse([*map(chunk, deltas), STOP, usage_chunk()]))
    accept(document, CHAT, api.chat(tools=TOOLS, stream=True))


def test_broken_stream_is_as_described(document: Document, api: RawClient, upstream: LoopbackUpstream) -> None:
    """The error that ends a broken stream is an event that the document names."""
    upstream.script(Cut(Sse([said("Hel")], done=False), 300))
    reply = api.chat(stream=True)
    accept(document, CHAT, reply)
    assert "error" in contents("text/event-stream", reply.body)[-1]


@pytest.mark.parametrize("kind", SAID)
def test_messages_are_as_described(document: Document, api: RawClient, upstream: LoopbackUpstream, kind: str) -> None:
    """Every kind of message, its count, and an error have only the fields that the document names."""
    asked = {"model": "forte", "max_tokens": 9, "messages": MESSAGES, "tools": [{"name": "get_weather"}]}
    body = json.dumps(asked).encode()
    value = completion(None, "tool_calls" if kind == "calls" else "stop")
    value["choices"][0]["message"] |= SAID[kind]
    upstream.script(Json(value))
    accept(document, MESSAGE, api.request(*MESSAGE, body))
    accept(document, COUNT, api.request(*COUNT, body))
    accept(document, MESSAGE, api.request(*MESSAGE, b"{"), 400)


@pytest.mark.parametrize("group_by", ["day", "model", "key"])
def test_usage_is_as_described(document: Document, api: RawClient, upstream: LoopbackUpstream, group_by: str) -> None:
    """The usage report has the described shape, by whatever it is grouped."""
    api.chat()
    reply = api.get(f"/v1/usage?group_by={group_by}")
    accept(document, USAGE, reply)
    assert reply.json["data"]


def test_errors_are_as_described(
    document: Document, api: RawClient, api_as: Callable[[str | None], RawClient], upstream: LoopbackUpstream
) -> None:
    """Each error has a status that its operation names, with the error object."""
    accept(document, CHAT, api.post(b"{"), 400)
    accept(document, USAGE, api.get("/v1/usage?group_by=week"), 400)
    for method, path in (CHAT, MODELS, MODEL, USAGE):
        accept(document, (method, path), api_as(None).request(method, path.replace("{model}", "forte"), b""), 401)
    accept(document, MODEL, api.get("/v1/models/piano"), 404)
    accept(document, CHAT, api.post({"messages": MESSAGES}, {"content-encoding": "gzip"}), 415)
    upstream.always(Status(429))
    accept(document, CHAT, api.chat(), 429)
    upstream.always(Status(500))
    accept(document, CHAT, api.chat(model="mezzo"), 502)


def test_errors_of_an_account_are_as_described(
    document: Document, service: Service, upstream: LoopbackUpstream
) -> None:
    """402, 403, 409 and the 429 of a key have the error object and the headers that the document names."""
    with open_account(service, 10**9) as account:
        once = {"idempotency-key": "one"}
        accept(document, CHAT, account.api.post({"messages": MESSAGES}, once))
        accept(document, CHAT, account.api.post({"messages": MESSAGES}, once), 409)
        reader = RawClient(service.port, account.create_key(("models",), requests_per_second=0.01, burst=1))
        accept(document, USAGE, reader.get("/v1/usage"), 403)
        accept(document, MODELS, reader.get("/v1/models"), 429)
    with open_account(service, 0) as poor:
        accept(document, CHAT, poor.api.chat(), 402)


@pytest.mark.parametrize(
    ("name", "schema"),
    [("ChatCompletion", COMPLETION), ("ModelList", MODEL_LIST), ("Error", ERROR), ("ChatChunk", USAGE_CHUNK)],
)
def test_document_requires_what_the_tests_require(document: Document, name: str, schema: Schema) -> None:
    """The document has the members that the tests demand of every reply; it requires all that are always there."""
    described = document.value["components"]["schemas"][name]
    assert set(described["properties"]) == set(schema["properties"])
    assert set(schema["required"]) - set(described["required"]) <= {"usage"}  # only the last chunk has it


def accept_seen(document: Document, one: ApiEndpoint, seen: Seen) -> None:
    document.check_reply(operation_of(one), seen.status, seen.headers, seen.text.encode())


def test_examples_are_as_described(document: Document) -> None:
    """Every example in the document is a value that its own schema accepts."""
    examples = list(contents_with_examples(document.value["paths"]))
    for content in examples:
        document.check_value(content["example"], content["schema"])
    assert len(examples) >= 5


def contents_with_examples(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "example" in value and "schema" in value:
            yield value
        for part in value.values():
            yield from contents_with_examples(part)


def test_platform_bodies_are_strict(document: Document) -> None:
    """A body takes no field that the document does not name, but for that of the chat: as /v1/chat/completions."""
    for one in [one for one in ENDPOINTS_OF_PLATFORM if one.takes and one.method != "GET" and one.path != "/chat"]:
        method, path = operation_of(one)
        body = document.value["paths"][path][method.lower()]["requestBody"]["content"]["application/json"]["schema"]
        name = body["$ref"].rpartition("/")[2]
        assert document.value["components"]["schemas"][name]["additionalProperties"] is False, name


def test_operator_replies_are_as_described(document: Document, service: Service, operator: Visitor) -> None:
    """What an operator's endpoints return for a real account and a real key is documented."""
    email = service.create_account(10**9)
    key = service.create_key(email)
    one_account = "/operator/accounts/{account_id}"
    account_id = account_id_of(service, email)
    [found] = operator.api("POST", "/operator/keys/find", {"text": key[:12]}).json["data"]
    asked: list[tuple[str, str, Any]] = [
        ("GET", one_account, None),
        ("POST", f"{one_account}/grants", {"amount": "1.00", "note": "a note"}),
        ("POST", f"{one_account}/corrections", {"amount": "0.50", "reason": "a reason"}),
        ("POST", f"{one_account}/corrections", {"amount": "99.00", "reason": "too much"}),
        ("POST", f"{one_account}/transfers", {"amount": "1.00", "reference": email}),
        ("POST", f"{one_account}/transfers", {"amount": "99.00", "reference": email}),
        ("POST", f"{one_account}/transfers/refund", {"transfer": email, "reason": "a reason"}),
        ("POST", f"{one_account}/suspend", None),
        ("POST", f"{one_account}/resume", None),
        ("POST", "/operator/keys/find", {"text": key}),
        ("POST", "/operator/keys/{key_id}/revoke", None),
        ("GET", "/operator/accounts", None),
        ("GET", "/operator/audit-log", None),
    ]
    for method, path, body in asked:
        seen = operator.api(method, path.replace("{account_id}", account_id).replace("{key_id}", found["id"]), body)
        assert seen.status == (400 if body and body.get("amount") == "99.00" else 200), seen.text
        document.check_reply((method, PLATFORM + path), seen.status, seen.headers, seen.text.encode())


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
def test_generated_queries_get_documented_replies(document: Document, operator: Visitor, mode: GenerationMode) -> None:
    """Queries that schemathesis makes for each endpoint of the platform that takes some: none is a 5xx."""
    for one in [one for one in ENDPOINTS_OF_PLATFORM if one.method == "GET" and one.takes and "{" not in one.path]:
        send_generated(document, operator, one, mode)


def send_generated(document: Document, operator: Visitor, one: ApiEndpoint, mode: GenerationMode) -> None:
    method, path = operation_of(one)

    @seed(15)
    @settings(max_examples=12, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=schemathesis.openapi.from_dict(document.value)[path][method].as_strategy(mode))
    def send(case: Case[Any]) -> None:
        seen = operator.api(one.method, f"{one.path}?{urlencode(case.query or {}, doseq=True)}")
        assert seen.status < 500, seen.text
        accept_seen(document, one, seen)

    send()
