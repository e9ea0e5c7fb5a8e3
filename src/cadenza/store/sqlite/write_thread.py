"""The thread that waits for SQLite: for the disk at COMMIT, and for locks of other processes.

One queue hands over a function, and one call of the event loop its result. An executor of asyncio makes two futures,
conditions and locks for the same.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

OnDone = Callable[[Any, BaseException | None], None]
Job = tuple[Callable[[], Any], OnDone, asyncio.AbstractEventLoop]


class WriteThread:
    """Runs one function after the other. It does not keep a process alive."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Any], on_done: OnDone, loop: asyncio.AbstractEventLoop) -> None:
        """Run `work`, then call `on_done` on the event loop with its result or its error."""
        self._jobs.put((work, on_done, loop))

    def stop(self) -> None:
        """Wait until everything has run."""
        self._jobs.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while job := self._jobs.get():
            work, on_done, loop = job
            result, failure = None, None
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 it is raised on the event loop
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
                loop.call_soon_threadsafe(on_done, result, failure)
            del job, work, on_done, result, failure  # or they would live until the next one
