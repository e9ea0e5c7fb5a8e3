"""Runs a suite: asks each case of both sides at once, grades the answers, and hands the scores on.

Sides are asked side by side, so that a load meets both alike; all cases have their first run before any has its second.
Each side has its main routes only. A fault is a score of 0; an upstream that is busy is asked again a few times.
The budget is never passed: what an answer can cost at most is set aside before its case begins, and a case that does
not fit waits until others have ended. If it still does not fit, the run stops. Content is in memory only.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import takewhile
from random import Random
from typing import Any

import msgspec

from cadenza.core.errors import ControlError
from cadenza.core.faults import FaultKind
from cadenza.core.money import Price
from cadenza.core.records import Route, Usage
from cadenza.core.tokens import estimate_tokens
from cadenza.core.tool_calls import ToolCallDelta, ToolCallNormalizer
from cadenza.parts.evaluation.graders import GradedReply, Graders, ReplyCall, grade
from cadenza.parts.evaluation.suite import Case, Suite
from cadenza.parts.evaluation.verdict import FULL_SCORE, AnswerScore, CaseFacts, Side
from cadenza.store.store import StoreUnavailable
from cadenza.upstreams.base import Ask, Collector, Fault, Piece, Upstream

ANSWER_TOKENS_MAX = 4096  # of a case that sets no limit: what an answer may cost must be bounded
TEMPERATURE = 0.0  # of a case that sets none: the comparison is of models, not of luck
BUSY_TRIES = 5
BUSY_WAIT_S = 1.0  # doubled each time, unless the upstream says how long
BUSY_WAIT_S_MAX = 30.0
TOKENS_MAX = 2**31 - 1  # of a count that an upstream claims: as much as a column of the store has room for
MESSAGE_TOKENS = 8  # of the form around a message, at most

Messages = list[dict[str, Any]]


class AskedSide(msgspec.Struct, frozen=True):
    """The routes of one side, and what a token costs there. If that is not known, `price` is counted instead.

    The checks of wire conformance need the dialect of the first route, None for a model on this machine.
    """

    routes: tuple[Route, ...]
    cost: Price | None
    price: Price
    dialect: str | None = None

    @property
    def counted(self) -> Price:
        return self.cost or self.price


class SuiteRun(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. One side or two."""

    suite: Suite
    character: str
    sides: Mapping[Side, AskedSide]
    upstreams: Mapping[str, Upstream]
    runs: int = 1
    concurrency: int = 4
    budget_nano: int

    def counted_cost(self, score: AnswerScore) -> int:
        """The cost of an answer as the budget counts it: by the price of the class if the cost is not known."""
        if score.cost_nano is not None:
            return score.cost_nano
        return self.sides[score.side].counted.quote(score.prompt_tokens, score.completion_tokens)

    @property
    def facts(self) -> list[CaseFacts]:
        return [CaseFacts(number, case.tags) for number, case in enumerate(self.suite.cases, 1)]


class RunProgress(msgspec.Struct):
    """How far a run is. What the checks of wire conformance cost is part of `spent_nano`."""

    total: int  # pairs of case and run
    done: int = 0
    spent_nano: int = 0
    is_out_of_budget: bool = False


Record = Callable[[list[AnswerScore], RunProgress], Awaitable[None]]


