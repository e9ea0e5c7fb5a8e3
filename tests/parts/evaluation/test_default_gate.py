"""The default gate with the starter suite: it stops bad candidates of many kinds, and lets a good one pass."""

import msgspec
import pytest

from cadenza.core.classes import GateLimits
from cadenza.core.records import Route
from cadenza.core.tokens import Tokenizer
from cadenza.parts.evaluation.conformance import check_conformance
from cadenza.parts.evaluation.gate import find_shortfalls
from cadenza.parts.evaluation.graders import Graders
from cadenza.parts.evaluation.runner import AskedSide, RunProgress, SuiteRun, run_suite
from cadenza.parts.evaluation.verdict import AnswerScore, Side, WireChecks, reach_verdict
from cadenza.upstreams.openai import OpenAIUpstream
from tests.loopback import LoopbackUpstream
from tests.parts.evaluation.candidates import BAD, GOOD, INCUMBENT, Candidate
from tests.parts.evaluation.known_quality import starter

RUN = SuiteRun(suite=starter(), character="You are Forte.", sides={}, upstreams={}, concurrency=8, budget_nano=10**12)


async def ask(side: Side, model: Candidate, graders: Graders) -> tuple[list[AnswerScore], WireChecks]:
    """The graded answers of one model to the starter suite, and its checks of the wire."""
    route, scores = Route("acme", "m", 128_000, 4096), list[AnswerScore]()

    async def record(graded: list[AnswerScore], _progress: RunProgress) -> None:
        scores.extend(map(model.timed, graded))

    with LoopbackUpstream() as server:
        server.always(model)
        upstream = OpenAIUpstream(server.base_url)
        await upstream.start()
        try:
            asked = AskedSide((route,), model.cost, model.cost, "plain")
            run = msgspec.structs.replace(RUN, sides={side: asked}, upstreams={"acme": upstream})
            await run_suite(run, graders, record)
            wire = await check_conformance(upstream, route, "plain", Tokenizer())
        finally:
            await upstream.stop()
    return scores, wire


@pytest.mark.slow(reason="asks 17 models the whole starter suite")
async def test_the_default_gate_tells_bad_candidates_from_good_ones() -> None:
    """All 14 bad candidates are refused, each with its reason, and an equal and a better one pass."""
    refused = dict[str, list[str]]()
    async with Graders() as graders:
        before, wire_before = await ask("incumbent", INCUMBENT, graders)
        facts = RUN.facts
        for name, model in (GOOD | BAD).items():
            after, wire_after = await ask("candidate", model, graders)
            verdict = reach_verdict(facts, [*before, *after], 1, wires=(wire_before, wire_after))
            refused[name] = find_shortfalls(verdict, GateLimits())
    assert {name for name in GOOD if refused[name]} == set()
    assert {name for name in BAD if not refused[name]} == set()
