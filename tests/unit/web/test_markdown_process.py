"""Rendering in a child process: it starts when it is needed, survives nothing bad, and never fails a reply."""

import asyncio

import pytest

from cadenza.children.confine import Limits
from cadenza.children.turns import TurnLimits
from cadenza.observe import make_log
from cadenza.web.markdown import plain
from cadenza.web.markdown.blocks import Block
from cadenza.web.markdown.process import MIB, MarkdownRenderer, RenderLimits

HEAVY = Block("![" * 200_000)  # more CPU time than a child may use
WAIT_S = 100.0
QUICK = RenderLimits(Limits(cpu_s=1, memory_bytes=512 * MIB), task_s=WAIT_S)


@pytest.fixture
async def renderer() -> MarkdownRenderer:
    return MarkdownRenderer(make_log(), QUICK)


async def render(renderer: MarkdownRenderer, *sources: str) -> list[str]:
    return (await renderer.render("account", [Block(source) for source in sources])).html


async def test_blocks_are_rendered_in_order(renderer: MarkdownRenderer) -> None:
    """Each block gets its HTML; one that is plain already is only escaped."""
    rendered = await renderer.render("account", [Block("*a*"), Block("*b* <", is_plain=True), Block("*c*")])
    assert rendered.html[0] == "<p><em>a</em></p>\n"
    assert rendered.html[1] == '<pre class="plain" tabindex="0">*b* &lt;</pre>\n'
    assert rendered.html[2] == "<p><em>c</em></p>\n"
    assert not rendered.is_plain
    await renderer.stop()


async def test_a_heavy_block_is_plain_text(renderer: MarkdownRenderer) -> None:
    """A block beyond the CPU time ends the child and is shown as it is; the next one gets a new child."""
    rendered = await renderer.render("account", [HEAVY])
    assert rendered.is_plain
    assert rendered.html[0].startswith(plain.HEAVY + '<pre class="plain"')
    assert await render(renderer, "*a*") == ["<p><em>a</em></p>\n"]
    await renderer.stop()


async def test_a_client_that_leaves_does_not_end_the_child(renderer: MarkdownRenderer) -> None:
    """The task of a cancelled request runs to its end, and the next one uses the same child."""
    await render(renderer, "*a*")
    leaving = asyncio.create_task(render(renderer, "*b* " * 2000))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert await render(renderer, "*c*") == ["<p><em>c</em></p>\n"]
    await renderer.stop()


async def test_too_many_tasks_of_one_account_are_plain_text() -> None:
    """An account cannot queue more than its share; what is beyond it is shown as it is, and others take their turn."""
    limits = RenderLimits(
        Limits(cpu_s=5, memory_bytes=512 * MIB), WAIT_S, TurnLimits(waiting_per_owner_max=1, wait_s=WAIT_S)
    )
    renderer = MarkdownRenderer(make_log(), limits)
    many = [asyncio.create_task(renderer.render("greedy", [Block("*a*")])) for _ in range(5)]
    other = await renderer.render("other", [Block("*a*")])
    rendered = await asyncio.gather(*many)
    assert [one.is_plain for one in rendered] == [False, True, True, True, True]
    assert not other.is_plain
    await renderer.stop()


async def test_stopping_ends_what_runs(renderer: MarkdownRenderer) -> None:
    """The service can stop while a child works, and one that was never needed was never started."""
    running = asyncio.create_task(renderer.render("account", [HEAVY]))
    await asyncio.sleep(0)
    await renderer.stop()
    with pytest.raises(asyncio.CancelledError):
        await running
    await MarkdownRenderer(make_log()).stop()
