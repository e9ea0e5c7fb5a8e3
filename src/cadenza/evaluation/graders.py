"""Graders: whether an answer is right."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import msgspec

from cadenza.evaluation.suite import Case, Suite

AskJudge = Callable[[list[dict[str, Any]]], Awaitable[str]]  # messages to the text of the judge's answer


class ReplyCall(msgspec.Struct, frozen=True):
    """A tool call of an answer. `arguments` is JSON text, as the model wrote it."""

    name: str
    arguments: str


class GradedReply(msgspec.Struct, frozen=True):
    """What a model answered, as far as graders look at it."""

    text: str = ""
    calls: tuple[ReplyCall, ...] = ()
    finish_reason: str | None = None
    refusal: str = ""  # the text of the field `refusal`, where the upstream has one


class Grade(msgspec.Struct, frozen=True):
    """1 if every grader passes, else 0; a tie by a rubric is 0.5. The reason may quote content: it is never stored."""

    score: float
    reason: str = ""


class GradingUnavailable(ValueError):
    """The cases of a suite cannot be graded on this machine. The message says why and what to do."""


class Graders:
    """The child processes in which patterns, schemas and code of suites and answers run."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def prepare(self, suite: Suite) -> None:
        """GradingUnavailable if the suite has code and the system cannot confine it."""

    async def stop(self) -> None:
        """End the child processes."""


async def grade(case: Case, reply: GradedReply, graders: Graders) -> Grade:
    """The grade by all graders but a rubric."""
    raise NotImplementedError


async def grade_pair(
    case: Case, replies: tuple[GradedReply, GradedReply], graders: Graders, ask_judge: AskJudge | None
) -> tuple[Grade, Grade]:
    """The grades of incumbent and candidate. Where both pass and the case has a rubric, the judge compares them."""
    raise NotImplementedError
