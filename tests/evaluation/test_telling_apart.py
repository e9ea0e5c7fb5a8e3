"""The starter suite tells models apart: upstreams of known quality get the score that they deserve, over the wire."""

from collections import Counter

from cadenza.core.money import Price
from cadenza.core.records import Route
from cadenza.evaluation.graders import Graders
from cadenza.evaluation.runner import AskedSide, RunProgress, SuiteRun, run_suite
from cadenza.store.tables.verdicts import AnswerScore
from cadenza.upstreams.openai import OpenAIUpstream
from tests.evaluation.known_quality import KnownQuality, starter
from tests.loopback import LoopbackUpstream

ROUTE = Route("known", "known-1", 128_000, 4096)
SIDE = AskedSide((ROUTE,), Price(0, 0), Price(0, 0))


async def scores(model: KnownQuality) -> Counter[str]:
    """How many cases of each tag an upstream passes."""
    suite, passed = starter(), Counter[str]()

    async def record(graded: list[AnswerScore], _progress: RunProgress) -> None:
        for one in graded:
            passed[suite.cases[one.case_number - 1].tags[0]] += one.score == 1

    with LoopbackUpstream() as server:
        server.always(model)
        upstream = OpenAIUpstream(server.base_url)
        await upstream.start()
        try:
            async with Graders() as graders:
                run = SuiteRun(
                    suite=suite,
                    character="You are Forte.",
                    sides={"incumbent": SIDE},
                    upstreams={"known": upstream},
                    budget_nano=1,
                )
                await run_suite(run, graders, record)
        finally:
            await upstream.stop()
    return passed


async def test_each_upstream_gets_the_score_that_it_deserves() -> None:
    """The passed cases are exactly those that the upstream knows; a weak tag shows in its tag alone."""
    for model in (KnownQuality(0.95), KnownQuality(0.8, {"tools": 0.0}), KnownQuality(0.5)):
        known = Counter(case.tags[0] for case in starter().cases if model.knows(case))
        assert +await scores(model) == +known
