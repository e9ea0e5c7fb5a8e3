"""One outcome for every request, however it ended, in the log, in the metrics and in the ledger."""

import asyncio
import contextlib
from typing import NamedTuple

import pytest

from cadenza.core.faults import FaultKind
from cadenza.core.money import Price
from cadenza.core.records import Outcome, ReplyResult, Usage
from cadenza.gateway.request import RequestRecord
from cadenza.http.headers import Headers
from cadenza.ledger.rules import Hold
from cadenza.store.schema import usage as usage_table
from cadenza.upstreams.base import Fault, Piece
from tests.raw_client import END
from tests.unit.gateway.client import Client
from tests.unit.gateway.funded_store import (
    FORTE,
    FUNDED_NANO,
    KEY_ID,
    PRINCIPAL,
    FundedStore,
)
from tests.unit.gateway.gateways import MODEL, PROVIDER, REQUEST_ID, ROUTE, Api, running_api
from tests.unit.gateway.prompts import TOKENIZER
from tests.unit.gateway.scripted_upstream import ScriptedUpstream, Step

USAGE = Usage(30, 4, 5)
ANSWER = (Piece("hello world"), Piece(finish_reason="stop", usage=USAGE))
PROMPT_TOKENS = TOKENIZER.count_prompt(["Be brief.", "hi"])
DELIVERED = Usage(PROMPT_TOKENS, 2, estimated=True)
PROMPT_ONLY = Usage(PROMPT_TOKENS, 0, estimated=True)
BODY = b'{"messages":[{"role":"user","content":"hi"}]%b}'


async def recorded_once(api: Api) -> Outcome:
    """The one outcome of the one request, after checking everything that is written from it."""
    await api.gateway.ledger.drained()
    [outcome] = api.observer.outcomes
    [line] = [line for line in api.observer.log_lines if line["event"] == "request"]
    counted = api.observer.sample("cadenza_requests_total", endpoint=outcome.endpoint, status=str(outcome.status))
    rows = await api.funded.rows(usage_table)
    assert (line["request_id"], line["endpoint"], line["status"]) == (
        outcome.request_id,
        outcome.endpoint,
        outcome.status,
    )
    assert counted == 1
    assert len(api.gateway.in_flight) == api.gateway.slots.taken == 0
    assert api.observer.sample("cadenza_requests_in_flight") == 0
    if outcome.completion_id:
        [row] = rows
        assert_same_request(outcome, line, row)
    else:
        assert rows == []
        assert "completion_id" not in line
    assert_tokens_counted(api, outcome, line)
    return outcome


def assert_same_request(outcome: Outcome, line: dict[str, object], row: dict[str, object]) -> None:
    """The log line and the usage row have both ids of the outcome."""
    ids = (outcome.request_id, outcome.completion_id)
    assert ids[0] == REQUEST_ID
    assert ids[1].startswith("chatcmpl-")
    assert (line["request_id"], line["completion_id"]) == ids
    assert (row["request_id"], row["completion_id"]) == ids
    counts = outcome.usage or Usage(0, 0)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (counts.prompt_tokens, counts.completion_tokens)
    assert (row["status"], row["provider"]) == (outcome.status, outcome.provider)


def assert_tokens_counted(api: Api, outcome: Outcome, line: dict[str, object]) -> None:
    """The tokens of the outcome, and no others, are in the metrics and in the log line."""
    counts = outcome.usage
    for kind, tokens in (
        ("prompt", counts and counts.prompt_tokens),
        ("cached", counts and counts.cached_tokens),
        ("completion", counts and counts.completion_tokens),
    ):
        assert api.observer.sample("cadenza_tokens_total", class_id="forte", kind=kind) == tokens
    assert line.get("prompt_tokens") == (counts and counts.prompt_tokens)
    assert line.get("completion_tokens") == (counts and counts.completion_tokens)


async def charged(api: Api) -> int:
    """What the account was charged. Nothing may be held any more."""
    balance_nano, _ = await api.funded.funds()
    assert api.observer.sample("cadenza_holds") == 0
    return FUNDED_NANO - balance_nano


@pytest.mark.parametrize("stream", [False, True])
async def test_a_served_request(funded: FundedStore, stream: bool, protocol: str) -> None:
    """It is recorded with its status, ids, route and usage."""
    client = Client()
    async with running_api(funded, ScriptedUpstream(*ANSWER)) as api:
        api.chat(client, stream=stream, protocol=protocol)
        await client.serve(api.gateway)
        outcome = await recorded_once(api)
        assert (outcome.status, outcome.usage, outcome.fault) == (200, USAGE, "")
        assert (outcome.key_id, outcome.class_id, outcome.provider, outcome.model) == (
            KEY_ID,
            "forte",
            PROVIDER,
            MODEL,
        )
        assert outcome.completion_id.removeprefix("chatcmpl-").encode() in client.bodies[0]
        assert await charged(api) == FORTE.charge(USAGE)


