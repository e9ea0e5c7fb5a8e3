"""A gateway that no part gives a grounder: files go to a model that takes them, and the switch changes nothing."""

import msgspec
import pytest

from cadenza.core.records import Usage
from cadenza.upstreams.base import Piece
from tests.unit.gateway.client import Client
from tests.unit.gateway.funded_store import FundedStore
from tests.unit.gateway.gateways import PROVIDER, ROUTE, running_api, snapshot_of
from tests.unit.gateway.scripted_upstream import ScriptedUpstream

FILE = {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}}
BODY = msgspec.json.encode({"messages": [{"role": "user", "content": [FILE, {"type": "text", "text": "What is it?"}]}]})


def answering() -> ScriptedUpstream:
    return ScriptedUpstream(Piece("yes", "stop", Usage(1, 1)))


async def test_a_file_that_no_route_takes_names_the_extra(funded: FundedStore) -> None:
    """It is never left out: the 400 says that files are read with the extra, and no model is asked."""
    upstream, client = answering(), Client()
    async with running_api(funded, upstream) as api:
        api.chat(client, body=BODY)
        await client.serve(api.gateway)
    assert client.status == 400
    assert b"Without tools, files are read here with the extra 'grounding', which is not installed." in client.bodies[0]
    assert upstream.asks == []


async def test_a_file_goes_to_a_route_that_takes_files(funded: FundedStore) -> None:
    """The model gets it as it was sent."""
    upstream, client = answering(), Client()
    async with running_api(funded, upstream) as api:
        api.gateway.snapshot = snapshot_of({PROVIDER: upstream}, route=msgspec.structs.replace(ROUTE, files=True))
        api.chat(client, body=BODY)
        await client.serve(api.gateway)
    assert client.status == 200
    assert b"x-cadenza-grounding" not in client.headers
    [ask] = upstream.asks
    assert msgspec.json.decode(msgspec.json.encode(ask.messages[-1]))["content"][0] == FILE


@pytest.mark.parametrize(("value", "status"), [(b"none", 200), (b"memory=off", 200), (b"off", 400)])
async def test_the_switch_is_read_all_the_same(funded: FundedStore, value: bytes, status: int) -> None:
    """It changes nothing, and a wrong value is refused, with or without the part."""
    client = Client()
    async with running_api(funded, answering()) as api:
        body = b'{"messages":[{"role":"user","content":"hi"}]}'
        client.open([*funded.key_headers, (b"x-cadenza-grounding", value)], body=body)
        await client.serve(api.gateway)
    assert client.status == status
