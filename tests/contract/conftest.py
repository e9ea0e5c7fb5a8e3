"""The clients that drive the service: the OpenAI SDK in both its forms, and bare HTTP."""

from collections.abc import AsyncIterator, Callable, Iterator

import openai
import pytest

from tests.contract.wire import Wire
from tests.service import Service


@pytest.fixture
def client(service: Service) -> Iterator[openai.OpenAI]:
    http_client = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=service.base_url, api_key=service.key, http_client=http_client) as made:
        yield made


@pytest.fixture
async def async_client(service: Service) -> AsyncIterator[openai.AsyncOpenAI]:
    http_client = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(base_url=service.base_url, api_key=service.key, http_client=http_client) as made:
        yield made


@pytest.fixture(scope="session")
def scoped_keys(service: Service) -> dict[str, str]:
    """One key for each scope, which has that scope alone."""
    return {scope: service.create_key("--scope", scope) for scope in ("inference", "models", "usage")}


@pytest.fixture
def wire(service: Service) -> Wire:
    return Wire(service.port, service.key)


@pytest.fixture
def wire_as(service: Service) -> Callable[[str | None], Wire]:
    """Bare HTTP with another key, or with none."""
    return lambda key: Wire(service.port, key)
