"""A prompt that is too long: a 400 whose words clients recognise, whether we or the upstream found it."""

import json
from collections.abc import Iterator

import pytest

from tests.loopback import Good, Json, LoopbackUpstream, Reply, Sse, Status
from tests.raw_client import RawClient
from tests.service import Service
from tests.service_config import ServiceSpec
from tests.tokens import count_prompt

WORDS = (
    "context_length_exceeded: This model's maximum context length is {} tokens. "
    "However, your messages resulted in {} tokens."
)
CLASSES_TOML = """
[[classes.mezzo.routes]]
provider = "loopback"
model = "small"
context_tokens = 8192
max_output_tokens = 1024

[[classes.forte.routes]]
provider = "loopback"
model = "small"
context_tokens = 8192
max_output_tokens = 1024

[[classes.forte.routes]]
provider = "loopback"
model = "also-small"
context_tokens = 8192
max_output_tokens = 1024
order = 1

[[classes.forte.routes]]
provider = "loopback"
model = "large"
context_tokens = 100_000
max_output_tokens = 1024
order = 2
"""
VLLM = {
    "error": {
        "message": "This model's maximum context length is 4096 tokens. However, you requested 512 output tokens and "
        "your prompt contains at least 3585 input tokens, for a total of at least 4097 tokens.",
        "type": "BadRequestError",
        "param": "input_tokens",
        "code": 400,
    }
}
NO_NUMBERS = {"error": {"message": "Please reduce the length of the messages.", "code": "context_length_exceeded"}}


@pytest.fixture(scope="module")
def windows(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """mezzo: a window of 8,192. forte: two of them, then one of 100,000."""
    with Service(ServiceSpec({"loopback": shared_upstream.base_url}, {}, CLASSES_TOML)) as service:
        yield service


@pytest.fixture
def api(windows: Service, upstream: LoopbackUpstream) -> RawClient:
    windows.reload()
    return RawClient(windows.port, windows.key)


def test_a_prompt_that_fits_no_window(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Where our own count finds it, the numbers are the largest window and the count, without separators."""
    content = "word " * 20_000
    message = api.chat(model="mezzo", messages=[{"role": "user", "content": content}]).error(400)
    counted = count_prompt(["You are the character layer of the tests.", content])
    assert message.startswith(WORDS.format(8192, counted))
    assert upstream.requests == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", ["status 400", "status 413", "status 422", "error in a 200", "error in a stream"])
def test_an_upstreams_overflow_is_said_in_the_same_words(
    api: RawClient, upstream: LoopbackUpstream, form: str, stream: bool
) -> None:
    """The upstream's own numbers are in the message, and nothing else of its words."""
    body = json.dumps(VLLM).encode()
    replies: dict[str, Reply] = {"error in a 200": Json(VLLM), "error in a stream": Sse([VLLM])}
    upstream.script(replies.get(form) or Status(int(form.rsplit(maxsplit=1)[-1]), body))
    message = api.chat(model="mezzo", stream=stream).error(400)
    assert message.startswith(WORDS.format(4096, 3585))
    assert "512" not in message
    assert len(upstream.requests) == 1


def test_without_numbers_ours_are_used(api: RawClient, upstream: LoopbackUpstream) -> None:
    """If the upstream does not say how much is too much, the route's window and our own count are given."""
    upstream.script(Status(400, json.dumps(NO_NUMBERS).encode()))
    message = api.chat(model="mezzo").error(400)
    counted = count_prompt(["You are the character layer of the tests.", "Say hello."])
    assert message.startswith(WORDS.format(8192, counted))


def test_a_route_with_a_larger_window_is_tried(api: RawClient, upstream: LoopbackUpstream) -> None:
    """After an overflow the next route with a larger window answers; one of the same size is not asked."""
    upstream.script(Status(400, json.dumps(VLLM).encode()), Good("from the large one"))
    reply = api.chat(model="forte")
    assert reply.json["choices"][0]["message"]["content"] == "from the large one"
    assert [request.json["model"] for request in upstream.requests] == ["small", "large"]


def test_an_overflow_is_no_fault_of_the_route(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Many prompts that are too long do not make a route rest."""
    for _ in range(12):
        upstream.script(Status(400, json.dumps(VLLM).encode()))
        api.chat(model="mezzo").error(400)
    assert api.chat(model="mezzo").status == 200


@pytest.mark.parametrize("status", [400, 413, 429])
def test_a_request_beyond_the_rate_limit_is_no_overflow(
    api: RawClient, upstream: LoopbackUpstream, status: int
) -> None:
    """An upstream that calls a rate limit "too large" is busy: another route is tried, and at the end it is 429."""
    error = {"message": "Request too large on tokens per minute (TPM): Limit 12000", "code": "rate_limit_exceeded"}
    upstream.always(Status(status, json.dumps({"error": error}).encode()))
    assert "context_length_exceeded" not in api.chat(model="mezzo").error(429, "rate_limit_error")


def test_a_late_error_body_is_not_awaited(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A refusal whose body never comes is a refusal all the same."""
    upstream.script(Status(400, b"", {"content-length": "100"}))
    assert "context_length_exceeded" not in api.chat(model="mezzo").error(400)
