"""Renders Markdown in a child process, which starts with the first chat and again after it has died.

Blocks that take too long or too much memory end the child and are shown as plain text, as is everything else that
cannot be rendered now, and the page says so: a reply never fails because of its Markdown. Accounts take turns, by the
CPU time that their replies took.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from cadenza.children.confine import ChildLimits
from cadenza.children.lane import Lane, LaneSettings
from cadenza.children.process import Died, TooHeavy
from cadenza.children.turns import CpuBudget, QueueFull, TurnLimits
from cadenza.observe import Log
from cadenza.web.chat.markdown.blocks import Block
from cadenza.web.chat.markdown.plain import BUSY, HEAVY, plain_html

CHILD = "cadenza.web.chat.markdown.child"
MIB = 1024 * 1024
_HTML = msgspec.msgpack.Decoder(list[str])


class RenderLimits(msgspec.Struct, frozen=True):
    """What rendering may use, and how long an account waits for its turn."""

    child: ChildLimits = ChildLimits(cpu_s=1, memory_bytes=512 * MIB)
    task_s: float = 15.0  # by the clock, on a machine that is busy with other things
    turns: TurnLimits = TurnLimits(waiting_per_owner_max=8, wait_s=20.0, cpu=CpuBudget(burst_s=10.0))


class Rendered(msgspec.Struct, frozen=True):
    """The HTML of each block, and whether they could not be rendered: then the first one says so."""

    html: list[str]
    is_plain: bool = False


class MarkdownRenderer:
    """The child process of one service process."""

    def __init__(self, log: Log, limits: RenderLimits | None = None) -> None:
        self._log = log
        limits = limits or RenderLimits()
        self._lane = Lane(LaneSettings(CHILD, limits.child, limits.task_s, limits.turns))
        self._tasks: set[asyncio.Task[Rendered]] = set()

    def prepare(self, owner: str) -> None:
        """Start the child now, because this owner will soon need it."""
        if not self._lane.has_child and not self._tasks:
            self._begin(owner, [Block("")])

    async def render(self, owner: str, blocks: Sequence[Block]) -> Rendered:
        """The HTML of these blocks, which belong to one owner. A client that leaves does not end the child."""
        return await asyncio.shield(self._begin(owner, blocks))

    def _begin(self, owner: str, blocks: Sequence[Block]) -> asyncio.Task[Rendered]:
        task = asyncio.create_task(self._run(owner, blocks))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, owner: str, blocks: Sequence[Block]) -> Rendered:
        sources = [block.source for block in blocks if not block.is_plain]
        try:
            rendered = iter(
                _HTML.decode(await self._lane.run(owner, msgspec.msgpack.encode(sources))) if sources else []
            )
        except (QueueFull, Died, TooHeavy, TimeoutError) as error:
            self._log.warning("a reply is shown without Markdown", reason=type(error).__name__)
            html = [plain_html(block.source) for block in blocks]
            html[0] = (HEAVY if isinstance(error, TooHeavy) else BUSY) + html[0]
            return Rendered(html, is_plain=True)
        return Rendered([plain_html(block.source) if block.is_plain else next(rendered) for block in blocks])

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._lane.stop()
