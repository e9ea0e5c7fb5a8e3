"""Renders the Markdown of replies, as it arrives, in a child process.

The child finds the ends of blocks (markdown-it knows the rules) and renders those that are complete. It is asked at the
end of a line, and only once the open block has grown by a quarter since it was last parsed, so the work is linear in
the text: at most five times that of parsing it once. A block that is longer than a task may be, and everything that
cannot be rendered now, is shown as plain text, as is the rest of that reply: a reply never fails because of its
Markdown. Code is the exception: a long code block is rendered in parts.

Accounts take turns, by the CPU time that their replies took. A task that takes too much time or memory ends the child;
the next task starts a new one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from cadenza.children.confine import ChildLimits
from cadenza.children.lane import Lane, LaneSettings
from cadenza.children.process import Died, TooHeavy
from cadenza.children.turns import CpuBudget, QueueFull, TurnLimits
from cadenza.core.content import Content
from cadenza.observe import Log
from cadenza.parts.site.chat.markdown.messages import BUSY, HEAVY, TASK_CHARS_MAX, Rendered, RenderTask, plain_html

CHILD = "cadenza.parts.site.chat.markdown.child"
MIB = 1024 * 1024
_REPLY = msgspec.msgpack.Decoder(Rendered)


class RenderLimits(msgspec.Struct, frozen=True):
    """What rendering may use, and how long an account waits for its turn."""

    child: ChildLimits = ChildLimits(cpu_s=1, memory_bytes=512 * MIB)
    task_s: float = 15.0  # by the clock, on a machine that is busy with other things
    turns: TurnLimits = TurnLimits(waiting_per_owner_max=8, wait_s=20.0, cpu=CpuBudget(burst_s=10.0))


class MarkdownRenderer:
    """The child process of one service process. It starts with the first chat."""

    def __init__(self, log: Log, limits: RenderLimits | None = None) -> None:
        self._log = log
        limits = limits or RenderLimits()
        self._lane = Lane(LaneSettings(CHILD, limits.child, limits.task_s, limits.turns))
        self._tasks: set[asyncio.Task[Rendered]] = set()

    def stream(self, owner: str) -> "MarkdownStream":
        return MarkdownStream(partial(self.render, owner))

    def prepare(self, owner: str) -> None:
        """Start the child now, because this owner will soon need it."""
        if not self._lane.has_child and not self._tasks:
            self._begin(owner, RenderTask(""))

    async def render(self, owner: str, task: RenderTask) -> Rendered:
        """Never fails: what cannot be rendered is plain text. If the caller is cancelled, the child goes on."""
        return await asyncio.shield(self._begin(owner, task))

    def _begin(self, owner: str, task: RenderTask) -> asyncio.Task[Rendered]:
        running = asyncio.create_task(self._run(owner, task))
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)
        return running

    async def _run(self, owner: str, task: RenderTask) -> Rendered:
        try:
            return _REPLY.decode(await self._lane.run(owner, msgspec.msgpack.encode(task)))
        except (QueueFull, Died, TooHeavy, TimeoutError) as error:
            self._log.warning("a reply is shown without Markdown", reason=type(error).__name__)
            hint = HEAVY if isinstance(error, TooHeavy) else BUSY
            return Rendered(hint + plain_html(task.text), len(task.text), is_plain=True)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._lane.stop()


class RenderedText(Content, msgspec.Struct, frozen=True):
    """A part of a reply, and its HTML."""

    source: str
    html: str


class MarkdownStream:
    """The Markdown of one reply: takes text as it arrives, and renders it block by block."""

    def __init__(self, render: Callable[[RenderTask], Awaitable[Rendered]]) -> None:
        self._render_task = render
        self._parts: list[str] = []  # of the text that is not rendered yet
        self._chars = 0  # of these parts
        self._line_chars = 0  # of these, up to the end of the last complete line
        self._parsed_chars = 0  # of these, that the child has seen: they are an open block
        self._fence = ""  # the opening line of a code block, part of which is rendered
        self._is_plain = False  # the rest is shown without Markdown

    def feed(self, text: str) -> None:
        line_end = text.rfind("\n") + 1
        if line_end:
            self._line_chars = self._chars + line_end
        self._parts.append(text)
        self._chars += len(text)

    @property
    def is_due(self) -> bool:
        """Whether the text may have a complete block that is not rendered yet, or has become too long to wait."""
        has_grown = self._line_chars > self._parsed_chars and 4 * self._line_chars >= 5 * self._parsed_chars
        return (has_grown and not self._is_plain) or self._chars > TASK_CHARS_MAX

    async def render(self, *, is_end: bool = False) -> list[RenderedText]:
        """The blocks that are complete; at the end of the reply, everything that is left."""
        rendered: list[RenderedText] = []
        while self.is_due or (is_end and self._chars):
            text = "".join(self._parts)
            result = await self._render_start(text, is_end=is_end)
            rendered += [RenderedText(text[: result.chars], result.html)] if result.chars else []
            rest = text[result.chars :]
            self._parts, self._chars = [rest], len(rest)
            self._line_chars = max(self._line_chars - result.chars, 0)
            self._parsed_chars = 0 if result.is_plain else self._line_chars
            self._fence, self._is_plain = result.fence, result.is_plain
        return rendered

    async def _render_start(self, text: str, *, is_end: bool) -> Rendered:
        """Render the complete blocks at the start of a text. A block that is too long makes the rest plain."""
        if self._is_plain:
            return Rendered(plain_html(text), len(text), is_plain=True)
        ready = text if is_end else text[: self._line_chars]
        is_last = is_end and len(ready) <= TASK_CHARS_MAX
        if len(ready) > TASK_CHARS_MAX:
            ready = ready[: ready.rfind("\n", 0, TASK_CHARS_MAX) + 1]
        result = Rendered("", 0, self._fence)
        if ready:
            result = await self._render_task(RenderTask(ready, self._fence, is_last))
        is_too_long = not result.chars and len(text) > TASK_CHARS_MAX
        return msgspec.structs.replace(result, is_plain=True) if is_too_long else result
