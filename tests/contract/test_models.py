"""Model discovery: the classes, in order, with stable fields."""

import openai
import pytest

from tests.conftest import StartService
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.schemas import MODEL, MODEL_LIST, check
from tests.service_config import RouteSpec, ServiceSpec

LISTED = ["auto", "mezzo", "forte", "fortissimo"]


def test_list_through_the_sdk(client: openai.OpenAI) -> None:
    """The SDK lists the usable classes in their order."""
    assert [model.id for model in client.models.list()] == LISTED


async def test_list_through_the_async_sdk(async_client: openai.AsyncOpenAI) -> None:
    """The asynchronous SDK lists the same."""
    assert [model.id async for model in async_client.models.list()] == LISTED


@pytest.mark.parametrize("model", LISTED)
def test_retrieve_through_the_sdk(client: openai.OpenAI, model: str) -> None:
    """Each listed class can be retrieved by its id."""
    retrieved = client.models.retrieve(model)
    assert (retrieved.id, retrieved.object, retrieved.owned_by) == (model, "model", "cadenza")


def test_list_has_the_closed_shape(api: RawClient) -> None:
    """The list and each model in it have exactly the members of the interface."""
    reply = api.get("/v1/models")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    check(reply.json, MODEL_LIST)


def test_retrieved_model_equals_the_listed_one(api: RawClient) -> None:
    """A retrieved class equals the listed one."""
    listed = {model["id"]: model for model in api.get("/v1/models").json["data"]}
    for model in LISTED:
        retrieved = api.get(f"/v1/models/{model}").json
        check(retrieved, MODEL)
        assert retrieved == listed[model]


def test_created_and_list_survive_a_restart(start_service: StartService, upstream: LoopbackUpstream) -> None:
    """`created` is the same after a restart, and a class without routes is left out of the list."""
    routes = {"mezzo": [RouteSpec("loopback")], "forte": [RouteSpec("loopback")]}
    own = start_service(ServiceSpec({"loopback": upstream.base_url}, routes))
    before = RawClient(own.port, own.key).get("/v1/models").json
    own.stop()
    own.start()
    api = RawClient(own.port, own.key)
    assert api.get("/v1/models").json == before
    assert [model["id"] for model in before["data"]] == ["auto", "mezzo", "forte"]
    api.get("/v1/models/fortissimo").error(404)
    assert "fortissimo" not in api.chat(model="gpt-4o").error(400)