class _Answer(Collector):
    """The pieces of a reply, and when the first of them had something to show."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self.started_s = self._loop.time()
        self.first_s: float | None = None
        self.ended_s = self.started_s
        self.fault = ""

    def take(self, piece: Piece) -> None:
        if self.first_s is None and (piece.content or piece.calls or piece.has_begun or piece.extras):
            self.first_s = self._loop.time()
        super().take(piece)

    def end(self) -> None:
        self.ended_s = self._loop.time()

    @property
    def reply(self) -> GradedReply:
        normalizer, calls = ToolCallNormalizer(), dict[int, list[ToolCallDelta]]()
        deltas = [delta for piece in self.pieces for delta in normalizer.take(piece.calls)] + normalizer.finish()
        for delta in deltas:
            calls.setdefault(delta.index, []).append(delta)
        return GradedReply(
            self.text,
            tuple(
                ReplyCall(parts[0].name, "".join(part.arguments for part in parts))
                for _, parts in sorted(calls.items())
            ),
            next((piece.finish_reason for piece in self.pieces if piece.finish_reason), None),
            "".join(str(piece.extras["refusal"]) for piece in self.pieces if piece.extras.get("refusal")),
        )


async def run_suite(
    run: SuiteRun, graders: Graders, record: Record, recorded: Sequence[AnswerScore] = (), other_nano: int = 0
) -> RunProgress:
    """Ask what is not recorded yet, and hand the scores of each pair to `record`.

    `other_nano` was spent before on other things than answers. The run ended early if `is_out_of_budget`.
    """
    answered = Counter((one.run, one.case_number) for one in recorded)
    pairs = [
        (place, number, case) for place in range(1, run.runs + 1) for number, case in enumerate(run.suite.cases, 1)
    ]
    waiting = [pair for pair in pairs if answered[pair[:2]] < len(run.sides)]
    spent_nano = sum(run.counted_cost(one) for one in recorded) + other_nano
    progress = RunProgress(len(pairs), len(pairs) - len(waiting), spent_nano)
    await _Runner(run, graders, record, progress).run(waiting)
    return progress


class _Runner:
    """One run of a suite. `_set_aside_nano` is what the cases in flight can cost at most."""

    def __init__(self, run: SuiteRun, graders: Graders, record: Record, progress: RunProgress) -> None:
        self._run = run
        self._graders = graders
        self._record = record
        self._progress = progress
        self._set_aside_nano = 0
        self._ended = asyncio.Condition()
        self._places = asyncio.Semaphore(run.concurrency)

    async def run(self, waiting: Sequence[tuple[int, int, Case]]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for place, number, case in waiting:
                    await self._places.acquire()
                    quote_nano = self._quote(case)
                    if not await self._set_aside(quote_nano):
                        self._progress.is_out_of_budget = True
                        break
                    group.create_task(self._ask_pair(place, number, case, quote_nano))
        except* (StoreUnavailable, ControlError, ValueError) as errors:
            raise errors.exceptions[0] from None

    async def _set_aside(self, quote_nano: int) -> bool:
        """Wait until the case fits into the budget. False if it does not, though no other case is in flight."""
        async with self._ended:
            while self._progress.spent_nano + self._set_aside_nano + quote_nano > self._run.budget_nano:
                if not self._set_aside_nano:
                    return False
                await self._ended.wait()
            self._set_aside_nano += quote_nano
            return True

    async def _ask_pair(self, place: int, number: int, case: Case, quote_nano: int) -> None:
        try:
            sides = list(self._run.sides)
            order = sides if (number + place) % 2 else sides[::-1]  # neither side is always the first
            async with asyncio.TaskGroup() as group:
                asked = {side: group.create_task(self._ask_side(side, case, number, place)) for side in order}
            answers = [asked[side].result() for side in sides]
            scores = [
                self._score(side, answer, await self._passes(case, answer), case, number, place)
                for side, answer in zip(sides, answers, strict=True)
            ]
            self._progress.spent_nano += sum(map(self._run.counted_cost, scores))
            self._progress.done += 1
            await self._record(scores, self._progress)
        finally:
            self._places.release()
            async with self._ended:
                self._set_aside_nano -= quote_nano
                self._ended.notify_all()

    async def _passes(self, case: Case, answer: _Answer) -> bool:
        return not answer.fault and await grade(case, answer.reply, self._graders)

    async def _ask_side(self, side: Side, case: Case, number: int, place: int) -> _Answer:
        asked = self._run.sides[side]
        route = _pick(asked.routes, f"{number} {place}")
        return await self._ask(route, compose_ask(case, self._run.character, route))

    async def _ask(self, route: Route, ask: Ask) -> _Answer:
        wait_s = BUSY_WAIT_S
        for tries_left in reversed(range(BUSY_TRIES)):
            answer = _Answer()
            try:
                await answer.collect(self._run.upstreams[route.provider], route, ask)
                answer.end()
            except Fault as fault:
                answer.fault = fault.kind.value
                if fault.kind is FaultKind.BUSY and tries_left and not answer.pieces:
                    await asyncio.sleep(min(fault.retry_after_s or wait_s, BUSY_WAIT_S_MAX))
                    wait_s *= 2
                    continue
            break
        return answer

    def _score(self, side: Side, answer: _Answer, passes: bool, case: Case, number: int, place: int) -> AnswerScore:
        cost = self._run.sides[side].cost
        usage = _usage(answer, _prompt_tokens(case.messages) + estimate_tokens(self._run.character))
        first_ms = None if answer.first_s is None else (answer.first_s - answer.started_s) * 1000
        return AnswerScore(
            case_number=number,
            run=place,
            side=side,
            score=FULL_SCORE if passes else 0.0,
            cost_nano=None if cost is None else cost.charge(usage),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            first_token_ms=first_ms,
            duration_ms=None if answer.fault else (answer.ended_s - answer.started_s) * 1000,
            fault=answer.fault,
        )

    def _quote(self, case: Case) -> int:
        """The most that this case can cost in one run."""
        prompt = _prompt_tokens(case.messages, case.tools, case.response_format) + estimate_tokens(self._run.character)
        output = case.max_tokens or ANSWER_TOKENS_MAX
        return sum(side.counted.quote(prompt, output) for side in self._run.sides.values())


def compose_ask(case: Case, character: str, route: Route) -> Ask:
    """The case as the gateway would send it: the character and the case's own instructions are one system message."""
    leading = list(takewhile(lambda message: message["role"] in ("system", "developer"), case.messages))
    instructions = [text for message in leading if (text := _text(message["content"]))]
    system = {"role": "system", "content": "\n\n".join([character, *instructions])}
    rest = [_raw(_with_role(message)) for message in case.messages[len(leading) :]]
    separate = [{"role": "system", "content": character}, *(_with_role(message) for message in leading)]
    sampling = {"temperature": TEMPERATURE if case.temperature is None else case.temperature}
    sampling |= {name: value for name in ("stop", "response_format") if (value := getattr(case, name)) is not None}
    tools = {name: value for name in ("tools", "tool_choice") if (value := getattr(case, name)) is not None}
    return Ask(
        messages=[_raw(system), *rest],
        sampling={name: _raw(value) for name, value in sampling.items()},
        max_tokens=min(case.max_tokens or ANSWER_TOKENS_MAX, route.max_output_tokens),
        stream=True,
        tools={name: _raw(value) for name, value in tools.items()},
        separate=[*map(_raw, separate), *rest] if leading else (),
    )


