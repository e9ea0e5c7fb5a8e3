"""Other processes on the same store. Each is a fork of one that has imported what they need: most of a start is that.

A program is a coroutine function of a module in PROGRAMS. Its first argument is its line to the test, on which both
sides send texts; a side that reads from a line whose other side has ended gets an EOFError.
"""

import asyncio
import functools
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

PROGRAMS = (
    "tests.store.class_changes",
    "tests.class_switch",
    "tests.store.paused",
    "tests.store.presences",
    "tests.store.processes",
    "tests.parts.valkey.client",
    "tests.store.spenders",
)
FORK_S = 180.0  # from its start to its end

Program = Callable[..., Coroutine[Any, Any, None]]


class Fork:
    """One process, seen from the test."""

    def __init__(self, process: BaseProcess, line: Connection) -> None:
        self._process = process
        self._line = line

    async def on_message(self) -> str:
        """Wait for what it says next."""
        try:
            return str(await asyncio.to_thread(self._line.recv))
        except EOFError:
            raise AssertionError(f"the process ended, exit code {await self.wait()}") from None

    async def hear_word(self, word: str) -> None:
        said = await self.on_message()
        assert said == word, said

    def tell(self, words: str = "go") -> None:
        self._line.send(words)

    def pause(self) -> None:
        """Stop it where it is, with SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid
        os.kill(self._process.pid, number)

    async def kill(self) -> None:
        """kill -9, and wait for the end."""
        self._process.kill()
        await self.wait()

    async def wait(self) -> int | None:
        """The exit code, as soon as it has ended."""
        await asyncio.to_thread(self._process.join)
        return self._process.exitcode

    async def let_end(self) -> None:
        """Tell it to end. It must end well."""
        self.tell()
        assert await self.wait() == 0


@asynccontextmanager
async def forked(program: Program, *words: str) -> AsyncIterator[Fork]:
    """A process that is killed at the end of the block if it still runs."""
    here, there = multiprocessing.Pipe()
    process = _context().Process(target=_run, args=(program, there, words), daemon=True)
    with here:
        with there:
            await asyncio.to_thread(process.start)
        fork = Fork(process, here)
        try:
            async with asyncio.timeout(FORK_S):
                yield fork
        finally:
            await fork.kill()


async def listen(line: Connection) -> str:
    """In the process: wait for what the test says."""
    return str(await asyncio.to_thread(line.recv))


def _run(program: Program, line: Connection, words: tuple[str, ...]) -> None:
    asyncio.run(program(line, *words))


@functools.cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PROGRAMS))
    return context
