"""A loopback upstream in a process of its own: it carries many requests at once, has a capacity, and can be killed.

Besides chats it answers `GET /counts`, and `GET /release` releases the streams that it holds. It continues a final
assistant message, and answers the message FAILING with 500.
"""

import collections
import contextlib
import http.client
import random
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from tests.environment import environment
from tests.load import allow_many_files
from tests.loopback import (
    ROLE,
    STOP,
    Event,
    Json,
    LoopbackUpstream,
    Pause,
    Request,
    Sse,
    Status,
    Step,
    Wait,
    completion,
    said,
    usage_chunk,
    usage_of,
)

ROOT = Path(__file__).parents[2]
END_S = 120.0
PROMPT_TOKENS = 19
CACHED_TOKENS = 4
WORDS = (" time", " and", " tide", " wait", " for", " no", " one", " but", " all", " of")  # a token each
FAILING = "Fail."


class Behaviour(msgspec.Struct, frozen=True):
    """How the upstream answers."""

    reply_s: float = 0.0  # before the first byte
    spread: float = 0.0  # each reply takes longer or shorter by up to this fraction
    capacity: int = 1_000_000  # requests at once
    beyond: Literal["refuses", "queues"] = "refuses"
    word_s: float = 0.0  # after each word of a stream
    holds_after: int | None = None  # words of a stream, until it is released


class Counts(msgspec.Struct):
    """What the upstream has seen."""

    in_flight: int = 0
    most_in_flight: int = 0
    served: int = 0
    refused: int = 0
    holding: int = 0


class UpstreamProcess:
    """`with UpstreamProcess(Behaviour()) as upstream` is ready until the block ends or it is killed."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.port = 0
        self.base_url = ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.fault.upstream_process", msgspec.json.encode(self._behaviour).decode()]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment(), text=True)
        assert self._process.stdout
        self.base_url = self._process.stdout.readline().strip()
        self.port = int(self.base_url.removesuffix("/v1").rpartition(":")[2])
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()
        assert self._process.stdout
        self._process.stdout.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(END_S)

    def counts(self) -> Counts:
        return msgspec.json.decode(self._get("/counts"), type=Counts)

    def release(self) -> None:
        self._get("/release")

    def _get(self, path: str) -> bytes:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=END_S)) as connection:
            connection.request("GET", path)
            return connection.getresponse().read()


class HeldStream(Pause):
    """A pause that is counted while a stream waits in it."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    async def hold(self) -> None:
        self._counts.holding += 1
        try:
            await super().hold()
        finally:
            self._counts.holding -= 1


class Behaving:
    """The reply to every request, as the behaviour says."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._counts = Counts()
        self._random = random.Random(1)
        self._queue: collections.deque[Pause] = collections.deque()
        self._held: list[HeldStream] = []

    def steps(self, request: Request) -> Iterable[Step]:
        if request.method == "GET":
            return self._control(request)
        if self._counts.in_flight >= self._behaviour.capacity and self._behaviour.beyond == "refuses":
            self._counts.refused += 1
            return Status(429, b'{"error": {"message": "too many at once"}}').steps(request)
        return self._chat(request)

    def _control(self, request: Request) -> Iterable[Step]:
        if request.path == "/release":
            for held in self._held:
                held.release()
            self._held.clear()
        return Json(msgspec.to_builtins(self._counts)).steps(request)

    def _chat(self, request: Request) -> Iterator[Step]:
        if self._counts.in_flight >= self._behaviour.capacity:
            yield from self._wait_in_queue()
        self._counts.in_flight += 1
        self._counts.most_in_flight = max(self._counts.most_in_flight, self._counts.in_flight)
        try:
            yield Wait(self._behaviour.reply_s * (1 + self._random.uniform(-1, 1) * self._behaviour.spread))
            yield from self._answer(request)
            self._counts.served += 1
        finally:
            self._counts.in_flight -= 1
            if self._queue:
                self._queue.popleft().release()

    def _wait_in_queue(self) -> Iterator[Step]:
        turn = Pause()
        self._queue.append(turn)
        try:
            yield turn
        finally:
            if turn in self._queue:  # the service gave up
                self._queue.remove(turn)

    def _answer(self, request: Request) -> Iterable[Step]:
        asked = request.json
        if asked["messages"][-1]["content"] == FAILING:
            return Status(500).steps(request)
        if not asked.get("stream"):
            usage = usage_of(PROMPT_TOKENS, len(WORDS), CACHED_TOKENS)
            return Json(completion("".join(WORDS), usage=usage)).steps(request)
        begun = words_begun(asked)
        usage = usage_of(PROMPT_TOKENS + begun, len(WORDS) - begun, CACHED_TOKENS)
        return Sse([ROLE, *self._words(begun), STOP, usage_chunk(usage)]).steps(request)

    def _words(self, begun: int) -> Iterator[Event]:
        for number, word in enumerate(WORDS[begun:], start=begun):
            if number == self._behaviour.holds_after:
                self._held.append(HeldStream(self._counts))
                yield self._held[-1]
            yield said(word)
            if self._behaviour.word_s:
                yield Wait(self._behaviour.word_s)


def words_begun(asked: dict[str, Any]) -> int:
    """How many words the final assistant message already has."""
    last = asked["messages"][-1]
    text = last["content"] if last["role"] == "assistant" else ""
    return next(count for count in range(len(WORDS) + 1) if "".join(WORDS[:count]) == text)


def main(behaviour: Behaviour) -> None:
    allow_many_files()
    with LoopbackUpstream() as upstream:
        upstream.always(Behaving(behaviour))
        sys.stdout.write(f"{upstream.base_url}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Behaviour))
