"""Every error reaches an OpenAI SDK client as the SDK's own exception, after the right number of tries."""

from collections.abc import Callable, Iterator

import httpx2
import openai
import pytest

from tests.loopback import LoopbackUpstream, Status
from tests.service import Service

BUSY = Status(429, b'{"error": {"message": "slow down"}}', {"retry-after": "1"})
Action = Callable[[openai.OpenAI], object]


def chat(client: openai.OpenAI) -> object:
    return client.chat.completions.create(model="forte", messages=[{"role": "user", "content": "hi"}])


def stream_chat(client: openai.OpenAI) -> object:
    return client.chat.completions.create(model="forte", messages=[{"role": "user", "content": "hi"}], stream=True)


def chat_with_nobody(client: openai.OpenAI) -> object:
    return client.chat.completions.create(model="forte", messages=[])


def chat_with_unknown_model(client: openai.OpenAI) -> object:
    return client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])


def retrieve_unknown_model(client: openai.OpenAI) -> object:
    return client.models.retrieve("gpt-4o")


def embed(client: openai.OpenAI) -> object:
    return client.embeddings.create(model="forte", input="hi")


def complete_as_of_old(client: openai.OpenAI) -> object:
    return client.completions.create(model="forte", prompt="hi")


class Counted:
    """An SDK client with its default retries that counts the requests it sends."""

    def __init__(self, base_url: str, key: str) -> None:
        self.sent = 0
        http_client = openai.DefaultHttpxClient(trust_env=False, verify=False, event_hooks={"request": [self._count]})
        self.client = openai.OpenAI(base_url=base_url, api_key=key, http_client=http_client)

    def _count(self, _request: httpx2.Request) -> None:
        self.sent += 1


@pytest.fixture
def counted(service: Service) -> Iterator[Counted]:
    made = Counted(service.base_url, service.key)
    with made.client:
        yield made


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (chat_with_nobody, openai.BadRequestError),
        (chat_with_unknown_model, openai.BadRequestError),
        (retrieve_unknown_model, openai.NotFoundError),
        (embed, openai.NotFoundError),
        (complete_as_of_old, openai.NotFoundError),
    ],
)
def test_invalid_request_is_not_retried(counted: Counted, act: Action, expected: type[openai.APIStatusError]) -> None:
    """An invalid request raises the SDK's exception for its status after exactly one try."""
    with pytest.raises(expected) as caught:
        act(counted.client)
    assert counted.sent == 1
    assert caught.value.type == "invalid_request_error"
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert caught.value.request_id


@pytest.mark.parametrize("act", [chat, stream_chat])
def test_failing_upstream_is_retried_by_the_sdk(counted: Counted, upstream: LoopbackUpstream, act: Action) -> None:
    """A 502 raises InternalServerError after the SDK's own retries, each of which reached the upstream once."""
    upstream.always(Status(500, b"upstream-says-boom"))
    with pytest.raises(openai.InternalServerError) as caught:
        act(counted.client.with_options(max_retries=2))
    assert caught.value.status_code == 502
    assert caught.value.type == "api_error"
    assert counted.sent == len(upstream.requests) == 3


@pytest.mark.parametrize("act", [chat, stream_chat])
def test_busy_upstream_is_a_rate_limit(counted: Counted, upstream: LoopbackUpstream, act: Action) -> None:
    """An upstream that answers 429 on every route raises RateLimitError, with both retry headers."""
    upstream.always(BUSY)
    with pytest.raises(openai.RateLimitError) as caught:
        act(counted.client.with_options(max_retries=0))
    assert caught.value.type == "rate_limit_error"
    headers = caught.value.response.headers
    assert int(headers["retry-after"]) >= 1
    assert int(headers["retry-after-ms"]) > 0
    assert headers.get("x-should-retry") != "false"