def _pick(routes: tuple[Route, ...], seed: str) -> Route:
    """One of the main routes, by weight: always the same one for a case and its run."""
    return Random(seed).choices(routes, [route.weight for route in routes])[0]  # noqa: S311 no secret


def _usage(answer: _Answer, prompt_tokens: int) -> Usage:
    """The upstream's counts, or an estimate. An ask that failed before its answer began is not counted."""
    if counted := answer.usage:
        prompt, output = min(counted.prompt_tokens, TOKENS_MAX), min(counted.completion_tokens, TOKENS_MAX)
        return Usage(prompt, output, min(counted.cached_tokens, prompt))
    if answer.fault and not answer.pieces:
        return Usage(0, 0)
    reply = answer.reply
    text = reply.text + reply.refusal + "".join(call.name + call.arguments for call in reply.calls)
    return Usage(prompt_tokens, estimate_tokens(text), estimated=True)


def _prompt_tokens(messages: Messages, *more: object) -> int:
    encoded = msgspec.json.encode([messages, *filter(None, more)]).decode()
    return estimate_tokens(encoded) + MESSAGE_TOKENS * len(messages)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _with_role(message: dict[str, Any]) -> dict[str, Any]:
    return message if message["role"] != "developer" else {**message, "role": "system"}


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
