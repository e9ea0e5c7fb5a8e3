"""What the steps of a trial share: a way to send a request, what was learned so far, and the findings.

A request that is refused, fails or breaks off is an answer. Silence and 429 raise the Fault, which ends the trial:
the next request would not fare better, and the time of a trial must stay bounded.
"""

import msgspec

from cadenza.core.records import Route, Timeouts, Usage
from cadenza.upstreams.base import Ask, Collector, Fault, FaultKind, Piece, Upstream
from cadenza.upstreams.dialects import DIALECTS
from cadenza.upstreams.trial.dialects import Needs
from cadenza.upstreams.trial.findings import Finding, State, fault_words

NO_ANSWER = (FaultKind.UNREACHABLE, FaultKind.TIMED_OUT, FaultKind.OVERLONG, FaultKind.BUSY)
# A system message of a trial has about 60 tokens, and so have its tools. A chat template may have a default instead.
ADDED_TOKENS_MIN = 12
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")


class TrialLimits(msgspec.Struct, frozen=True):
    """How long each request of a trial may take."""

    request_s: float = 30.0


class Answer(msgspec.Struct, frozen=True):
    """What came back for one request."""

    pieces: tuple[Piece, ...] = ()
    fault: Fault | None = None

    @property
    def is_accepted(self) -> bool:
        return self.fault is None

    @property
    def is_refused(self) -> bool:
        """Whether the upstream finds fault with the request itself."""
        return self.fault is not None and self.fault.kind is FaultKind.REFUSED

    @property
    def text(self) -> str:
        return "".join(piece.content for piece in self.pieces)

    @property
    def usage(self) -> Usage | None:
        """The last counts that came."""
        return next((piece.usage for piece in reversed(self.pieces) if piece.usage), None)

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


class Session:
    """A trial that is running."""

    def __init__(self, upstream: Upstream, dialect: str, route: Route, limits: TrialLimits) -> None:
        self._upstream = upstream
        self.dialect_name = dialect
        self.dialect = DIALECTS[dialect]
        self.limits = limits
        self.needs = Needs()
        self.findings: list[Finding] = []
        self.sent = 0
        self.refused_limit_field = ""
        self.plain: Answer | None = None  # once it is known that plain requests and streams work
        self.stream: Answer | None = None
        self.bare: Answer | None = None  # an answer to the plain request without its system message
        self.takes_tools = False
        self.reasoning_field: str | None = None  # in which replies had it
        seconds = limits.request_s
        timeouts = Timeouts(min(route.timeouts.connect_s, seconds), seconds, seconds, seconds)
        self.route = msgspec.structs.replace(route, timeouts=timeouts)

    @property
    def limit_field(self) -> str:
        return self.route.max_tokens_field or self.dialect.limit_field

    async def send(self, ask: Ask, route: Route | None = None) -> Answer:
        """Send the ask on the route, or on a variant of it."""
        self.sent += 1
        collector, fault = Collector(), None
        try:
            reply = await self._upstream.open(route or self.route, ask)
            try:
                await reply.deliver(collector)
            finally:
                await reply.close()
        except Fault as raised:
            if raised.kind in NO_ANSWER:
                raise
            fault = raised
        answer = Answer(tuple(collector.pieces), fault)
        self.reasoning_field = self.reasoning_field or answer.reasoning_field
        return answer

    def add(self, tried: str, state: State, found: str, setting: str = "", advice: str = "") -> None:
        self.findings.append(Finding(tried, state, found, setting, advice))

    def leave_out(self, *fields: str) -> str:
        """Do not send these fields from now on, as they are refused. The setting that does the same."""
        self.needs = msgspec.structs.replace(self.needs, refused_fields=self.needs.refused_fields.union(fields))
        self.route = msgspec.structs.replace(self.route, omit=(*self.route.omit, *fields))
        return omit_setting(self.route)

    def is_left_out(self, field: str) -> bool:
        """Whether the config leaves it out already."""
        return field in (*self.route.omit, *self.dialect.omits)

    def words(self, answer: Answer) -> str:
        """What happened to a request that was not accepted."""
        assert answer.fault
        return fault_words(answer.fault, self.limits.request_s)


def omit_setting(route: Route) -> str:
    names = ", ".join(f'"{name}"' for name in route.omit)
    return f"omit = [{names}]"


def prompt_grows(shorter: Answer | None, longer: Answer | None) -> bool | None:
    """Whether the second prompt has the tokens of what was added to it; None if there are no counts."""
    if not (shorter and longer and shorter.usage and longer.usage):
        return None
    return longer.usage.prompt_tokens - shorter.usage.prompt_tokens >= ADDED_TOKENS_MIN
