"""Fields that the service does not know: dropped and named in a header, or passed on by a route that asks for them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.loopback import LoopbackUpstream
from tests.raw_client import MESSAGES, RawClient, Reply
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec

IGNORED = "x-cadenza-ignored"
PASS = 'pass = ["top_k", "min_p", "chat_template_kwargs", "x.y-z"]\n'
SECRET = "a-value-that-nobody-names"


@pytest.fixture(scope="module")
def passing(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """A service whose forte passes fields on, whose mezzo does only on its second route, and whose fortissimo omits."""
    routes = {
        "forte": [RouteSpec("loopback", more_toml=PASS)],
        "mezzo": [RouteSpec("broken"), RouteSpec("loopback", order=1, more_toml='pass = ["top_k"]\n')],
        "fortissimo": [RouteSpec("strict", more_toml='omit = ["seed"]\n')],
    }
    providers = {
        "loopback": shared_upstream.base_url,
        "broken": "http://127.0.0.1:9/v1",
        "strict": shared_upstream.base_url,
    }
    with Service(ServiceSpec(providers, routes, provider_toml={"strict": 'dialect = "tgi"\n'})) as running:
        yield running


@pytest.fixture
def client(passing: Service, upstream: LoopbackUpstream) -> RawClient:
    assert not upstream.requests
    return RawClient(passing.port, passing.key)


def named(reply: Reply) -> str | None:
    assert reply.status == 200, reply.body
    assert SECRET.encode() not in reply.raw
    return reply.headers.get(IGNORED)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("filler", ["", "x" * 100_000], ids=["small", "large"])
def test_dropped_fields_are_named(api: RawClient, upstream: LoopbackUpstream, stream: bool, filler: str) -> None:
    """On whole replies and streams, of bodies parsed here and in a child, and never with their values."""
    messages = [{"role": "user", "content": "hi" + filler}]
    fields: dict[str, Any] = {"top_k": SECRET, "min_p": 0.1, "user": SECRET, "store": True, "metadata": None}
    assert named(api.chat(messages=messages, stream=stream, **fields)) == "top_k, min_p, user, store"
    assert not {*fields} & upstream.requests[0].json.keys()


def test_a_request_of_known_fields_has_no_header(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Fields that are used or answered in full are not named."""
    known = {
        "temperature": 0.5,
        "n": 1,
        "logprobs": False,
        "top_logprobs": 0,
        "modalities": ["text"],
        "max_tokens": 9.0,
    }
    assert named(api.chat(stream=True, stream_options={"include_usage": True}, **known)) is None
    assert upstream.requests[0].json["max_tokens"] == 9


def test_tool_fields_without_tools_are_named(api: RawClient, upstream: LoopbackUpstream) -> None:
    """They are accepted, and have no effect."""
    assert named(api.chat(parallel_tool_calls=True, tool_choice="auto")) == "tool_choice, parallel_tool_calls"


@pytest.mark.parametrize(
    "name",
    ["a b", "a\r\nx-forged: 1", "é", "a,b", "", "x" * 65, "a:b", "\ud83d\ude00"],
    ids=lambda name: ascii(name[:9]),
)
def test_a_name_that_is_no_plain_word_is_left_out(api: RawClient, upstream: LoopbackUpstream, name: str) -> None:
    """No name of the client's can write a header, or break one."""
    reply = api.chat(**{name: 1}, top_k=1)
    assert named(reply) == "top_k"
    assert "x-forged" not in reply.headers


def test_many_names_are_cut_short(api: RawClient, upstream: LoopbackUpstream) -> None:
    """The header stays short, whatever is sent, and says that there are more."""
    header = named(api.chat(**{f"field_{number}": 1 for number in range(3000)}))
    assert header
    assert header.split(", ") == [*(f"field_{number}" for number in range(32)), "..."]


def test_a_route_passes_fields_on(client: RawClient, upstream: LoopbackUpstream) -> None:
    """They reach the upstream unchanged, and the others are still dropped and named."""
    kwargs = {"enable_thinking": False, "deep": [1, {"a": None}]}
    assert named(client.chat(top_k=5, chat_template_kwargs=kwargs, user="u", **{"x.y-z": 1e2})) == "user"
    sent = upstream.requests[0].json
    assert (sent["top_k"], sent["chat_template_kwargs"], sent["x.y-z"]) == (5, kwargs, 1e2)
    assert not {"user", "min_p"} & sent.keys()


def test_the_route_that_answers_decides(client: RawClient, upstream: LoopbackUpstream) -> None:
    """The header is true of the route that served the request."""
    assert named(client.chat(model="mezzo", top_k=5, min_p=0.1)) == "min_p"
    assert upstream.requests[0].json["top_k"] == 5


def test_what_a_route_omits_is_named(client: RawClient, upstream: LoopbackUpstream) -> None:
    """Sampling fields that the route or its dialect does not take are dropped, and named too."""
    reply = client.chat(model="fortissimo", seed=1, logit_bias={"1": 2}, temperature=1, top_k=1)
    assert named(reply) == "top_k, seed, logit_bias"
    assert not {"seed", "logit_bias", "top_k"} & upstream.requests[0].json.keys()


def test_passed_fields_are_bounded(client: RawClient, upstream: LoopbackUpstream) -> None:
    """A field that goes upstream is at most 64 KiB; one that does not may be of any size."""
    assert "64 KiB" in client.chat(chat_template_kwargs={"a": "x" * 70_000}).error(400)
    assert named(client.chat(user="x" * 70_000)) == "user"


def test_pages_of_other_sites_can_read_the_header(api: RawClient, upstream: LoopbackUpstream) -> None:
    """It is among the exposed headers."""
    assert IGNORED in api.post({"messages": MESSAGES, "top_k": 1}).headers["access-control-expose-headers"]
