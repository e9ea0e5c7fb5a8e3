"""Large tool definitions: the limit is fitted to a route's window, and a larger window is tried before a 400."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.schemas import check_completion, check_stream
from tests.service import Service
from tests.service_config import ServiceSpec
from tests.tokens import count_tokens

WINDOW_TOKENS = 128_000
SMALL_TOKENS = 2_000
OUTPUT_TOKENS = 131_072
CLASSES_TOML = f"""
[[classes.mezzo.routes]]
provider = "loopback"
model = "one-window"
context_tokens = {WINDOW_TOKENS}
max_output_tokens = {OUTPUT_TOKENS}

[[classes.forte.routes]]
provider = "loopback"
model = "small"
context_tokens = {SMALL_TOKENS}
max_output_tokens = 1_000
order = 0

[[classes.forte.routes]]
provider = "loopback"
model = "large"
context_tokens = {WINDOW_TOKENS}
max_output_tokens = {OUTPUT_TOKENS}
order = 1
"""


@pytest.fixture(scope="module")
def fitted(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """mezzo: one window of 128k. forte: a small one, then a large one."""
    with Service(ServiceSpec({"loopback": shared_upstream.base_url}, {}, CLASSES_TOML)) as service:
        yield service


@pytest.fixture
def api(fitted: Service, upstream: LoopbackUpstream) -> RawClient:
    return RawClient(fitted.port, fitted.key)


def definitions(size_bytes: int) -> list[Any]:
    """Definitions of about 4 kB each, up to this size."""
    properties = {
        f"field_{n}": {"type": "string", "description": f"The name of field {n} as the customer knows it."}
        for n in range(40)
    }
    one = {"name": "f", "description": "Look up a record.", "parameters": {"type": "object", "properties": properties}}
    count = size_bytes // len(json.dumps({"type": "function", "function": one}))
    return [{"type": "function", "function": one | {"name": f"f{n}"}} for n in range(count)]


def sent(upstream: LoopbackUpstream) -> Any:
    (request,) = upstream.requests
    return request.json


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asked", [{}, {"max_tokens": 131_072}, {"max_completion_tokens": 943_000}], ids=str)
def test_400_kb_of_definitions_are_answered(
    api: RawClient, upstream: LoopbackUpstream, asked: dict[str, int], stream: bool
) -> None:
    """400 kB of definitions on a window of 128k are answered, with a limit that leaves room for the prompt."""
    tools = definitions(400_000)
    reply = api.chat(model="mezzo", tools=tools, stream=stream, **asked)
    assert reply.status == 200, reply.body
    if stream:
        check_stream(reply.body)
    else:
        check_completion(reply.json)
    prompt_tokens = count_tokens(json.dumps(tools))
    assert prompt_tokens > WINDOW_TOKENS // 2
    assert 16 <= sent(upstream)["max_tokens"] <= WINDOW_TOKENS - prompt_tokens * 1.05
    assert sent(upstream)["tools"] == tools


def test_large_definitions_go_to_the_larger_window(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Definitions that do not fit the first route are answered by the next one."""
    assert api.chat(model="forte", tools=definitions(20_000)).status == 200
    assert sent(upstream)["model"] == "large"


def test_definitions_count_in_the_context_limit(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Definitions of more than a million tokens are refused with the number that was counted."""
    tools = [{"type": "function", "function": {"name": "look", "description": "a b " * 1_100_000}}]
    message = api.chat(model="mezzo", tools=tools).error(400)
    assert "maximum context length is 1000000 tokens" in message
    assert upstream.requests == []
