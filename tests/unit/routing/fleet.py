"""A dispatcher over upstreams that answer as a test says, and a clock of its routes that only the test moves."""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from cadenza.core.errors import CadenzaError
from cadenza.core.records import Plan, Route
from cadenza.observe import Observer, make_log
from cadenza.routing.continuation import open_reply
from cadenza.routing.dispatch import Dispatcher
from cadenza.routing.health import FAULTS_TO_REST, RouteHealth
from cadenza.upstreams.base import Ask, Fault, FaultKind, OpenReply, PassOn, Piece, Probe, Upstream

ASK = Ask([], {}, None, stream=False)
MODEL = "hidden-large"
KEY = "key_a"


class Reply:
    """A reply that has said all it had to say, or breaks off."""

    def __init__(self, fault: Fault | None = None) -> None:
        self._fault = fault

    async def read(self, pass_on: PassOn | None = None) -> list[Piece]:
        if self._fault:
            raise self._fault
        return []


Answer = Reply | Exception | asyncio.Event


class OneReply:
    """An upstream that answers every ask alike: with a reply, with a fault, or with a reply once an event is set."""

    def __init__(self, answer: Answer) -> None:
        self.asks = 0
        self.open_replies = 0
        self.answer = answer

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def retire(self) -> None:
        """Nothing to stop."""

    async def probe(self) -> Probe:
        return Probe(reachable=True, detail="answers")

    @asynccontextmanager
    async def open(self, route: Route, ask: Ask) -> AsyncIterator[OpenReply]:
        assert (route.model, ask) == (MODEL, ASK)
        self.asks += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, asyncio.Event):
            await self.answer.wait()
        self.open_replies += 1
        try:
            yield self.answer if isinstance(self.answer, Reply) else Reply()
        finally:
            self.open_replies -= 1


class Fleet:
    """A dispatcher over one upstream per answer, tried in that order unless they share one, and what it noted."""

    def __init__(
        self,
        *answers: Answer,
        orders: Sequence[int] | None = None,
        weights: Sequence[int] | None = None,
        ceiling: int = 100,
    ) -> None:
        self.upstreams = {f"provider-{number}": OneReply(answer) for number, answer in enumerate(answers)}
        places = zip(self.upstreams, orders or range(len(answers)), weights or [1] * len(answers), strict=True)
        self.plan = Plan.of(
            "forte", tuple(Route(name, MODEL, 1000, 100, order, weight) for name, order, weight in places)
        )
        self.log = io.StringIO()
        observer = Observer(make_log(self.log))
        self.metrics = observer.metrics
        upstreams: dict[str, Upstream] = dict(self.upstreams)
        self.dispatcher = Dispatcher(upstreams, observer, ceiling)
        for number in range(len(answers)):
            self.health(number).clock = lambda: self.now_s
        self.now_s = time.monotonic()

    @property
    def asks(self) -> list[int]:
        return [upstream.asks for upstream in self.upstreams.values()]

    @property
    def open_replies(self) -> int:
        return sum(upstream.open_replies for upstream in self.upstreams.values())

    @property
    def in_flight(self) -> int:
        return sum(self.health(number).in_flight for number in range(len(self.upstreams)))

    def health(self, number: int) -> RouteHealth:
        return self.dispatcher.healths.of(self.plan.routes[number])

    def rest(self, number: int, fault: Fault | None = None) -> None:
        """Have a route rest: because of the faults that it takes, or because of one that names a time."""
        for _ in range(1 if fault else FAULTS_TO_REST):
            attempt = self.health(number).begin(KEY)
            assert attempt
            attempt.note_fault(fault or Fault(FaultKind.FAILED, 500))
            attempt.end()
        assert self.health(number).is_resting

    def fill(self, number: int, key_id: str = KEY) -> None:
        """Take every place of a route, and the one of the last resort too."""
        while self.health(number).begin(key_id, is_last_resort=True):
            pass

    async def ask(self, plan: Plan | None = None, key_id: str = KEY) -> str:
        """Which provider answered a request, which has ended by now."""
        async with open_reply(self.dispatcher, plan or self.plan, ASK, key_id) as reply:
            return reply.route.provider

    async def hold(self, stack: AsyncExitStack, key_id: str = KEY) -> str:
        """Which provider answers a request, which ends with the stack."""
        return (await stack.enter_async_context(open_reply(self.dispatcher, self.plan, ASK, key_id))).route.provider

    async def fails(self, key_id: str = KEY) -> CadenzaError:
        with pytest.raises(CadenzaError) as failure:
            async with open_reply(self.dispatcher, self.plan, ASK, key_id):
                pytest.fail("nothing should have been opened")
        return failure.value
