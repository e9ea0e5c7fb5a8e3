"""The queue of e-mails. A page posts an e-mail and answers at once; a task writes and sends it later.

So the time of a reply tells nothing about an address. The queue is bounded: when it is full, an e-mail is dropped and
logged. Sending is retried a few times. The log never shows an address or a text. E-mails that are still queued a few
seconds after the process began to stop are lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from cadenza.core.email import Compose, Email
from cadenza.observe import Log, places

QUEUE_MAX = 200
PAUSES_S = (5.0, 30.0, 120.0, 600.0)  # before each retry
END_S = 3.0


class SendFailed(Exception):
    """The mail server did not take an e-mail. The reason has no address and no text."""

    def __init__(self, reason: str, *, retry_helps: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_helps = retry_helps


Send = Callable[[Email], Awaitable[None]]


class Outbox:
    """Writes and sends e-mails, one at a time. `pauses_s` are the waits before retries."""

    def __init__(self, send: Send, log: Log, pauses_s: Sequence[float] = PAUSES_S, queue_max: int = QUEUE_MAX) -> None:
        self._send = send
        self._log = log
        self._pauses_s = pauses_s
        self._queue: asyncio.Queue[Compose] = asyncio.Queue(queue_max)
        self._task: asyncio.Task[None] | None = None
        self._retries: set[asyncio.Task[None]] = set()
        self.failure = ""  # why the last e-mail was not sent; empty once one is sent

    @property
    def waiting(self) -> int:
        """E-mails that were not sent yet."""
        return self._queue.qsize() + len(self._retries)

    def say_failure(self) -> str:
        """What is wrong, if anything is."""
        return f"{self.failure}; {self.waiting:,} are waiting in this process." if self.failure else ""

    def post(self, compose: Compose) -> None:
        """Queue an e-mail. `compose` writes it, or returns None if there is nothing to send after all."""
        try:
            self._queue.put_nowait(compose)
        except asyncio.QueueFull:
            self._log.error("an e-mail was dropped: too many are waiting", waiting=self._queue.qsize())
            return
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Send what can be sent in a few seconds."""
        if self._task is None:
            return
        try:
            await asyncio.wait_for(self._queue.join(), END_S)
        except TimeoutError:
            self._log.error("e-mails were lost at the end", waiting=self._queue.qsize())
        tasks = [self._task, *self._retries]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            compose = await self._queue.get()
            try:
                email = await compose()
                if email:
                    await self._try(email, 0)
            except Exception as error:  # noqa: BLE001 one e-mail must not end the work on all others
                self._log.error("an e-mail could not be written", places=places(error))
            finally:
                self._queue.task_done()

    async def _try(self, email: Email, tries: int) -> None:
        try:
            await self._send(email)
            self.failure = ""
        except SendFailed as error:
            self.failure = error.reason
            has_more = error.retry_helps and tries < len(self._pauses_s) and len(self._retries) < self._queue.maxsize
            self._log.error("an e-mail was not sent", reason=error.reason, tries=tries + 1, is_last=not has_more)
            if has_more:
                task = asyncio.create_task(self._try_later(email, tries))
                self._retries.add(task)
                task.add_done_callback(self._retries.discard)

    async def _try_later(self, email: Email, tries: int) -> None:
        await asyncio.sleep(self._pauses_s[tries])
        await self._try(email, tries + 1)
