"""Large tool definitions: the limit is fitted to a route's window, and a larger window is tried before a 400."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.tool_upstream import TOOLS
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.schemas import check_completion, check_stream
from tests.service import Service
from tests.service_config import CHARACTER, ServiceSpec
from tests.tokens import count_prompt, count_tokens

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


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("asked", [131_073, 943_000, 10**12])
def test_limit_above_the_largest_is_fitted_with_tools(
    api: RawClient, upstream: LoopbackUpstream, name: str, asked: int
) -> None:
    """A limit beyond every route is fitted to the window on the tool path, and is a 400 on the plain one."""
    assert api.chat(model="mezzo", tools=TOOLS, **{name: asked}).status == 200
    assert WINDOW_TOKENS * 0.9 < sent(upstream)["max_tokens"] < WINDOW_TOKENS
    api.chat(model="mezzo", **{name: asked}).error(400)


def test_small_limit_is_kept(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A limit that fits is sent upstream unchanged."""
    assert api.chat(model="mezzo", tools=TOOLS, max_tokens=50).status == 200
    assert sent(upstream)["max_tokens"] == 50


def test_small_prompt_goes_to_the_first_route(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A prompt that fits goes to the first route, with a limit for its window."""
    assert api.chat(model="forte", tools=TOOLS, max_tokens=5_000).status == 200
    assert sent(upstream)["model"] == "small"
    assert sent(upstream)["max_tokens"] == 1_000


@pytest.mark.parametrize("words", [900, 1_200])
def test_prompt_is_fitted_by_its_tokens(api: RawClient, upstream: LoopbackUpstream, words: int) -> None:
    """A prompt with more bytes than a small window has tokens goes to it, with the limit that its tokens leave."""
    content = "word " * words
    prompt_tokens = count_prompt([CHARACTER, content, json.dumps(TOOLS)])
    messages = [{"role": "user", "content": content}]
    assert api.chat(model="forte", tools=TOOLS, messages=messages).status == 200
    assert prompt_tokens + 16 < SMALL_TOKENS < len(content)
    assert sent(upstream)["model"] == "small"
    assert sent(upstream)["max_tokens"] == SMALL_TOKENS - prompt_tokens - int(prompt_tokens * 0.05) < 1_000


def test_large_definitions_go_to_the_larger_window(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Definitions that do not fit the first route are answered by the next one."""
    assert api.chat(model="forte", tools=definitions(20_000)).status == 200
    assert sent(upstream)["model"] == "large"


@pytest.mark.parametrize("model", ["mezzo", "forte"])
def test_definitions_that_no_window_holds_are_400(api: RawClient, upstream: LoopbackUpstream, model: str) -> None:
    """If not even the shortest answer fits any window, the 400 says how much was sent and how much fits."""
    long = [{"role": "user", "content": "one two three four " * 15_000}]
    message = api.chat(model=model, tools=definitions(400_000), messages=long).error(400)
    assert message.startswith(
        "context_length_exceeded: This model's maximum context length is 128000 tokens. However, "
    )
    assert "tool definitions" in message
    assert upstream.requests == []


def test_definitions_count_in_the_context_limit(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Definitions of more than a million tokens are refused with the number that was counted."""
    tools = [{"type": "function", "function": {"name": "look", "description": "a b " * 1_100_000}}]
    message = api.chat(model="mezzo", tools=tools).error(400)
    assert "maximum context length is 1000000 tokens" in message
    assert upstream.requests == []
