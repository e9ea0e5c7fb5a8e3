"""Reads files and web pages in sandboxed child processes, and returns as much of them as there are tokens for.

Files and pages have a child each, so that a hostile file does not hold up web search. A child reads one document at a
time, and owners take turns, by the CPU time that their documents took. A document is unreadable if a parser fails on it
or if it takes too much time or memory, which also ends the child. A hostile file may take over its child: replies are
checked, and the next owner gets a new child, so that it learns nothing of others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from cadenza.children.confine import ChildLimits
from cadenza.children.lane import Lane, LaneSettings, Run
from cadenza.children.process import Buffer, Died, TooHeavy
from cadenza.children.turns import CpuBudget, OverBudget, QueueFull, TurnLimits
from cadenza.core.content import Content
from cadenza.core.errors import UnreadableAttachment
from cadenza.core.files import clean_name
from cadenza.core.grounding import FileSize
from cadenza.observe import Observer
from cadenza.parts.grounding.files.messages import (
    BadReply,
    Failed,
    FileTask,
    MeasureTask,
    PageTask,
    Reply,
    Task,
    TokenBudget,
    decode_reply,
)
from cadenza.parts.grounding.files.questions import AskedOfFiles
from cadenza.parts.grounding.files.records import FetchedPage, RankedDocument
from cadenza.parts.grounding.files.shown import DocumentText, share_out

T = TypeVar("T", bound=Task)
R = TypeVar("R")

CHILD = "cadenza.parts.grounding.files.child"
MIB = 1024 * 1024
QUESTION_CHARS_MAX = 8192
INLINE_PASSAGES = 500  # 2 ms
HEAVY = "it takes too much time or memory to read; send a smaller part of it, or its text"
BUSY = "too many files are waiting to be read"
OVER_BUDGET = "this account's files have used up their CPU time, and those of other accounts go first"
FAILED = "the process that reads files had to be restarted"


class ReaderLimits(msgspec.Struct, frozen=True):
    """What reading one document may use, and how long it may wait for its turn."""

    child: ChildLimits = ChildLimits(cpu_s=10, memory_bytes=768 * MIB)
    page_cpu_s: int = 2  # a search waits for its pages for seconds only, and heavy pages would keep others from theirs
    task_s: float = 30.0  # by the clock
    held_s: float = 3.0  # of a file, while another account waits
    turns: TurnLimits = TurnLimits(cpu=CpuBudget(burst_s=20.0))
    turn_s: float = 2.0  # after it, a request waits for its next turn; a new child takes a quarter of it


class SentFile(Content, msgspec.Struct, frozen=True):
    """A file of a request. `data` is its `file_data` as it stands in the JSON, with its quotes."""

    name: str
    data: bytes | bytearray | memoryview


class ReaderBusy(Exception):
    """A document was not read, for a reason on our side. It may be tried again after `retry_s`.

    `reason` ends the sentence "The files were not read: …".
    """

    def __init__(self, reason: str = FAILED, retry_s: float = 2.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_s = retry_s


class DocumentReader:
    """The two child processes of one service process. The owner of a document is the account that it is read for."""

    def __init__(self, observer: Observer, limits: ReaderLimits | None = None, module: str = CHILD) -> None:
        limits = limits or ReaderLimits()
        settings = LaneSettings(module, limits.child, limits.task_s, limits.turns, is_shared=False)
        for_page = msgspec.structs.replace(limits.child, cpu_s=min(limits.page_cpu_s, limits.child.cpu_s))
        self._observer = observer
        self._files = Lane(msgspec.structs.replace(settings, held_s=limits.held_s))
        self._pages = Lane(msgspec.structs.replace(settings, limits=for_page))
        self._turn_s = limits.turn_s
        self._has_warned = False

    async def read_files(
        self, owner: str, files: Sequence[SentFile], asked: AskedOfFiles, tokens_max: int
    ) -> list[DocumentText]:
        """What the question needs of the files, in `tokens_max` tokens. Raises UnreadableAttachment or ReaderBusy."""
        budget, asked = _budget(tokens_max, len(files)), AskedOfFiles(_bounded(asked.text), _bounded(asked.before))
        names = [clean_name(file.name) for file in files]
        tasks = [(FileTask(name, asked, budget), file.data) for name, file in zip(names, files, strict=True)]
        replies = await self._in_turns(self._files, owner, tasks, self._read_file)
        documents = [reply for reply in replies if isinstance(reply, RankedDocument)]
        return await _share_out(names, documents, tokens_max)

    async def measure(self, owner: str, name: str, data: bytes) -> FileSize:
        """How large a file is. Raises UnreadableAttachment or ReaderBusy."""
        [reply] = await self._in_turns(self._files, owner, [(MeasureTask(clean_name(name)), data)], self._read_file)
        assert isinstance(reply, FileSize)
        return reply

    async def read_pages(
        self, owner: str, pages: Sequence[FetchedPage], question: str, tokens_max: int
    ) -> list[DocumentText | None]:
        """The pages, cut to `tokens_max` tokens together; None for one that cannot be read. Raises ReaderBusy."""
        budget, asked = _budget(tokens_max, len(pages), is_filled=True), AskedOfFiles(_bounded(question))
        tasks = [(PageTask(page.url, page.content_type, asked, budget), page.body) for page in pages]
        replies = await self._in_turns(self._pages, owner, tasks, self._read_page)
        documents = [reply for reply in replies if isinstance(reply, RankedDocument)]
        texts = iter(await _share_out([document.title for document in documents], documents, tokens_max))
        return [next(texts) if isinstance(reply, RankedDocument) else None for reply in replies]

    async def stop(self) -> None:
        await self._files.stop()
        await self._pages.stop()

    async def _in_turns(
        self, lane: Lane, owner: str, tasks: Sequence[tuple[T, Buffer]], read: Callable[[Run, T, Buffer], Awaitable[R]]
    ) -> list[R]:
        """Read the documents in as few turns as is fair to other owners: each turn costs a new child."""
        replies, clock = list[R](), asyncio.get_running_loop().time
        try:
            while len(replies) < len(tasks):
                async with lane.turn(owner, has_begun=bool(replies)) as run:
                    until_s = clock() + self._turn_s
                    for task, data in tasks[len(replies) :]:
                        replies.append(await read(run, task, data))
                        if clock() > until_s:
                            break
        except QueueFull as full:
            raise ReaderBusy(OVER_BUDGET if isinstance(full, OverBudget) else BUSY, full.retry_s) from None
        if not lane.is_sandboxed and not self._has_warned:
            self._has_warned = True
            self._observer.log.warning("documents are read with limits, but the system does not filter system calls")
        return replies

    async def _read_file(self, run: Run, task: FileTask | MeasureTask, data: Buffer) -> Reply:
        try:
            reply = await self._read(run, task, data)
        except Died:
            raise ReaderBusy from None
        except TooHeavy:
            raise UnreadableAttachment(task.name, HEAVY) from None
        if isinstance(reply, Failed):
            advice = f", or send it as an '{reply.part_type}' part" if reply.part_type else ""
            raise UnreadableAttachment(task.name, reply.reason, advice)
        return reply

    async def _read_page(self, run: Run, task: PageTask, data: Buffer) -> Reply | None:
        """None if it takes too much, or ends the child; the next page gets a new child."""
        try:
            return await self._read(run, task, data)
        except (TooHeavy, Died):
            return None

    async def _read(self, run: Run, task: Task, data: Buffer) -> Reply:
        log = self._observer.log
        try:
            reply = decode_reply(task, await run(msgspec.msgpack.encode(task), [data]))
        except (Died, TimeoutError, BadReply) as error:
            log.warning("a process that reads documents failed", reason=type(error).__name__)
            raise Died from None
        except TooHeavy as error:
            log.warning("a document ended the process that read it", signal=error.signal_name)
            raise
        if isinstance(reply, Failed) and reply.fault:
            log.warning("a parser failed on a document", parser=reply.fault.module, error=reply.fault.error)
        return reply


async def _share_out(names: Sequence[str], documents: Sequence[RankedDocument], tokens_max: int) -> list[DocumentText]:
    """In a thread if there are many passages."""
    if sum(len(document.passages) for document in documents) > INLINE_PASSAGES:
        texts = await asyncio.to_thread(share_out, documents, tokens_max)
    else:
        texts = share_out(documents, tokens_max)
    return [msgspec.structs.replace(one, name=name) for one, name in zip(texts, names, strict=True)]


def _budget(tokens_max: int, documents: int, *, is_filled: bool = False) -> TokenBudget:
    return TokenBudget(tokens_max, tokens_max // max(documents, 1), is_filled)


def _bounded(question: str) -> str:
    """The beginning and the end of a long message: its question is in one of them."""
    half = QUESTION_CHARS_MAX // 2
    return question if len(question) <= QUESTION_CHARS_MAX else f"{question[:half]}\n{question[-half:]}"
