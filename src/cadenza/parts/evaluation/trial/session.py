"""What the steps of a trial share: a way to send a request, what was learned so far, and the findings in plain words.

A request that is refused, fails or breaks off is an answer. Silence and 429 raise the Fault, which ends the trial:
the next request would fail too, and the time of a trial must stay bounded. No text of the upstream, no address
and no key is ever in a finding.
"""

import re
from typing import Literal

import msgspec

from cadenza.core.faults import FaultKind
from cadenza.core.records import Route, Timeouts
from cadenza.parts.evaluation.trial.asks import CALL_ID
from cadenza.upstreams.base import Ask, Collector, Fault, Upstream
from cadenza.upstreams.dialects import DIALECTS, Dialect

GIVES_ANSWERS = (
    *(FaultKind.INVALID, FaultKind.UNAUTHORIZED, FaultKind.NOT_FOUND, FaultKind.FAILED),
    *(FaultKind.MALFORMED, FaultKind.TRUNCATED),
)
# A system message of a trial has about 60 tokens, and so have its tools. A chat template may have a default instead.
ADDED_TOKENS_MIN = 12
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")

FindingState = Literal["ok", "warning", "fault"]


class TrialReply(Collector):
    """What came back for one request: the pieces of its reply, and the fault that ended it."""

    fault: Fault | None = None

    @property
    def is_accepted(self) -> bool:
        return self.fault is None

    @property
    def is_refused(self) -> bool:
        """Whether the upstream finds fault with the request itself."""
        return self.fault is not None and self.fault.kind is FaultKind.INVALID

    @property
    def finish_reason(self) -> str | None:
        return next((piece.finish_reason for piece in self.pieces if piece.finish_reason), None)

    @property
    def called(self) -> str:
        """The names of the functions that it calls, joined."""
        return "".join(call.name for piece in self.pieces for call in piece.calls)

    @property
    def reasoning_field(self) -> str | None:
        found = {name for piece in self.pieces for name in piece.extras}
        return next((name for name in REASONING_FIELDS if name in found), None)


class Trial:
    """A trial that is running."""

    def __init__(self, upstream: Upstream, dialect: str, route: Route, limit_s: float) -> None:
        self._upstream = upstream
        self.dialect = DIALECTS[dialect]
        self.findings: list[TrialFinding] = []
        self.sent = 0
        self.refused_limit_field = ""
        self.plain: TrialReply | None = None  # once it is known that plain requests and streams work
        self.stream: TrialReply | None = None
        self.bare: TrialReply | None = None  # an answer to the plain request without its system message
        self.takes_tools = False
        self.reasoning_field: str | None = None  # in which replies had it
        timeouts = Timeouts(min(route.timeouts.connect_s, limit_s), limit_s, limit_s, limit_s)
        self.route = msgspec.structs.replace(route, timeouts=timeouts)

    @property
    def limit_field(self) -> str:
        return self.route.max_tokens_field or self.dialect.limit_field

    async def send(self, ask: Ask, route: Route | None = None) -> TrialReply:
        """Send the ask on the route, or on a variant of it."""
        self.sent += 1
        answer = TrialReply()
        try:
            await answer.collect(self._upstream, route or self.route, ask)
        except Fault as raised:
            if raised.kind not in GIVES_ANSWERS:
                raise
            answer.fault = raised
        self.reasoning_field = self.reasoning_field or answer.reasoning_field
        return answer

    async def is_accepted(self, ask: Ask, **changes: object) -> bool:
        """Whether the ask is accepted on the route with these changes."""
        return (await self.send(ask, msgspec.structs.replace(self.route, **changes))).is_accepted

    def leave_out(self, *fields: str) -> str:
        """Stop sending these fields, which are refused. Return the setting that does the same."""
        self.route = msgspec.structs.replace(self.route, omit=(*self.route.omit, *fields))
        return omit_setting(self.route)

    def is_left_out(self, field: str) -> bool:
        """Whether the config leaves it out already."""
        return field in (*self.route.omit, *self.dialect.omits)


def omit_setting(route: Route) -> str:
    names = ", ".join(f'"{name}"' for name in route.omit)
    return f"omit = [{names}]"


def prompt_grows(shorter: TrialReply | None, longer: TrialReply | None) -> bool | None:
    """Whether the second prompt has the tokens of what was added to it; None if there are no counts."""
    if not (shorter and longer and shorter.usage and longer.usage):
        return None
    return longer.usage.prompt_tokens - shorter.usage.prompt_tokens >= ADDED_TOKENS_MIN


class TrialFinding(msgspec.Struct, frozen=True):
    """One thing that was tried, what happened, and what to do about it.

    `setting` is the line to add to the config: to the route, or to the provider if it is a dialect.
    """

    state: FindingState
    found: str
    setting: str = ""
    advice: str = ""
    tried: str = ""  # the name of the step


def accepts_call_id(dialect: Dialect) -> bool:
    """Whether the dialect sends a call id as clients send them."""
    return dialect.call_ids is None or re.fullmatch(dialect.call_ids, CALL_ID) is not None
