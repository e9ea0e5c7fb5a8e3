"""The rate limit of a key: stated on every reply, applied to every request, and exact."""

import math
import re
from collections.abc import Callable, Iterator

import httpx2
import msgspec
import openai
import pytest

from tests.account import Account, open_account, run_command
from tests.loopback import LoopbackUpstream, Status
from tests.raw_client import MESSAGES, RawClient, Reply
from tests.service import Service
from tests.service_config import ordinary_spec

CHAT = {"messages": MESSAGES}
STREAM = {**CHAT, "stream": True}
USUAL = {"requests_per_second": 4.0, "burst": 30}
NEVER_S = 0.001  # requests a second: so slow that no request is earned during a test
NAMES = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")
TIME = re.compile(r"\d+ms|\d+(\.\d{1,3})?s")

ApiOf = Callable[..., RawClient]


@pytest.fixture(scope="module")
def limited(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """A service whose usual rate is low."""
    with Service(msgspec.structs.replace(ordinary_spec(shared_upstream.base_url), limits=USUAL)) as running:
        yield running


@pytest.fixture(scope="module")
def account(limited: Service) -> Iterator[Account]:
    with open_account(limited) as opened:
        yield opened


@pytest.fixture
def api_of(limited: Service, account: Account, upstream: LoopbackUpstream) -> ApiOf:
    """Bare HTTP with a key of its own, which has these scopes and limits."""
    return lambda *scopes, **limits: RawClient(limited.port, account.create_key(scopes, **limits))


def rate_of(reply: Reply) -> tuple[int, int]:
    """The limit and what remains, after the form of the three headers was checked."""
    limit, remaining, reset = (reply.headers[name] for name in NAMES)
    assert TIME.fullmatch(reset), reset
    assert 0 <= int(remaining) < int(limit)
    return int(limit), int(remaining)


def check_refused(reply: Reply) -> int:
    """The wait in milliseconds that a 429 of the rate limit states."""
    assert "requests a second" in reply.error(429, "rate_limit_error")
    wait_ms = int(reply.headers["retry-after-ms"])
    assert wait_ms >= 1
    assert int(reply.headers["retry-after"]) == math.ceil(wait_ms / 1000)
    assert "x-should-retry" not in reply.headers
    assert rate_of(reply)[1] == 0
    return wait_ms


def too_large(api: RawClient) -> Reply:
    return Reply(api.send_raw(api.head("POST", "/v1/chat/completions", "content-length: 40000000")))


def test_every_reply_to_a_key_states_the_rate(limited: Service, api_of: ApiOf, upstream: LoopbackUpstream) -> None:
    """Every reply to a valid key has the three headers, and the limit is the burst of the config."""
    api, reader, once = api_of(), api_of("models"), {"idempotency-key": "once"}
    upstream.script(Status(500))
    replies = {
        "502": api.post(CHAT),
        "200": api.post(CHAT, once),
        "409": api.post(CHAT, once),
        "200 stream": api.post(STREAM),
        "200 models": api.get("/v1/models"),
        "200 model": api.get("/v1/models/forte"),
        "200 usage": api.get("/v1/usage"),
        "400 body": api.post(b"{"),
        "400 model": api.chat(model="gpt-4o"),
        "400 usage": api.get("/v1/usage?group_by=nothing"),
        "403": reader.post(CHAT),
        "404": api.get("/v1/models/piano"),
        "413": too_large(api),
    }
    with open_account(limited, 0) as empty:
        replies["402"] = empty.api.chat()
    assert {kind: str(reply.status) for kind, reply in replies.items()} == {kind: kind[:3] for kind in replies}
    assert {kind: rate_of(reply)[0] for kind, reply in replies.items()} == dict.fromkeys(replies, USUAL["burst"])
    exposed = replies["200"].headers["access-control-expose-headers"].split(", ")
    assert {*NAMES, "retry-after", "retry-after-ms"} <= {*exposed}


def test_every_request_of_a_key_counts(api_of: ApiOf, upstream: LoopbackUpstream) -> None:
    """Chats, lists, invalid requests and missing scopes each take one request of the rate; one more is refused."""
    api = api_of("inference", "usage", requests_per_second=NEVER_S, burst=8)
    replies = [
        api.post(CHAT),
        api.post(STREAM),
        api.get("/v1/usage"),
        api.post(b"{"),
        api.get("/v1/models"),
        api.get("/v1/models/nothing"),
        too_large(api),
        RawClient(api.port, None).post(CHAT, {"x-api-key": str(api.key)}),
    ]
    assert [reply.status for reply in replies] == [200, 200, 200, 400, 403, 403, 413, 200]
    assert [rate_of(reply) for reply in replies] == [(8, 7 - number) for number in range(8)]
    check_refused(api.get("/v1/usage"))
    assert len(upstream.requests) == 3


def test_scope_comes_before_rate_and_rate_before_the_body(api_of: ApiOf) -> None:
    """A key without rate left is 403 if it lacks the scope, and otherwise 429 whatever its body."""
    reader, writer = (
        api_of("models", requests_per_second=NEVER_S, burst=1),
        api_of(requests_per_second=NEVER_S, burst=1),
    )
    assert reader.get("/v1/models").status == 200
    check_refused(reader.get("/v1/models"))
    reply = reader.post(b"{")
    reply.error(403, "permission_error")
    assert rate_of(reply) == (1, 0)
    assert writer.get("/v1/models").status == 200
    for refused in (writer.post(b"{"), writer.chat(model="gpt-4o"), too_large(writer)):
        check_refused(refused)


def test_key_limit_applies_to_the_next_request(limited: Service, api_of: ApiOf) -> None:
    """A running service applies `key change` at once; what is not given stays as in the config."""
    api = api_of()
    assert rate_of(api.get("/v1/models"))[0] == USUAL["burst"]
    prefix = str(api.key)[:12]
    run_command(limited, "key", "change", prefix, "--burst", "100")
    assert rate_of(api.get("/v1/models"))[0] == 100
    run_command(limited, "key", "change", prefix, "--rate", str(NEVER_S), "--burst", "2")
    replies = [api.get("/v1/models") for _ in range(4)]
    assert {rate_of(reply)[0] for reply in replies} == {2}
    assert sum(reply.status == 200 for reply in replies) <= 2
    check_refused(replies[-1])


def test_sdk_waits_for_the_rate_by_itself(limited: Service, account: Account, upstream: LoopbackUpstream) -> None:
    """An OpenAI client that is too fast obeys the headers of its 429s, and all its requests succeed."""
    statuses = list[int]()

    def note(response: httpx2.Response) -> None:
        statuses.append(response.status_code)

    http_client = openai.DefaultHttpxClient(trust_env=False, verify=False, event_hooks={"response": [note]})
    key = account.create_key(requests_per_second=0.5, burst=1)
    asked = 0
    with openai.OpenAI(base_url=limited.base_url, api_key=key, http_client=http_client, max_retries=3) as client:
        while 429 not in statuses:  # on a slow machine it is not too fast at first
            client.chat.completions.create(model="forte", messages=[{"role": "user", "content": "hi"}])
            asked += 1
    assert statuses.count(200) == len(upstream.requests) == asked
    assert {*statuses} == {200, 429}
