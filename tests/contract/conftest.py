"""The clients that drive the service: the OpenAI SDK, blocking and asynchronous, and bare HTTP."""

from collections.abc import AsyncIterator, Callable, Iterator

import openai
import pytest

from tests.account import Account, open_account
from tests.raw_client import RawClient
from tests.service import Service


@pytest.fixture
def client(service: Service) -> Iterator[openai.OpenAI]:
    http_client = openai.DefaultHttpxClient(trust_env=False, verify=False)
    with openai.OpenAI(base_url=service.base_url, api_key=service.key, http_client=http_client) as made:
        yield made


@pytest.fixture
async def async_client(service: Service) -> AsyncIterator[openai.AsyncOpenAI]:
    http_client = openai.DefaultAsyncHttpxClient(trust_env=False, verify=False)
    async with openai.AsyncOpenAI(base_url=service.base_url, api_key=service.key, http_client=http_client) as made:
        yield made


@pytest.fixture
def protocol() -> str:
    """Of a chat. A part that has others runs tests of this folder with its own."""
    return "chat"


@pytest.fixture(scope="session")
def scoped_keys(service: Service) -> dict[str, str]:
    """For each scope a key that has only that scope."""
    return {scope: service.create_key(scopes=(scope,)) for scope in ("inference", "models", "usage")}


@pytest.fixture
def api(service: Service) -> RawClient:
    return RawClient(service.port, service.key)


@pytest.fixture
def api_as(service: Service) -> Callable[[str | None], RawClient]:
    """Bare HTTP with another key, or without one."""
    return lambda key: RawClient(service.port, key)


@pytest.fixture
def account(service: Service) -> Iterator[Account]:
    """An account with plenty of credit."""
    with open_account(service) as opened:
        yield opened
