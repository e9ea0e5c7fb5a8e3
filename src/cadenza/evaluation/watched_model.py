"""How a watch asks a version: the main routes only, two cases at a time, with what is left of its budget."""

from collections.abc import Callable, Mapping

from cadenza.core.tokens import Tokenizer
from cadenza.evaluation.conformance import check_conformance, conformance_quote, worst_checks
from cadenza.evaluation.graders import Graders
from cadenza.evaluation.runner import RunProgress, SuiteRun, run_suite
from cadenza.evaluation.suite import Suite
from cadenza.evaluation.verdict import ConformanceCheck
from cadenza.evaluation.watch import WatchAnswers, WatchedClass
from cadenza.store.tables.verdicts import AnswerScore
from cadenza.upstreams.base import Upstream

CONCURRENCY = 2


class UpstreamModel:
    """The model behind the upstreams that run when a watch begins."""

    def __init__(self, upstreams: Callable[[], Mapping[str, Upstream]]) -> None:
        self._upstreams = upstreams
        self._tokenizer = Tokenizer()

    async def answer(self, watched: WatchedClass, suite: Suite) -> WatchAnswers:
        scores = list[AnswerScore]()

        async def keep(new: list[AnswerScore], _progress: RunProgress) -> None:
            scores.extend(new)

        run = SuiteRun(
            suite=suite,
            character=watched.version.character,
            sides={"incumbent": watched.side},
            upstreams=self._upstreams(),
            concurrency=CONCURRENCY,
            budget_nano=watched.budget_nano,
        )
        async with Graders() as graders:
            progress = await run_suite(run, graders, keep)
        return WatchAnswers(scores, progress.spent_nano, is_complete=not progress.is_out_of_budget)

    async def check_wire(self, watched: WatchedClass, left_nano: int) -> tuple[tuple[ConformanceCheck, ...], int]:
        """The worse state of each check, if there are several routes."""
        side, found, requests = watched.side, list[ConformanceCheck](), 0
        if len(side.routes) * conformance_quote(side.counted) > left_nano:
            return (), 0
        for route, dialect in zip(side.routes, side.dialects, strict=True):
            wire = await check_conformance(self._upstreams()[route.provider], route, dialect, self._tokenizer)
            found += wire.checks
            requests += wire.requests
        return worst_checks(found), conformance_quote(side.counted, requests)
