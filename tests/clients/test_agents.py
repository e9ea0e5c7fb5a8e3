"""Codex and Claude Code over several turns: they read, edit and write files, and survive what goes wrong in between."""

import base64
from pathlib import Path

import pytest

from tests.account import open_account
from tests.clients.agents import AGENTS, RUN_S, CodingAgent
from tests.clients.model import PIXEL
from tests.conftest import StartService
from tests.installed import INSTALL_S, PROGRAMS_S
from tests.loopback import LoopbackUpstream
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec
from tests.tokens import count_tokens
from tests.transcripts.upstreams import scripted

TOO_LONG = 'status:400{"error":{"message":"prompt is too long: 300000 tokens > 200000 maximum"}}'

pytestmark = [
    pytest.mark.timeout(PROGRAMS_S + INSTALL_S + 3 * RUN_S),
    pytest.mark.slow(reason="installs and runs other people's programs"),
]


@pytest.mark.parametrize("name", AGENTS)
def test_three_turns(name: str, service: Service, upstream: LoopbackUpstream, tmp_path: Path) -> None:
    """Each request is charged once, also those that follow a broken stream, a 429, a 402 and a prompt too long."""
    agent = CodingAgent(AGENTS[name], service, tmp_path)
    (agent.project / "a.txt").write_text("one\ntwo\n")
    with open_account(service) as account, open_account(service, 0) as poor:
        key = account.create_key()
        upstream.script(
            scripted('"I look at" reset'),
            scripted(f"{agent.call(agent.kind.read)} usage:101/7"),
            scripted('"It has two lines." finish:stop usage:102/7'),
        )
        assert "It has two lines." in agent.run("Read a.txt.", key)
        upstream.script(
            scripted("status:429"),
            scripted(f"{agent.call(agent.kind.edit)} usage:103/7"),
            scripted('"Edited." finish:stop usage:104/7'),
        )
        assert "Edited." in agent.run("Edit a.txt.", key)
        assert (agent.project / "a.txt").read_text() == "one\nthree\n"
        assert "Add credit" in agent.run("Write b.txt.", poor.create_key())
        upstream.script(
            scripted(TOO_LONG),
            scripted('"<summary>A file was read and edited.</summary>" finish:stop usage:105/7'),
            scripted(f"{agent.call(agent.kind.write)} usage:106/7"),
            scripted('"Written." finish:stop usage:107/7'),
        )
        printed = agent.run("Write b.txt.", key)
        if agent.kind.stops_at_overflow:
            assert "ran out of room" in printed
            printed = agent.run("Write b.txt.", key)
        assert "Written." in printed
        assert (agent.project / "b.txt").read_text() == "new\n"
        broken, *charges = account.charges
        assert broken["completion_tokens"] == count_tokens("I look at")
        assert [charge["prompt_tokens"] for charge in charges] == [*range(101, 108)]
        assert poor.charges == []
    requests = [request.json["messages"] for request in upstream.requests]
    assert len(requests) == 10
    assert "two" in requests[2][-1]["content"]
    assert "summary" in str(requests[7])
    assert "A file was read and edited." in str(requests[8])


@pytest.mark.parametrize("name", AGENTS)
def test_an_image(name: str, start_service: StartService, upstream: LoopbackUpstream, tmp_path: Path) -> None:
    """An image that the agent reads is shown to the model."""
    routes = {"forte": [RouteSpec("loopback", more_toml="vision = true\n")]}
    service = start_service(ServiceSpec({"loopback": upstream.base_url}, routes))
    agent = CodingAgent(AGENTS[name], service, tmp_path)
    (agent.project / "pixel.png").write_bytes(base64.b64decode(PIXEL))
    upstream.script(scripted(agent.call(agent.kind.see)), scripted('"A pixel." finish:stop'))
    assert "A pixel." in agent.run("What is in pixel.png?", service.key)
    assert PIXEL in str(upstream.requests[-1].json["messages"][-1])
