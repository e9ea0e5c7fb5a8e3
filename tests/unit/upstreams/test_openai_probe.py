"""A probe tells whether a provider responds as it should, and which models it lists."""

import asyncio

import pytest

from cadenza.upstreams.base import Probe
from cadenza.upstreams.openai import PROBE_BYTES_MAX, PROBE_S
from tests.loopback import Close, Cut, LoopbackUpstream, Pause, Reply, Reset, Status, http_head
from tests.loopback import Raw as RawReply
from tests.unit.upstreams.asks import WAIT_S, on_asyncio, on_uvloop, running
from tests.unit.upstreams.clock import Clock

MIB = 1024 * 1024
MODELS = b'{"object": "list", "data": [{"id": "large-7", "x": 1}, {"id": "small-7"}]}'
PROBES: dict[str, tuple[Reply, Probe]] = {
    "models": (Status(200, MODELS), Probe(reachable=True, detail="answers", models=("large-7", "small-7"))),
    "no models": (Status(200, b'{"data": []}'), Probe(reachable=True, detail="answers")),
    "401": (Status(401, MODELS), Probe(reachable=False, detail="answers 401 to GET /models")),
    "404": (Status(404, b"<html>"), Probe(reachable=False, detail="answers 404 to GET /models")),
    "redirect": (
        Status(302, headers={"location": "/v1/other"}),
        Probe(reachable=False, detail="answers 302 to GET /models"),
    ),
}
NOT_A_LIST_OF_MODELS = {
    "HTML": b"<html>",
    "empty": b"",
    "a list": b"[]",
    "no data": b"{}",
    "data of another type": b'{"data": {"id": "x"}}',
    "no id": b'{"data": [{"name": "x"}]}',
    "an id of another type": b'{"data": [{"id": 7}]}',
    "invalid UTF-8": b'{"data": [{"id": "\xff"}]}',
    "nested too deeply": b'{"data": [], "x": ' + b"[" * 100_000,
}
NO_ANSWER: dict[str, Reply] = {
    "closed": RawReply([Close()]),
    "reset": RawReply([Reset()]),
    "not HTTP": RawReply([b"SSH-2.0-OpenSSH_9.6\r\n"]),
    "truncated": Cut(Status(200, MODELS), 20),
    "too large": RawReply([http_head(200, {}), *[b" " * MIB] * (PROBE_BYTES_MAX // MIB + 1)]),
}


@on_uvloop
@pytest.mark.parametrize(("reply", "probe"), PROBES.values(), ids=PROBES)
async def test_the_result_of_a_probe(upstream: LoopbackUpstream, reply: Reply, probe: Probe) -> None:
    """A probe is a GET of the models with the provider's key; it reports the status and the listed models."""
    upstream.always(reply)
    async with asyncio.timeout(WAIT_S), running(upstream.base_url, "sk-1") as openai:
        assert await openai.probe() == probe
    (request,) = upstream.requests
    assert (request.method, request.path, request.body) == ("GET", "/v1/models", b"")
    assert request.headers["authorization"] == "Bearer sk-1"


@on_uvloop
@pytest.mark.parametrize("body", NOT_A_LIST_OF_MODELS.values(), ids=NOT_A_LIST_OF_MODELS)
async def test_a_provider_that_lists_no_models(upstream: LoopbackUpstream, body: bytes) -> None:
    """A provider whose 200 is not a list of models is reachable."""
    upstream.always(Status(200, body))
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai:
        assert await openai.probe() == Probe(reachable=True, detail="answers, but names no models")


@on_uvloop
@pytest.mark.parametrize("reply", NO_ANSWER.values(), ids=NO_ANSWER)
async def test_a_provider_that_does_not_answer(upstream: LoopbackUpstream, reply: Reply) -> None:
    """A probe that breaks off is a result and not an exception."""
    upstream.always(reply)
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai:
        assert await openai.probe() == Probe(reachable=False, detail="no answer")


@on_uvloop
async def test_a_provider_that_does_not_exist() -> None:
    """A probe of a host name that does not resolve finds no answer."""
    async with asyncio.timeout(WAIT_S), running("http://no-such-host.invalid/v1") as openai:
        assert await openai.probe() == Probe(reachable=False, detail="no answer")


@on_asyncio
async def test_a_probe_of_a_silent_provider_ends(upstream: LoopbackUpstream, clock: Clock) -> None:
    """A probe without a response is given up after PROBE_S."""
    pause = Pause()
    upstream.always(RawReply([pause]))
    async with running(upstream.base_url) as openai:
        task = asyncio.create_task(openai.probe())
        await asyncio.to_thread(pause.wait_until_reached, WAIT_S)
        await clock.leap(PROBE_S - 1)
        assert not task.done()
        await clock.leap(2)
        assert (await task).detail == "no answer"
    pause.release()
