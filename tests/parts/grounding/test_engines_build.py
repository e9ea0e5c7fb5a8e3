"""What `cadenza doctor` says about an engine."""

import re

import pytest

from cadenza.parts.grounding.search.engines import base
from cadenza.parts.grounding.search.engines.build import EngineProbe, probe
from cadenza.parts.grounding.search.records import EngineFailed
from cadenza.parts.grounding.settings import EngineName
from tests.parts.grounding.engine_peer import NAMES, answer, asking, reply, result
from tests.parts.grounding.scripted_engine import ScriptedEngine
from tests.unit.http.peer import always, responding

REASONS = re.findall(r"^([a-z_]+)  ", base.__doc__ or "", re.MULTILINE)  # of its table


async def probed(name: EngineName, response: bytes) -> EngineProbe:
    async with asking(name, always(response)) as (engine, _):
        return await probe(engine)


@pytest.mark.parametrize("name", NAMES)
async def test_engine_that_works(name: EngineName) -> None:
    """An engine with a result works."""
    found = await probed(name, reply(answer(name, [result("https://a.example/")])))
    assert found == EngineProbe(works=True, detail=f"{name} answers")


@pytest.mark.parametrize("name", NAMES)
async def test_probe_is_one_search(name: EngineName) -> None:
    """It costs one search of the operator's, for a harmless word."""
    async with asking(name, responding(reply(answer(name, [])))) as (engine, peer):
        await probe(engine)
        [request] = peer.visits[0].requests
    assert "wikipedia" in request.path + request.body.decode()


@pytest.mark.parametrize(
    ("name", "response", "words"),
    [
        ("searxng", reply(b"", "403 Forbidden", "text/html"), ("search.formats", "json", "settings.yml")),
        ("searxng", reply(b"", "429 Too Many Requests", "text/html"), ("limiter: false", "pass_ip")),
        ("searxng", reply(answer("searxng", [])), ("finds nothing", "/stats")),
        ("searxng", reply(b"<html>", content_type="text/html"), ("not JSON", "`url`")),
        ("searxng", reply(b"", "404 Not Found"), ("`url`", "/search")),
        ("searxng", reply(b"", "302 Found"), ("redirect", "`url`")),
        ("brave", reply(b"", "401 Unauthorized"), ("key", "`api_key_env`")),
        ("brave", reply(b"", "429 Too Many Requests"), ("rate limit",)),
        ("tavily", reply(b"", "432 Plan Limit"), ("no searches left", "plan")),
        ("tavily", reply(b"", "500 Internal Server Error"), ("error", "later")),
    ],
)
async def test_engine_that_does_not_work(name: EngineName, response: bytes, words: tuple[str, ...]) -> None:
    """The sentence says what is wrong and what to do."""
    found = await probed(name, response)
    assert not found.works
    assert found.detail.startswith(f"{name} ")
    assert [word for word in words if word not in found.detail] == []


@pytest.mark.parametrize("reason", REASONS)
async def test_every_reason_has_a_sentence(reason: str) -> None:
    """Whatever the reason is, and of any engine, there are whole sentences."""
    engine = ScriptedEngine("searxng")
    engine.failure = lambda: EngineFailed(reason)
    found = await probe(engine)
    assert not found.works
    assert found.detail.endswith(".")
