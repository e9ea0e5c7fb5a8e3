"""Upstreams that answer from a script, and a dispatcher over them whose clock only the test moves."""

import asyncio
import io
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from cadenza.core.breaker import FAULTS_TO_OPEN
from cadenza.core.errors import CadenzaError
from cadenza.core.faults import FaultKind
from cadenza.core.records import Plan, Route
from cadenza.core.tokens import MESSAGE_OVERHEAD_TOKENS, Tokenizer
from cadenza.observe import Observer, make_log
from cadenza.routing.continuation import RoutedReply
from cadenza.routing.dispatch import Dispatch, Dispatcher
from cadenza.routing.health import RouteHealth
from cadenza.routing.prompt import Character, PromptSize
from cadenza.upstreams.base import Ask, Fault, Piece, Probe, Sink

ASK = Ask([], {}, None, stream=False)
MODEL = "hidden-large"
KEY = "key_a"
REQUEST_ID = "req_a"
TOKENIZER = Tokenizer()
WHOLE = (Piece("All.", finish_reason="stop", has_begun=True),)

ReplyScript = Sequence[Piece | Fault]
Answer = ReplyScript | Exception | asyncio.Event  # an event: the reply WHOLE, once the event is set


class ScriptedReply:
    """Delivers the pieces of its script. A fault in the script breaks the reply off."""

    def __init__(self, upstream: "ScriptedUpstream", script: ReplyScript) -> None:
        self._upstream = upstream
        self._script = script

    async def deliver(self, sink: Sink) -> None:
        for step in self._script:
            if isinstance(step, Fault):
                raise step
            sink.take(step)
            if not sink.flush():
                await sink.drain()

    async def close(self) -> None:
        self._upstream.open_replies -= 1


class ScriptedUpstream:
    """Answers each request with the next of its answers; the last one repeats."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[Ask] = []
        self.routes: list[Route] = []
        self.open_replies = 0
        self._answers = list(answers)

    def answer_with(self, answer: Answer) -> None:
        """Answer every request from now on with this."""
        self._answers = [answer]

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def probe(self) -> Probe:
        return Probe(reachable=True, detail="answers")

    async def open(self, route: Route, ask: Ask) -> ScriptedReply:
        self.asked.append(ask)
        self.routes.append(route)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            answer = WHOLE
        self.open_replies += 1
        return ScriptedReply(self, answer)


class ScriptedRoutes:
    """A plan with one route for each upstream, and the dispatcher that serves it."""

    def __init__(self, upstreams: Sequence[ScriptedUpstream], routes: Sequence[Route], ceiling: int = 100) -> None:
        self.upstreams = {route.provider: upstream for route, upstream in zip(routes, upstreams, strict=True)}
        self.plan = Plan.of("forte", tuple(routes))
        self.now_s = 1000.0
        self.answered_by: list[str] = []  # the provider of each route that began to answer
        self._log = io.StringIO()
        observer = Observer(make_log(self._log))
        self.metrics = observer.metrics
        self.dispatcher = Dispatcher(observer, ceiling, TOKENIZER, clock=lambda: self.now_s)

    @property
    def asks(self) -> list[int]:
        """How many requests each upstream was sent."""
        return [len(upstream.asked) for upstream in self.upstreams.values()]

    @property
    def open_replies(self) -> int:
        return sum(upstream.open_replies for upstream in self.upstreams.values())

    @property
    def in_flight(self) -> int:
        return sum(self.health(number).in_flight for number in range(len(self.plan.routes)))

    @property
    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.getvalue().splitlines()]

    def health(self, number: int) -> RouteHealth:
        return self.dispatcher.health.of(self.plan.routes[number])

    def count(self, metric: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(metric, labels)

    def rest(self, number: int, fault: Fault | None = None) -> None:
        """Make a route rest: by faults in a row, or by one fault with a Retry-After."""
        for _ in range(1 if fault else FAULTS_TO_OPEN):
            attempt = self.health(number).begin(KEY)
            assert attempt
            attempt.record_fault(fault or Fault(FaultKind.FAILED, 500))
            attempt.end()
        assert self.health(number).is_open

    def fill(self, number: int, key_id: str = KEY) -> None:
        """Take every place of a route, also the one of the last resort."""
        while self.health(number).begin(key_id, is_last_resort=True):
            pass

    def open(self, ask: Ask = ASK, key_id: str = KEY, plan: Plan | None = None) -> RoutedReply:
        prompt = prompt_of(max(ask.prompt_tokens, 2 * MESSAGE_OVERHEAD_TOKENS))
        return self.open_dispatch(Dispatch(plan or self.plan, ask, prompt, self.upstreams, key_id, REQUEST_ID))

    def open_dispatch(self, wanted: Dispatch) -> RoutedReply:
        return RoutedReply(self.dispatcher, wanted, lambda route: self.answered_by.append(route.provider))

    async def ask(self, key_id: str = KEY, plan: Plan | None = None) -> str:
        """Open a reply and close it; the provider that answered."""
        async with self.open(key_id=key_id, plan=plan):
            return self.answered_by[-1]

    async def hold(self, stack: AsyncExitStack, key_id: str = KEY) -> str:
        """Open a reply that stays open until the stack is closed; the provider that answered."""
        await stack.enter_async_context(self.open(key_id=key_id))
        return self.answered_by[-1]

    async def fail(self, key_id: str = KEY) -> CadenzaError:
        """The error of a request that no route answers."""
        with pytest.raises(CadenzaError) as failure:
            async with self.open(key_id=key_id):
                pytest.fail("a route answered")
        return failure.value


def scripted_routes(
    *answers: Answer,
    orders: Sequence[int] | None = None,
    weights: Sequence[int] | None = None,
    ceiling: int = 100,
) -> ScriptedRoutes:
    """One route for each answer, `provider-0` and so on, tried in this order unless other orders are given."""
    places = zip(range(len(answers)), orders or range(len(answers)), weights or [1] * len(answers), strict=True)
    routes = [Route(f"provider-{number}", MODEL, 1000, 100, order, weight) for number, order, weight in places]
    return ScriptedRoutes([ScriptedUpstream(answer) for answer in answers], routes, ceiling)


def prompt_of(tokens: int, body_bytes: int = 0) -> PromptSize:
    """A prompt of exactly so many tokens that were not counted yet, and of at least so many bytes."""
    text = " a" * (tokens - 2 * MESSAGE_OVERHEAD_TOKENS)  # one token each; the character is a message too
    return PromptSize(TOKENIZER, Character(""), lambda: [text], max(body_bytes, len(text)))
