"""15. One account at full speed delays another by one turn at most, on each child process that works for accounts."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from cadenza.children.confine import ChildLimits
from cadenza.children.seccomp import this_machine
from cadenza.children.turns import CpuBudget, TurnLimits
from cadenza.core.errors import RateLimited
from cadenza.gateway.large.bodies import LargeBodies, LargeLimits
from cadenza.observe import Observer, make_log
from cadenza.parts.grounding.files.questions import AskedOfFiles
from cadenza.parts.grounding.files.reader import MIB, DocumentReader, ReaderBusy, ReaderLimits
from cadenza.parts.site.chat.markdown import messages
from cadenza.parts.site.chat.markdown.messages import RenderTask
from cadenza.parts.site.chat.markdown.process import MarkdownRenderer, RenderLimits
from tests.parts.grounding.hostile.test_documents import sent

WAIT_S = 200.0  # of a busy machine
LIMITS = ChildLimits(cpu_s=5, memory_bytes=768 * MIB)
AMPLE = TurnLimits(wait_s=WAIT_S, cpu=CpuBudget(burst_s=1000))
SCARCE = TurnLimits(wait_s=WAIT_S, cpu=CpuBudget(burst_s=0.05, per_s=0.001))
AT_ONCE = 4
HEAVY_TEXT = "漢" * (MIB // 8)  # a good part of a second of CPU time, as all of these
HEAVY_BODY = json.dumps({"messages": [{"role": "user", "content": "\n" * 2 * MIB}]}).encode()
HEAVY_MARKDOWN = RenderTask("![" * 3_000)
LIGHT_MARKDOWN = RenderTask("*a*")
LIGHT_BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()

Work = Callable[[str, bool], Awaitable[object]]  # of an account, heavy or light
Working = Callable[[TurnLimits], AbstractAsyncContextManager[Work]]

pytestmark = [
    pytest.mark.skipif(this_machine() is None, reason="only Linux tells the CPU time of a child"),
    pytest.mark.slow(reason="measures CPU time under load"),
]


class Hog:
    """Sends heavy tasks, a few at once and without a pause, and counts those that are done or refused."""

    def __init__(self, task: Callable[[], Awaitable[object]]) -> None:
        self._task = task
        self._changed = asyncio.Condition()
        self.done = 0
        self.refused = list[float]()  # when to try again, in seconds

    async def send(self) -> None:
        """Until it is refused."""
        while not self.refused:
            try:
                await self._task()
                self.done += 1
            except ReaderBusy as busy:
                self.refused.append(busy.retry_s)
            except RateLimited as limited:
                self.refused.append(float(dict(limited.headers)[b"retry-after"]))
            async with self._changed:
                self._changed.notify_all()

    async def until(self, happened: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(happened)


@asynccontextmanager
async def at_full_speed(task: Callable[[], Awaitable[object]]) -> AsyncIterator[Hog]:
    hog = Hog(task)
    sending = [asyncio.create_task(hog.send()) for _ in range(AT_ONCE)]
    try:
        yield hog
    finally:
        for one in sending:
            one.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


async def most_done_before(hog: Hog, light: Callable[[], Awaitable[object]]) -> int:
    """How many tasks of the hog are done at most while another account waits for one of its own."""
    most = 0
    for _ in range(2):
        await hog.until(lambda before=hog.done: hog.done > before)  # type: ignore[misc]
        before = hog.done
        await light()
        most = max(most, hog.done - before)
    return most


@asynccontextmanager
async def reading(turns: TurnLimits) -> AsyncIterator[Work]:
    reader = DocumentReader(
        Observer(make_log(io.StringIO())), ReaderLimits(LIMITS, task_s=WAIT_S, held_s=WAIT_S, turns=turns, turn_s=0)
    )
    try:
        yield lambda account, is_heavy: reader.read_files(
            account, [sent("a.txt", HEAVY_TEXT if is_heavy else "text")], AskedOfFiles("漢"), 1000
        )
    finally:
        await reader.stop()


@asynccontextmanager
async def parsing(turns: TurnLimits) -> AsyncIterator[Work]:
    bodies = LargeBodies(Observer(make_log(io.StringIO())), limits=LargeLimits(LIMITS, LIMITS, WAIT_S, turns))
    try:
        yield lambda account, is_heavy: bodies.parse(account, HEAVY_BODY if is_heavy else LIGHT_BODY)
    finally:
        await bodies.stop()


@asynccontextmanager
async def renderer_with(limits: RenderLimits) -> AsyncIterator[MarkdownRenderer]:
    renderer = MarkdownRenderer(make_log(io.StringIO()), limits)
    try:
        yield renderer
    finally:
        await renderer.stop()


@asynccontextmanager
async def rendering(turns: TurnLimits) -> AsyncIterator[Work]:
    async with renderer_with(RenderLimits(LIMITS, WAIT_S, turns)) as renderer:
        yield lambda account, is_heavy: renderer.render(account, HEAVY_MARKDOWN if is_heavy else LIGHT_MARKDOWN)


@pytest.mark.parametrize("working", [reading, parsing, rendering])
async def test_a_light_task_waits_for_one_task_of_another_account(working: Working) -> None:
    """However many heavy files, bodies or replies another account has, at most the one at work comes before."""
    async with working(AMPLE) as do, at_full_speed(lambda: do("hog", True)) as hog:
        assert await most_done_before(hog, lambda: do("light", False)) <= 1


@pytest.mark.parametrize("working", [reading, parsing])
async def test_tasks_beyond_the_budget_are_refused_while_others_are_done(working: Working) -> None:
    """The account that used up its CPU time is told when to try again; the task of another account is done."""
    async with working(SCARCE) as do, at_full_speed(lambda: do("hog", True)) as hog:
        await hog.until(lambda: hog.done >= 2)  # alone, it may use all of it
        assert hog.refused == []
        assert await do("light", False)
        await hog.until(lambda: hog.refused)
        assert min(hog.refused) >= 1


async def test_replies_beyond_the_budget_are_plain_text_and_say_so() -> None:
    """The account that used up its CPU time reads plain text with a note; the reply of another account is rendered."""
    async with renderer_with(RenderLimits(LIMITS, WAIT_S, SCARCE)) as renderer:
        await renderer.render("hog", HEAVY_MARKDOWN)
        assert (await renderer.render("light", LIGHT_MARKDOWN)).html == "<p><em>a</em></p>\n"
        dear = await renderer.render("hog", LIGHT_MARKDOWN)
        assert dear.is_plain
        assert dear.html.startswith(messages.BUSY)


async def test_the_blocks_of_a_reply_share_their_cpu_time() -> None:
    """Many blocks that each take less than the limit cannot hold up others: together they are one task."""
    async with renderer_with(RenderLimits(ChildLimits(cpu_s=0, memory_bytes=512 * MIB), WAIT_S, AMPLE)) as renderer:
        block = "![" * 1_000  # a tenth of a second
        assert not (await renderer.render("account", RenderTask(block))).is_plain
        bomb = await renderer.render("account", RenderTask("\n\n".join([block] * 40)))
        assert bomb.html.startswith(messages.HEAVY)
