"""The client for Azure in OpenAI's SDK: the class is the deployment, and the key comes in the header `api-key`."""

import json
from collections.abc import Iterator

import openai
import pytest

from tests.account import FORTE_INPUT_NANO, FORTE_OUTPUT_NANO, Account
from tests.loopback import Good, LoopbackUpstream
from tests.raw_client import MESSAGES, RawClient
from tests.service import Service

TEXT = "A short answer."
PATH = "/openai/deployments/{}/chat/completions?api-version=2024-10-21"


@pytest.fixture
def azure(service: Service, account: Account) -> Iterator[openai.AzureOpenAI]:
    http_client = openai.DefaultHttpxClient(trust_env=False)
    endpoint, version = f"http://127.0.0.1:{service.port}", "2024-10-21"
    with openai.AzureOpenAI(
        azure_endpoint=endpoint,
        api_version=version,
        api_key=account.create_key(),
        http_client=http_client,
        max_retries=0,
    ) as made:
        yield made


def test_an_answer(azure: openai.AzureOpenAI, upstream: LoopbackUpstream, account: Account) -> None:
    """Its text, its class, and the same charge as for any other chat."""
    upstream.script(Good(TEXT))
    reply = azure.chat.completions.create(model="forte", messages=[{"role": "user", "content": "hi"}])
    assert (reply.choices[0].message.content, reply.model) == (TEXT, "forte")
    usage = reply.usage
    assert usage
    assert account.spent_nano == usage.prompt_tokens * FORTE_INPUT_NANO + usage.completion_tokens * FORTE_OUTPUT_NANO


@pytest.mark.parametrize(
    ("name", "fields", "model"),
    [
        ("auto", {}, "forte"),
        ("mezzo", {"model": "gpt-4o"}, "mezzo"),
        ("mezz%6f", {"model": None}, "mezzo"),
        ("/mezzo", {"model": "forte"}, "mezzo"),
    ],
)
def test_the_path_names_the_class(
    api: RawClient, upstream: LoopbackUpstream, name: str, fields: dict[str, str | None], model: str
) -> None:
    """As at Azure, the `model` of the body does not count. A name may be escaped, and slashes repeated."""
    upstream.script(Good(TEXT))
    reply = api.request("POST", PATH.format(name), json.dumps({"messages": MESSAGES, **fields}).encode())
    assert (reply.status, reply.json["model"]) == (200, model)


def test_a_large_body(api: RawClient, upstream: LoopbackUpstream) -> None:
    """It is parsed in a child process, like that of any other chat, and its class is that of the path."""
    upstream.script(Good(TEXT))
    body = {"model": "piano", "messages": [{"role": "user", "content": "word " * 300_000}], "max_tokens": 10}
    reply = api.request("POST", PATH.format("forte"), json.dumps(body).encode())
    assert (reply.status, reply.json["model"]) == (200, "forte")


def test_errors(azure: openai.AzureOpenAI, service: Service) -> None:
    """An unknown class, an unknown key, and an endpoint that is not served raise the SDK's errors."""
    with pytest.raises(openai.BadRequestError, match="Use one of: auto"):
        azure.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.AuthenticationError):
        azure.with_options(api_key="sk-cdz-wrong").chat.completions.create(
            model="forte", messages=[{"role": "user", "content": "hi"}]
        )
    with pytest.raises(openai.NotFoundError, match="Of Azure's paths"):
        azure.embeddings.create(model="forte", input="hi")
