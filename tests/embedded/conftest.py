"""One server on the built-in default for all tests of this folder, and the clients that ask it."""

from collections.abc import AsyncIterator, Iterator

import openai
import pytest

from tests.cli.program import Server, serving
from tests.contract.wire import Wire


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("embedded")) as running:
        running.wait_for_model()
        yield running


@pytest.fixture
def wire(server: Server) -> Wire:
    return Wire(server.port, server.key)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    http_client = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=server.base_url, api_key=server.key, http_client=http_client) as made:
        yield made


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    http_client = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key=server.key, http_client=http_client) as made:
        yield made
