"""15. One account at full speed delays another by one turn at most, on each child process that works for accounts."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from cadenza.children.confine import ChildLimits
from cadenza.children.seccomp import this_machine
from cadenza.children.turns import CpuBudget, TurnLimits
from cadenza.core.errors import RateLimited
from cadenza.gateway.large.bodies import LargeBodies, LargeLimits
from cadenza.grounding.files.questions import AskedOfFiles
from cadenza.grounding.files.reader import MIB, DocumentReader, ReaderBusy, ReaderLimits
from cadenza.observe import Observer, make_log
from cadenza.web.chat.markdown import messages
from cadenza.web.chat.markdown.messages import RenderTask
from cadenza.web.chat.markdown.process import MarkdownRenderer, RenderLimits
from tests.hostile.test_documents import sent

WAIT_S = 200.0  # of a busy machine
LIMITS = ChildLimits(cpu_s=5, memory_bytes=768 * MIB)
AMPLE = TurnLimits(wait_s=WAIT_S, cpu=CpuBudget(burst_s=1000))
SCARCE = TurnLimits(wait_s=WAIT_S, cpu=CpuBudget(burst_s=0.05, per_s=0.001))
AT_ONCE = 4
HEAVY_TEXT = "漢" * (MIB // 8)  # a good part of a second of CPU time, as all of these
HEAVY_BODY = json.dumps({"messages": [{"role": "user", "content": "\n" * 2 * MIB}]}).encode()
HEAVY_MARKDOWN = RenderTask("![" * 3_000)
LIGHT_BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()

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
async def reading(turns: TurnLimits) -> AsyncIterator[DocumentReader]:
    limits = ReaderLimits(LIMITS, task_s=WAIT_S, turns=turns, turn_s=0)
    reader = DocumentReader(Observer(make_log(io.StringIO())), limits)
    try:
        yield reader
    finally:
        await reader.stop()


@asynccontextmanager
async def parsing(turns: TurnLimits) -> AsyncIterator[LargeBodies]:
    bodies = LargeBodies(Observer(make_log(io.StringIO())), LargeLimits(LIMITS, LIMITS, WAIT_S, turns))
    try:
        yield bodies
    finally:
        await bodies.stop()


@asynccontextmanager
async def rendering(turns: TurnLimits) -> AsyncIterator[MarkdownRenderer]:
    renderer = MarkdownRenderer(make_log(io.StringIO()), RenderLimits(LIMITS, WAIT_S, turns))
    try:
        yield renderer
    finally:
        await renderer.stop()


async def test_a_small_file_waits_for_one_file_of_another_account() -> None:
    """However many heavy files another account sends, at most the one that is being read comes before."""
    async with (
        reading(AMPLE) as reader,
        at_full_speed(lambda: reader.read_files("hog", [sent("a.txt", HEAVY_TEXT)], AskedOfFiles("漢"), 1000)) as hog,
    ):
        most = await most_done_before(
            hog, lambda: reader.read_files("light", [sent("a.txt", "text")], AskedOfFiles(""), 1000)
        )
    assert most <= 1


async def test_files_beyond_the_budget_are_refused_while_others_are_read() -> None:
    """The account that used up its CPU time is told when to try again; files of another account are read."""
    async with (
        reading(SCARCE) as reader,
        at_full_speed(lambda: reader.read_files("hog", [sent("a.txt", HEAVY_TEXT)], AskedOfFiles("漢"), 1000)) as hog,
    ):
        await hog.until(lambda: hog.done >= 2)  # alone, it may use all of it
        assert hog.refused == []
        [file] = await reader.read_files("light", [sent("a.txt", "text")], AskedOfFiles(""), 1000)
        assert file.text == "text"
        await hog.until(lambda: hog.refused)
        assert min(hog.refused) >= 1


async def test_a_large_body_waits_for_one_body_of_another_account() -> None:
    """However many heavy bodies another account sends, at most the one that is being parsed comes before."""
    async with (
        parsing(AMPLE) as bodies,
        at_full_speed(lambda: bodies.parse("hog", HEAVY_BODY)) as hog,
    ):
        assert await most_done_before(hog, lambda: bodies.parse("light", LIGHT_BODY)) <= 1


async def test_bodies_beyond_the_budget_are_refused_while_others_are_parsed() -> None:
    """The account that used up its CPU time gets a 429 with the time to wait; that of another account is parsed."""
    async with parsing(SCARCE) as bodies, at_full_speed(lambda: bodies.parse("hog", HEAVY_BODY)) as hog:
        await hog.until(lambda: hog.done >= 2)
        assert hog.refused == []
        assert (await bodies.parse("light", LIGHT_BODY)).messages
        await hog.until(lambda: hog.refused)
        assert min(hog.refused) >= 1


async def test_a_reply_is_rendered_after_one_task_of_another_account() -> None:
    """However many heavy blocks another account has, at most the task that runs comes before."""
    async with (
        rendering(AMPLE) as renderer,
        at_full_speed(lambda: renderer.render("hog", HEAVY_MARKDOWN)) as hog,
    ):
        assert await most_done_before(hog, lambda: renderer.render("light", RenderTask("*a*"))) <= 1


async def test_replies_beyond_the_budget_are_plain_text_and_say_so() -> None:
    """The account that used up its CPU time reads plain text with a note; the reply of another account is rendered."""
    async with rendering(SCARCE) as renderer:
        await renderer.render("hog", HEAVY_MARKDOWN)
        assert (await renderer.render("light", RenderTask("*a*"))).html == "<p><em>a</em></p>\n"
        dear = await renderer.render("hog", RenderTask("*a*"))
        assert dear.is_plain
        assert dear.html.startswith(messages.BUSY)


async def test_the_blocks_of_a_reply_share_their_cpu_time() -> None:
    """Many blocks that each take less than the limit cannot hold up others: together they are one task."""
    limits = RenderLimits(ChildLimits(cpu_s=0, memory_bytes=512 * MIB), WAIT_S, AMPLE)
    renderer = MarkdownRenderer(make_log(io.StringIO()), limits)
    try:
        block = "![" * 1_000  # a tenth of a second
        assert not (await renderer.render("account", RenderTask(block))).is_plain
        bomb = await renderer.render("account", RenderTask("\n\n".join([block] * 40)))
        assert bomb.html.startswith(messages.HEAVY)
    finally:
        await renderer.stop()
