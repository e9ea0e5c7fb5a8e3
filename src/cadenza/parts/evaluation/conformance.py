"""Wire conformance of a route: the findings of a trial as named checks, and two more.

The two are whether a stop sequence ends the answer, and whether the token counts match its text. The embedded model is
only asked for those and for a plain reply: what it is sent is ours to decide. A request that fails for reasons of the
moment, such as status 500, is repeated a few times: a check is about the route, not about a moment.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from cadenza.core.faults import FaultKind
from cadenza.core.money import Price
from cadenza.core.records import Route
from cadenza.core.tokens import Tokenizer
from cadenza.parts.evaluation.trial import asks
from cadenza.parts.evaluation.trial.session import TrialFinding
from cadenza.parts.evaluation.trial.trial import REQUESTS_MAX, try_model, try_plain_reply
from cadenza.parts.evaluation.verdict import CHECK_STATES, ConformanceCheck, WireChecks
from cadenza.upstreams.base import Ask, Collector, Fault, OpenReply, Upstream

NAMES = {"plain": "answers", "usage": "counts", "system": "character"}  # of findings, as a verdict calls them
NOT_CHECKS = ("requests", "continue")
STOP = "5"
COUNT_FACTOR = 2.0  # tokenizers differ: counts may be twice ours, or half
COUNT_SLACK = 8
REQUEST_S = 60.0
REQUEST_TOKENS = 400  # of the longest prompt of a trial, with some room
REPEATS_MAX = 3  # of the requests of one route
REPEAT_WAIT_S = 0.5
PASSING = frozenset(
    {FaultKind.DNS, FaultKind.REFUSED, FaultKind.RESET, FaultKind.UNREACHABLE, FaultKind.BUSY, FaultKind.FAILED}
)
COST_REQUESTS = REQUESTS_MAX + 1


class CountedUpstream:
    """An upstream that counts the requests which it is sent, and repeats a few that fail."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.requests = self.repeated = 0
        self.start, self.stop, self.probe = upstream.start, upstream.stop, upstream.probe

    async def open(self, route: Route, ask: Ask) -> OpenReply:
        self.requests += 1
        while True:
            try:
                return await self._upstream.open(route, ask)
            except Fault as fault:
                if fault.kind not in PASSING or self.repeated == REPEATS_MAX:
                    raise
            self.repeated += 1
            await asyncio.sleep(REPEAT_WAIT_S)


def conformance_quote(price: Price, requests: int = COST_REQUESTS) -> int:
    """The most that the checks of one route cost, or as many requests of them."""
    return requests * price.quote(REQUEST_TOKENS, asks.CALL_LIMIT_TOKENS)


async def check_conformance(given: Upstream, route: Route, dialect: str | None, tokenizer: Tokenizer) -> WireChecks:
    """What the route does with each kind of request. The embedded model has no dialect."""
    upstream = CountedUpstream(given)
    if dialect is None:
        findings = await try_plain_reply(upstream, "llamacpp", route, REQUEST_S)
    else:
        findings = await try_model(upstream, dialect, route, REQUEST_S)
    checks = [
        ConformanceCheck(NAMES.get(one.tried, one.tried), one.state) for one in findings if one.tried not in NOT_CHECKS
    ]
    if not any(check.state == "fault" for check in checks):
        checks += await _check_stop(upstream, route, tokenizer)
    advice = tuple(_advise(one, route) for one in findings if one.state != "ok")
    return WireChecks(worst_checks(checks), upstream.requests, upstream.repeated, advice)


def _advise(finding: TrialFinding, route: Route) -> str:
    place = f"[providers.{route.provider}]" if finding.setting.startswith("dialect = ") else "the route"
    setting = f"set in {place}: {finding.setting}" if finding.setting else ""
    return "; ".join(filter(None, (f"{finding.tried}: {finding.found}", setting, finding.advice)))


async def _check_stop(upstream: Upstream, route: Route, tokenizer: Tokenizer) -> list[ConformanceCheck]:
    """Count to 30, and stop before the first 5."""
    ask = msgspec.structs.replace(
        asks.counting(stream=True),
        max_tokens=asks.CALL_LIMIT_TOKENS,
        sampling={"stop": msgspec.Raw(msgspec.json.encode([STOP])), "temperature": msgspec.Raw(b"0")},
    )
    answer = Collector()
    try:
        await answer.collect(upstream, route, ask)
    except Fault:
        return [ConformanceCheck("stop", "warning")]
    checks = [ConformanceCheck("stop", "warning" if STOP in answer.text else "ok")]
    if answer.usage and answer.text:
        own, given = tokenizer.count(answer.text), answer.usage.completion_tokens
        least, most = own / COUNT_FACTOR - COUNT_SLACK, own * COUNT_FACTOR + COUNT_SLACK
        checks.append(ConformanceCheck("counts", "ok" if least <= given <= most else "warning"))
    return checks


def worst_checks(checks: Iterable[ConformanceCheck]) -> tuple[ConformanceCheck, ...]:
    """One check for each name: the worst of several."""
    worst = dict[str, ConformanceCheck]()
    for check in checks:
        known = worst.get(check.name, check)
        worst[check.name] = max(known, check, key=lambda one: CHECK_STATES.index(one.state))
    return tuple(worst.values())
