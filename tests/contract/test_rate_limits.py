"""The rate of a key over the wire: told on every reply, counted with every request, and true to its word."""

import math
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import msgspec
import openai
import pytest

from cadenza.core.apikey import make_key
from tests.contract.purse import Purse, open_purse
from tests.contract.wire import MESSAGES, Reply, Wire, parse_raw
from tests.loopback import LoopbackUpstream, Status
from tests.service import Service, ordinary_spec

CHAT = {"messages": MESSAGES}
STREAM = {**CHAT, "stream": True}
USUAL = {"requests_per_second": 4.0, "burst": 30}
NEVER = ("--rate", "0.001")  # so slow that nothing comes back during a test
NAMES = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")
TIME = re.compile(r"\d+ms|\d+(\.\d{1,3})?s")

WireOf = Callable[..., Wire]


@pytest.fixture(scope="module")
def limited(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """A service whose usual rate is low."""
    with Service(msgspec.structs.replace(ordinary_spec(shared_upstream.base_url), limits=USUAL)) as running:
        yield running


@pytest.fixture(scope="module")
def purse(limited: Service) -> Iterator[Purse]:
    with open_purse(limited) as opened:
        yield opened


@pytest.fixture
def wire_of(limited: Service, purse: Purse, upstream: LoopbackUpstream) -> WireOf:
    """Bare HTTP with a key of its own, made with these options."""
    return lambda *options: Wire(limited.port, purse.create_key(*options))


def rate_of(reply: Reply) -> tuple[int, int]:
    """The limit and what remains, once the three headers are held to their form."""
    limit, remaining, reset = (reply.headers[name] for name in NAMES)
    assert TIME.fullmatch(reset), reset
    assert 0 <= int(remaining) < int(limit)
    return int(limit), int(remaining)


def check_refused(reply: Reply) -> int:
    """The wait in milliseconds that a 429 of the rate names."""
    assert "requests a second" in reply.error(429, "rate_limit_error")
    wait_ms = int(reply.headers["retry-after-ms"])
    assert wait_ms >= 1
    assert int(reply.headers["retry-after"]) == math.ceil(wait_ms / 1000)
    assert "x-should-retry" not in reply.headers
    assert rate_of(reply)[1] == 0
    return wait_ms


def until_refused(wire: Wire) -> Reply:
    """The first refusal: on a slow machine a request more may be granted before it."""
    replies = (wire.get("/v1/models") for _ in range(100))
    return next(reply for reply in replies if reply.status != 200)


def key_of(wire: Wire) -> str:
    return wire._key_headers["authorization"].removeprefix("Bearer ")


def too_large(wire: Wire) -> Reply:
    return parse_raw(wire.send_raw(wire.head("POST", "/v1/chat/completions", "content-length: 40000000")))


def test_every_keyed_reply_tells_the_rate(limited: Service, wire_of: WireOf, upstream: LoopbackUpstream) -> None:
    """Whatever the answer to a live key is, it has the three headers; the limit is the burst of the config."""
    wire, reader, once = wire_of(), wire_of("--scope", "models"), {"idempotency-key": "once"}
    upstream.script(Status(500))
    replies = {
        "502": wire.post(CHAT),
        "200": wire.post(CHAT, once),
        "409": wire.post(CHAT, once),
        "200 stream": wire.post(STREAM),
        "200 models": wire.get("/v1/models"),
        "200 model": wire.get("/v1/models/forte"),
        "200 usage": wire.get("/v1/usage"),
        "400 body": wire.post(b"{"),
        "400 model": wire.chat(model="gpt-4o"),
        "400 usage": wire.get("/v1/usage?group_by=nothing"),
        "403": reader.post(CHAT),
        "404": wire.get("/v1/models/piano"),
        "413": too_large(wire),
    }
    with open_purse(limited, 0) as empty:
        replies["402"] = empty.wire.chat()
    assert {kind: str(reply.status) for kind, reply in replies.items()} == {kind: kind[:3] for kind in replies}
    assert {kind: rate_of(reply)[0] for kind, reply in replies.items()} == dict.fromkeys(replies, USUAL["burst"])
    exposed = replies["200"].headers["access-control-expose-headers"].split(", ")
    assert {*NAMES, "retry-after", "retry-after-ms"} <= {*exposed}


def test_who_has_no_key_is_told_no_rate(limited: Service) -> None:
    """A 401 says nothing of rates, whatever stood in place of a key."""
    for key in (None, "sk-cdz-nothing", make_key()):
        reply = Wire(limited.port, key).get("/v1/models")
        reply.error(401, "authentication_error")
        assert not {*NAMES, "retry-after", "retry-after-ms"} & reply.headers.keys()


def test_every_request_of_a_key_counts(wire_of: WireOf, upstream: LoopbackUpstream) -> None:
    """Chats, lists, mistakes and what the key may not do: each takes one, and the one after the last is refused."""
    wire = wire_of(*NEVER, "--burst", "8", "--scope", "inference", "--scope", "usage")
    replies = [
        wire.post(CHAT),
        wire.post(STREAM),
        wire.get("/v1/usage"),
        wire.post(b"{"),
        wire.get("/v1/models"),
        wire.get("/v1/models/nothing"),
        too_large(wire),
        Wire(wire.port, None).post(CHAT, {"x-api-key": key_of(wire)}),
    ]
    assert [reply.status for reply in replies] == [200, 200, 200, 400, 403, 403, 413, 200]
    assert [rate_of(reply) for reply in replies] == [(8, 7 - number) for number in range(8)]
    check_refused(wire.get("/v1/usage"))
    assert len(upstream.requests) == 3


def test_refused_requests_take_nothing(wire_of: WireOf, upstream: LoopbackUpstream) -> None:
    """Who insists is told a wait that only shrinks, and no upstream hears of it."""
    wire = wire_of(*NEVER, "--burst", "1")
    assert wire.post(CHAT).status == 200
    waits_ms = [check_refused(wire.post(body)) for body in (CHAT, STREAM, CHAT, STREAM)]
    assert waits_ms == sorted(waits_ms, reverse=True)
    assert 0 < waits_ms[0] <= 1_000_000
    assert len(upstream.requests) == 1


def test_who_waits_exactly_as_told_is_served(wire_of: WireOf) -> None:
    """The wait in milliseconds is the true one, again and again."""
    wire = wire_of("--rate", "8", "--burst", "1")
    assert wire.chat().status == 200
    acts: list[Callable[[], Reply]] = [wire.chat, lambda: wire.get("/v1/models"), lambda: wire.post(STREAM)]
    for act in acts:
        wait_ms = check_refused(until_refused(wire))
        assert wait_ms <= 125
        time.sleep(wait_ms / 1000)
        assert act().status == 200


def test_scope_comes_before_rate_and_rate_before_the_body(wire_of: WireOf) -> None:
    """A key that has used up its rate is 403 where it lacks the scope, and 429 whatever its body is."""
    reader, writer = wire_of(*NEVER, "--burst", "1", "--scope", "models"), wire_of(*NEVER, "--burst", "1")
    assert reader.get("/v1/models").status == 200
    check_refused(reader.get("/v1/models"))
    reply = reader.post(b"{")
    reply.error(403, "permission_error")
    assert rate_of(reply) == (1, 0)
    assert writer.get("/v1/models").status == 200
    for refused in (writer.post(b"{"), writer.chat(model="gpt-4o"), too_large(writer)):
        check_refused(refused)


def test_keys_of_one_account_do_not_disturb_each_other(wire_of: WireOf) -> None:
    """While one key is refused, another of the same account has all of its own rate."""
    greedy, modest = (wire_of(*NEVER, "--burst", "3") for _ in range(2))
    statuses = [greedy.get("/v1/models").status for _ in range(6)]
    assert statuses == [200, 200, 200, 429, 429, 429]
    assert [rate_of(modest.get("/v1/models")) for _ in range(3)] == [(3, 2), (3, 1), (3, 0)]


def test_key_at_full_speed_has_its_rate_and_no_more(wire_of: WireOf) -> None:
    """Eight clients of one key, as fast as they can, are served the burst and then the rate, within one request."""
    wire = wire_of("--rate", "40", "--burst", "5")
    started_s = time.monotonic()

    def insist(_client: int) -> int:
        served = 0
        while time.monotonic() < started_s + 0.6:
            served += wire.get("/v1/models").status == 200
        return served

    with ThreadPoolExecutor(8) as pool:
        served = sum(pool.map(insist, range(8)))
    taken_s = time.monotonic() - started_s
    assert 5 < served <= 5 + 40 * taken_s + 1


def test_rate_of_its_own_counts_on_the_next_request(wire_of: WireOf, purse: Purse) -> None:
    """A running service heeds `key limit` at once; what is not given stays as in the config."""
    wire = wire_of()
    assert rate_of(wire.get("/v1/models"))[0] == USUAL["burst"]
    prefix = key_of(wire)[:12]
    purse.run("key", "limit", prefix, "--burst", "100")
    assert rate_of(wire.get("/v1/models"))[0] == 100
    purse.run("key", "limit", prefix, *NEVER, "--burst", "2")
    replies = [wire.get("/v1/models") for _ in range(4)]
    assert {rate_of(reply)[0] for reply in replies} == {2}
    assert sum(reply.status == 200 for reply in replies) <= 2
    check_refused(replies[-1])


@pytest.mark.parametrize("own", [(), ("--rate", "1000", "--burst", "50")], ids=["the usual", "a higher one"])
def test_rate_is_given_back_on_the_next_request(wire_of: WireOf, purse: Purse, own: tuple[str, ...]) -> None:
    """A key that used up a low rate of its own is served as soon as it has another, with no debt of before."""
    wire = wire_of(*NEVER, "--burst", "1")
    assert wire.get("/v1/models").status == 200
    check_refused(wire.get("/v1/models"))
    purse.run("key", "limit", key_of(wire)[:12], *own)
    reply = wire.get("/v1/models")
    if reply.status == 429:
        assert check_refused(reply) <= 250
        time.sleep(0.25)
        reply = wire.get("/v1/models")
    assert reply.status == 200
    assert rate_of(reply)[0] == (50 if own else USUAL["burst"])


def test_sdk_waits_out_the_rate_by_itself(limited: Service, purse: Purse, upstream: LoopbackUpstream) -> None:
    """An OpenAI client that is too fast obeys the headers of its 429s, and every call of it succeeds."""
    statuses = list[int]()

    def note(response: httpx2.Response) -> None:
        statuses.append(response.status_code)

    http_client = openai.DefaultHttpxClient(trust_env=False, event_hooks={"response": [note]})
    key = purse.create_key("--rate", "1", "--burst", "1")
    with openai.OpenAI(base_url=limited.base_url, api_key=key, http_client=http_client, max_retries=3) as client:
        for _ in range(2):
            client.chat.completions.create(model="forte", messages=[{"role": "user", "content": "hi"}])
    assert statuses.count(200) == len(upstream.requests) == 2
    assert statuses.count(429) >= 1
    assert {*statuses} == {200, 429}
