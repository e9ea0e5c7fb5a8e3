"""Runs a trial: one request at a time, each with a time limit and a small token limit, at most REQUESTS_MAX in all.

The requests go through the same code as those of clients, with the dialect and the route of the config. What a step
learns about the route, such as a field that is refused, holds for the steps after it. Without an answer the trial ends.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from cadenza.core.records import Route
from cadenza.upstreams.base import Fault, FaultKind, Upstream
from cadenza.upstreams.dialects import DIALECTS
from cadenza.upstreams.trial import asks, basics, tooling
from cadenza.upstreams.trial.dialects import better_dialect, misfits
from cadenza.upstreams.trial.findings import Finding, fault_advice, fault_words
from cadenza.upstreams.trial.session import Session, TrialLimits, omit_setting

REQUESTS_MAX = 25  # if every optional thing is refused; 9 or 10 if all is well
Step = Callable[[Session], Awaitable[None]]
STEPS: tuple[tuple[str, Step], ...] = (
    ("plain", basics.try_plain),
    ("max_tokens", basics.try_limit),
    ("stream", basics.try_stream),
    ("usage", basics.judge_usage),
    ("sampling", basics.try_sampling),
    ("system", basics.try_system),
    ("tools", tooling.try_tools),
    ("forced", tooling.try_forced),
    ("tool turn", tooling.try_tool_turn),
    ("reasoning", tooling.try_reasoning),
    ("custom", tooling.try_custom_tools),
    ("continue", tooling.try_continuing),
)
NECESSARY = ("plain", "stream")


async def try_model(upstream: Upstream, dialect: str, route: Route, limits: TrialLimits) -> list[Finding]:
    """What the model does with every kind of request, and the settings that it needs."""
    session = Session(upstream, dialect, route, limits)
    if await _run(session, STEPS):
        _judge_dialect(session)
    session.add("window", "ok", f"not tried; the route says {route.context_tokens} tokens")
    session.add("requests", "ok", f"{session.sent} sent")
    assert session.sent <= REQUESTS_MAX
    return _with_one_omit(session)


async def try_plain_reply(upstream: Upstream, dialect: str, route: Route, limits: TrialLimits) -> list[Finding]:
    """Only whether the model answers."""
    session = Session(upstream, dialect, route, limits)
    await _run(session, STEPS[:1])
    return session.findings


async def try_one_token(upstream: Upstream, route: Route, limits: TrialLimits) -> Finding:
    """Whether the model answers one request for one token."""
    try:
        async with asyncio.timeout(limits.request_s):
            reply = await upstream.open(route, asks.one_token())
            await reply.close()
    except (Fault, TimeoutError) as error:
        fault = error if isinstance(error, Fault) else Fault(FaultKind.TIMED_OUT)
        return Finding("chat", "fault", fault_words(fault, limits.request_s), advice=fault_advice(fault))
    return Finding("chat", "ok", "answers")


async def _run(session: Session, steps: tuple[tuple[str, Step], ...]) -> bool:
    """Take the steps. False if a plain request does not work, or if there was no answer."""
    for name, step in steps:
        try:
            await step(session)
        except Fault as fault:
            found = f"{fault_words(fault, session.limits.request_s)}; the rest was not tried"
            session.add(name, "fault" if name in NECESSARY else "warning", found, advice=fault_advice(fault))
            return False
        if not session.plain:
            return False
    return True


def _judge_dialect(session: Session) -> None:
    current, needs = session.dialect_name, session.needs
    unmet = misfits(session.dialect, needs)
    better = better_dialect(current, needs)
    setting = f'dialect = "{better}"' if better else ""
    if needs.is_beyond_routes and better:
        advice = "Then try again: the route may need fewer settings."
        session.add("dialect", "warning", f"{better} fits better than {current}", setting, advice)
    elif needs.is_beyond_routes and unmet:
        session.add("dialect", "warning", f"none of the dialects fits better than {current}")
    elif unmet > 1 and better and not misfits(DIALECTS[better], needs):
        session.add("dialect", "ok", f"{better} would do instead of the route's settings above", setting)
    else:
        session.add("dialect", "ok", f"{current} fits, with the settings above" if unmet else f"{current} fits")


def _with_one_omit(session: Session) -> list[Finding]:
    """The findings, where each line that leaves out fields names all of them: the config can have it only once."""
    complete = omit_setting(session.route)
    return [
        msgspec.structs.replace(finding, setting=complete) if finding.setting.startswith("omit = ") else finding
        for finding in session.findings
    ]
