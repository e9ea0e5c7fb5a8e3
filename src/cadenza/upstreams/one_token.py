"""Whether a model answers: one chat request for one token."""

import asyncio

import msgspec

from cadenza.core.faults import FaultKind
from cadenza.core.records import Route
from cadenza.upstreams.base import Ask, Fault, Upstream

QUESTION = (
    msgspec.Raw(b'{"role":"system","content":"Answer in plain words."}'),
    msgspec.Raw(b'{"role":"user","content":"Count to 5."}'),
)


async def ask_one_token(upstream: Upstream, route: Route, limit_s: float) -> Fault | None:
    """Why it does not answer within the time; None if it does."""
    try:
        async with asyncio.timeout(limit_s):
            reply = await upstream.open(route, Ask(list(QUESTION), {}, 1, stream=False))
            await reply.close()
    except Fault as fault:
        return fault
    except TimeoutError:
        return Fault(FaultKind.TIMED_OUT)
    return None
