"""A probe tells whether a provider responds as it should, and which models it lists."""

import asyncio

import pytest

from cadenza.core.faults import FaultKind
from cadenza.upstreams.base import Probe
from cadenza.upstreams.openai import PROBE_BYTES_MAX, PROBE_S
from tests.loopback import Close, Cut, LoopbackUpstream, Pause, Reply, Reset, Status, http_head
from tests.loopback import Raw as RawReply
from tests.unit.http.raw_client import WAIT_S
from tests.unit.upstreams.asks import running
from tests.unit.upstreams.clock import Clock

MIB = 1024 * 1024
MODELS = b'{"object": "list", "data": [{"id": "large-7", "x": 1}, {"id": "small-7"}]}'


def not_reached(status: int, kind: FaultKind) -> Probe:
    return Probe(reachable=False, detail=f"answers {status} to GET /models", advice=kind.advice)


PROBES: dict[str, tuple[Reply, Probe]] = {
    "models": (Status(200, MODELS), Probe(reachable=True, detail="answers", models=("large-7", "small-7"))),
    "no models": (Status(200, b'{"data": []}'), Probe(reachable=True, detail="answers")),
    "401": (
        Status(401, MODELS),
        not_reached(401, FaultKind.UNAUTHORIZED),
    ),
    "404": (
        Status(404, b"<html>"),
        not_reached(404, FaultKind.NOT_FOUND),
    ),
    "429": (
        Status(429, b'{"error": {"code": "rate_limit_exceeded"}}'),
        not_reached(429, FaultKind.BUSY),
    ),
    "unpaid": (
        Status(429, b'{"error": {"code": "insufficient_quota"}}'),
        not_reached(429, FaultKind.QUOTA),
    ),
    "redirect": (
        Status(302, headers={"location": "/v1/other"}),
        not_reached(302, FaultKind.FAILED),
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
TOO_MUCH = "answers GET /models with too much"
NO_ANSWER: dict[str, tuple[str, Reply]] = {
    "closed": ("it closes the connection without an answer (reset)", RawReply([Close()])),
    "reset": ("it closes the connection without an answer (reset)", RawReply([Reset()])),
    "not HTTP": ("its answer breaks off (truncated)", RawReply([b"SSH-2.0-OpenSSH_9.6\r\n"])),
    "truncated": ("its answer breaks off (truncated)", Cut(Status(200, MODELS), 20)),
    "too large": (TOO_MUCH, RawReply([http_head(200, {}), *[b" " * MIB] * (PROBE_BYTES_MAX // MIB + 1)])),
}


@pytest.mark.parametrize(("reply", "probe"), PROBES.values(), ids=PROBES)
async def test_the_result_of_a_probe(upstream: LoopbackUpstream, reply: Reply, probe: Probe) -> None:
    """A probe is a GET of the models with the provider's key; it reports the status and the listed models."""
    upstream.always(reply)
    async with asyncio.timeout(WAIT_S), running(upstream.base_url, "sk-1") as openai:
        assert await openai.probe() == probe
    (request,) = upstream.requests
    assert (request.method, request.path, request.body) == ("GET", "/v1/models", b"")
    assert request.headers["authorization"] == "Bearer sk-1"


@pytest.mark.parametrize("body", NOT_A_LIST_OF_MODELS.values(), ids=NOT_A_LIST_OF_MODELS)
async def test_a_provider_that_lists_no_models(upstream: LoopbackUpstream, body: bytes) -> None:
    """A provider whose 200 is not a list of models is reachable."""
    upstream.always(Status(200, body))
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai:
        assert await openai.probe() == Probe(reachable=True, detail="answers, but names no models")


@pytest.mark.parametrize(("detail", "reply"), NO_ANSWER.values(), ids=NO_ANSWER)
async def test_a_provider_that_does_not_answer(upstream: LoopbackUpstream, detail: str, reply: Reply) -> None:
    """A probe that breaks off is a result and not an exception, and says what happened."""
    upstream.always(reply)
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai:
        probe = await openai.probe()
    assert (probe.reachable, probe.detail) == (False, detail)
    assert bool(probe.advice) is (detail != TOO_MUCH)


async def test_a_provider_that_does_not_exist() -> None:
    """A probe of a host name that does not resolve says so."""
    async with asyncio.timeout(WAIT_S), running("http://no-such-host.invalid/v1") as openai:
        found = Probe(reachable=False, detail="its name cannot be resolved (dns)", advice=FaultKind.DNS.advice)
        assert await openai.probe() == found


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
        assert (await task).detail == "nothing arrived in time (timed_out)"
    pause.release()