class Refusal(NamedTuple):
    """A request that is refused before credit is held."""

    status: int
    endpoint: str = "chat"
    method: str = "POST"
    path: str = "/v1/chat/completions"
    headers: Headers | None = None
    body: bytes = BODY % b""


REFUSALS = {
    "no key": Refusal(401, headers=[]),
    "unknown path": Refusal(404, "unknown", path="/v1/nowhere"),
    "unknown model": Refusal(404, "model", "GET", "/v1/models/nothing"),
    "wrong method": Refusal(405, method="GET"),
    "malformed body": Refusal(400, body=b"{"),
    "unknown class": Refusal(400, body=BODY % b',"model":"gpt-4o"'),
    "prompt too long for every route": Refusal(400, body=BODY.replace(b"hi", b" a" * 5_000) % b""),
    "malformed query": Refusal(400, "usage", "GET", "/v1/usage"),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_request_that_is_refused_before_the_hold(funded: FundedStore, case: str) -> None:
    """It is recorded with the status that the client got, and has no completion id and no usage row."""
    status, endpoint, method, path, headers, body = REFUSALS[case]
    client = Client()
    async with running_api(funded, ScriptedUpstream(*ANSWER)) as api:
        client.open(funded.key_headers if headers is None else headers, method, path, query=b"start=soon", body=body)
        await client.serve(api.gateway)
        outcome = await recorded_once(api)
    assert (outcome.endpoint, outcome.status, client.status) == (endpoint, status, status)
    assert outcome.key_id == (KEY_ID if status in {400, 404} and endpoint != "unknown" else "")


async def test_a_store_that_takes_no_hold(funded: FundedStore) -> None:
    """The 429 is recorded once, though the ledger releases the hold later, in case the store had taken it."""
    client = Client()
    async with running_api(funded, ScriptedUpstream(*ANSWER)) as api:
        api.chat(client)
        funded.store.is_down = True
        await client.serve(api.gateway)
        funded.store.is_down = False
        outcome = await recorded_once(api)
        assert (outcome.status, outcome.completion_id) == (429, "")
        assert await charged(api) == 0


async def test_a_client_that_disconnects_before_its_body_is_complete(funded: FundedStore) -> None:
    """It gets no answer, and is recorded as a 499."""
    client = Client()
    async with running_api(funded) as api:
        client.open(funded.key_headers, body=None)
        serving = asyncio.create_task(client.serve(api.gateway))
        await client.waits_for_body.wait()
        client.disconnect()
        await serving
        outcome = await recorded_once(api)
    assert client.sent == []
    assert (outcome.endpoint, outcome.status) == ("chat", 499)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_disconnects_before_the_answer_begins(
    funded: FundedStore, stream: bool, protocol: str
) -> None:
    """The prompt is charged, because the upstream has it, and the 499 is recorded by the ledger, with the route."""
    client, upstream = Client(), ScriptedUpstream(*ANSWER, opening=asyncio.Event())
    async with running_api(funded, upstream) as api:
        api.chat(client, stream=stream, protocol=protocol)
        serving = asyncio.create_task(client.serve(api.gateway))
        await upstream.is_asked.wait()
        client.disconnect()
        await serving
        outcome = await recorded_once(api)
        assert (outcome.status, outcome.usage, outcome.provider) == (499, PROMPT_ONLY, PROVIDER)
        assert await charged(api) == FORTE.charge(PROMPT_ONLY)


async def stream_until_delivered(api: Api, client: Client, protocol: str) -> "asyncio.Task[None]":
    """Start a stream, and return once `hello world` was sent."""
    api.chat(client, stream=True, protocol=protocol)
    serving = asyncio.create_task(client.serve(api.gateway))
    await client.until_sent(b"hello world")
    return serving


async def test_a_client_that_disconnects_in_a_stream(funded: FundedStore, protocol: str) -> None:
    """The delivered tokens are charged, and reach the metrics and the log line; the upstream's reply is closed."""
    client, upstream = Client(), ScriptedUpstream(ANSWER[0], asyncio.Event())
    async with running_api(funded, upstream) as api:
        serving = await stream_until_delivered(api, client, protocol)
        client.disconnect()
        await serving
        outcome = await recorded_once(api)
        assert (outcome.status, outcome.usage, outcome.provider) == (499, DELIVERED, PROVIDER)
        assert outcome.first_byte_ms is not None
        assert await charged(api) == FORTE.charge(DELIVERED)
    assert [reply.is_closed for reply in upstream.replies] == [True]


async def test_a_shutdown_before_the_answer_begins(funded: FundedStore, protocol: str) -> None:
    """The client is told to retry, the outcome is a 503, and nothing is charged."""
    client, upstream = Client(), ScriptedUpstream(*ANSWER, opening=asyncio.Event())
    async with running_api(funded, upstream) as api:
        api.chat(client, protocol=protocol)
        serving = asyncio.create_task(client.serve(api.gateway))
        await upstream.is_asked.wait()
        api.gateway.in_flight.interrupt()
        await serving
        outcome = await recorded_once(api)
        assert (outcome.status, outcome.usage, client.status) == (503, None, 429)
        assert await charged(api) == 0


async def test_a_shutdown_in_a_stream(funded: FundedStore, protocol: str) -> None:
    """The stream ends with an error event, and the delivered tokens are charged as a 503."""
    client = Client()
    async with running_api(funded, ScriptedUpstream(ANSWER[0], asyncio.Event())) as api:
        serving = await stream_until_delivered(api, client, protocol)
        api.gateway.in_flight.interrupt()
        await serving
        outcome = await recorded_once(api)
        assert (outcome.status, outcome.usage) == (503, DELIVERED)
        assert await charged(api) == FORTE.charge(DELIVERED)
    assert b'"error"' in client.bodies[-1]
    assert not END.search(b"".join(client.bodies))


INTERNAL: dict[str, tuple[tuple[Step, ...], bool, Usage | None]] = {
    "whole": ((ZeroDivisionError(),), False, None),
    "stream before a delivery": ((ZeroDivisionError(),), True, None),
    "stream after a delivery": ((ANSWER[0], ZeroDivisionError()), True, DELIVERED),
}


@pytest.mark.parametrize("case", INTERNAL)
async def test_an_internal_error(funded: FundedStore, case: str, protocol: str) -> None:
    """The outcome is a 500, and only what was delivered is charged."""
    steps, stream, delivered = INTERNAL[case]
    client = Client()
    async with running_api(funded, ScriptedUpstream(*steps)) as api:
        api.chat(client, stream=stream, protocol=protocol)
        with contextlib.suppress(ConnectionAbortedError):
            await client.serve(api.gateway)
        outcome = await recorded_once(api)
        assert (outcome.status, outcome.usage) == (500, delivered)
        assert await charged(api) == (FORTE.charge(delivered) if delivered else 0)


async def test_doubtful_usage_is_recorded(funded: FundedStore) -> None:
    """Counts that cannot be true are corrected, counted for the provider and logged as a warning."""
    client = Client()
    async with running_api(funded, ScriptedUpstream(Piece("hi", "stop", Usage(30, 10**9)))) as api:
        api.chat(client)
        await client.serve(api.gateway)
        outcome = await recorded_once(api)
        assert outcome.has_doubtful_usage
        assert api.observer.sample("cadenza_doubtful_usage_total", provider=PROVIDER) == 1
        warnings = [line for line in api.observer.log_lines if line["level"] == "warning"]
        assert [line["event"] for line in warnings] == ["an upstream's counts cannot be true"]


def test_a_record_knows_what_its_stages_reported() -> None:
    """An outcome is complete when it is made: later reports change the next one only."""
    exchange = Client().open([(b"x-request-id", REQUEST_ID.encode())])
    record = RequestRecord(exchange)
    empty = record.outcome()
    record.endpoint = "chat"
    record.principal = PRINCIPAL
    record.held(Hold("chatcmpl-one", "a", "k", "forte", 100, 50, Price(10, 30), stream=True, started_at=1))
    record.routed(ROUTE)
    outcome = record.outcome(502, ReplyResult(USAGE, None, "truncated", is_free=True))
    record.broke_off(ROUTE, Fault(FaultKind.TRUNCATED))
    assert (outcome.steps, [step.kind for step in record.outcome().steps]) == ((), ["broke_off"])
    assert (empty.request_id, empty.endpoint, empty.status, empty.key_id) == (REQUEST_ID, "unknown", 499, "")
    assert (outcome.endpoint, outcome.status, outcome.completion_id) == ("chat", 502, "chatcmpl-one")
    assert (outcome.key_id, outcome.account_id) == (PRINCIPAL.key_id, PRINCIPAL.account_id)
    assert (outcome.class_id, outcome.provider, outcome.model) == ("forte", PROVIDER, MODEL)
    assert (outcome.usage, outcome.fault, outcome.first_byte_ms) == (None, "truncated", None)
