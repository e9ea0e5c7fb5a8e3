"""A service whose upstream is another one like it."""

from pathlib import Path

from tests.conftest import StartService
from tests.contract.agent import WEATHER
from tests.loopback import Json, LoopbackUpstream, completion
from tests.raw_client import MESSAGES, RawClient
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec

UPSTREAM_ID = "call_Zz0f4QmbS7Xw1RkT9aYh2LcD"


def test_call_ids_do_not_grow(
    service: Service, upstream: LoopbackUpstream, start_service: StartService, tmp_path: Path
) -> None:
    """An id stays within 40 characters, does not show the upstream's, and the upstream gets its own back."""
    (tmp_path / "key").write_text(service.key)
    routes = {"forte": [RouteSpec("first", "forte")]}
    provider_toml = {"first": f'api_key_file = "{tmp_path / "key"}"\n'}
    second = start_service(ServiceSpec({"first": service.base_url}, routes, provider_toml=provider_toml))
    reply = completion(None, "tool_calls")
    called = {"id": UPSTREAM_ID, "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    reply["choices"][0]["message"]["tool_calls"] = [called]
    upstream.script(Json(reply), Json(completion("4 degrees.")))
    api = RawClient(second.port, second.key)
    message = api.chat(tools=[WEATHER]).json["choices"][0]["message"]
    call_id = message["tool_calls"][0]["id"]
    assert len(call_id) <= 40
    assert UPSTREAM_ID not in call_id
    answer = {"role": "tool", "tool_call_id": call_id, "content": "4"}
    assert api.chat(messages=[*MESSAGES, message, answer], tools=[WEATHER]).status == 200
    *_, sent, answered = upstream.requests[-1].json["messages"]
    assert (sent["tool_calls"][0]["id"], answered["tool_call_id"]) == (UPSTREAM_ID, UPSTREAM_ID)
