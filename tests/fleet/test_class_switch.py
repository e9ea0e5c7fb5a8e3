"""A class is switched to another version and back under load: all gateways switch together, and no request fails."""

import json

import pytest

from cadenza.store.address import open_store
from cadenza.store.tables import class_versions
from tests.class_switch import ROUTE, serve_version, switch
from tests.fleet.cluster import STORE_WAIT_S
from tests.fleet.fleet import Fleet
from tests.fleet.requests import Clients, disturbed
from tests.fleet.streams import RunningStreams
from tests.loopback import LoopbackUpstream

SWITCHES = 6
FIRST_VERSIONS = "SELECT class_id, number FROM class_versions ORDER BY class_id"
VERSIONS = "SELECT request_id, version FROM usage"
pytestmark = pytest.mark.slow(reason="a fleet under load")
MODELS = {1: "loopback-forte", 2: ROUTE.model}


def asked_models(upstream: LoopbackUpstream) -> dict[str, str]:
    """The model that was asked for, by what the client said."""
    bodies = [request.json for request in upstream.requests]
    return {body["messages"][-1]["content"]: body["model"] for body in bodies}


async def test_all_gateways_switch_together(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """A request sent after a switch returned is served by the new version on every gateway; none fails or mixes."""
    clients, after = Clients(fleet), dict[str, int]()
    first = fleet.ledger.query(FIRST_VERSIONS)
    assert first == [("forte", 1), ("fortissimo", 1), ("mezzo", 1)], "three first starts record one version"
    store = open_store(fleet.ledger.url, STORE_WAIT_S)
    streams = RunningStreams(clients, upstream)
    try:
        await streams.begin(3, fleet.ports)
        async with clients.load(4, fleet.ports):
            for number in range(SWITCHES):
                served = 2 - number % 2
                if served == 2:
                    await switch(store)
                else:
                    await serve_version(store, 1)
                for port in fleet.ports:
                    request = clients.new_request()
                    await clients.send_patiently(request, port)
                    after[request.request_id] = served
        assert all(reply.is_done for reply in await streams.end())
        assert [one.number for one in await class_versions.list_newest(store, "forte")] == [2, 1]
    finally:
        await store.close()
    assert disturbed(clients.sent) == []
    fleet.check()
    clients.check_charges()
    versions, models = dict(fleet.ledger.query(VERSIONS)), asked_models(upstream)
    assert {request_id: versions[request_id] for request_id in after} == after
    for sent in clients.sent:
        if sent.reply.status == 200:
            assert models[sent.request.content] == MODELS[versions[sent.request.request_id]]
    logged = [json.loads(line) for line in fleet.output.splitlines() if '"completion_id"' in line]
    assert {line["request_id"]: line["version"] for line in logged if line["request_id"] in after} == after
