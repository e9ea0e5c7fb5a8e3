"""Rendering in a child process: it starts when it is needed, survives nothing bad, and never fails a reply."""

import asyncio
import os
import sys

import pytest

from cadenza.children.confine import ChildLimits
from cadenza.children.seccomp import this_machine
from cadenza.children.turns import TurnLimits
from cadenza.observe import make_log
from cadenza.parts.site.chat.markdown import messages
from cadenza.parts.site.chat.markdown.messages import Rendered, RenderTask
from cadenza.parts.site.chat.markdown.process import MIB, MarkdownRenderer, RenderLimits
from cadenza.parts.site.chat.markdown.render import HtmlRenderer
from tests.processes import children, command_of, read_of

HEAVY = RenderTask("![" * 200_000)  # more CPU time than a child may use
CODE = {
    "php": '<?php echo strlen("a"); ?>',
    "lua": 'print(string.format("%d", 1))',
    "mysql": "SELECT CONCAT(a) FROM b;",
    "postgres": "SELECT now() FROM b;",
    "vim": "set nocompatible",
    "markdown": "# a\n\n~~~no-such-language\nx\n~~~\n\n~~~python\nx = 1\n~~~",
    "html": "<script>let a = 1</script>",
}
WAIT_S = 100.0
QUICK = RenderLimits(ChildLimits(cpu_s=1, memory_bytes=512 * MIB), task_s=WAIT_S)


@pytest.fixture
async def renderer() -> MarkdownRenderer:
    return MarkdownRenderer(make_log(), QUICK)


async def render(renderer: MarkdownRenderer, source: str) -> str:
    return (await renderer.render("account", RenderTask(source))).html


async def test_complete_blocks_are_rendered(renderer: MarkdownRenderer) -> None:
    """The child says how much of a text it has rendered; at the end of a text, all of it."""
    text = "*a*\n\nb\n"
    assert await renderer.render("account", RenderTask(text, is_end=False)) == Rendered("<p><em>a</em></p>\n", 5)
    assert await renderer.render("account", RenderTask(text)) == Rendered("<p><em>a</em></p>\n<p>b</p>\n", len(text))
    await renderer.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_child_cannot_read_files(renderer: MarkdownRenderer) -> None:
    """Rendering has imported what it needs before: from then on no file can be opened, not even to read it."""
    await render(renderer, "*a*")
    [child] = [pid for pid in children(os.getpid()) if b"cadenza.parts.site.chat.markdown.child" in command_of(pid)]
    [line] = [one for one in read_of(child, "limits").splitlines() if one.startswith(b"Max open files")]
    assert line.split()[3:5] == [b"0", b"0"]
    assert this_machine() is None or b"Seccomp:\t2" in read_of(child, "status")
    await renderer.stop()


async def test_code_is_coloured_without_files(renderer: MarkdownRenderer) -> None:
    """Lexers that import a list of words when they are first used, and a language in a language, work as before."""
    own = HtmlRenderer()
    for language, code in CODE.items():
        html = await render(renderer, f"~~~~{language}\n{code}\n~~~~\n")
        assert html == own.render(f"~~~~{language}\n{code}\n~~~~\n")
        assert '<span class="' in html
    await renderer.stop()


@pytest.mark.slow(reason="uses up the limits of a child process")
async def test_a_heavy_block_is_plain_text(renderer: MarkdownRenderer) -> None:
    """A block beyond the CPU time ends the child and is shown as it is; the next one gets a new child."""
    rendered = await renderer.render("account", HEAVY)
    assert (rendered.is_plain, rendered.chars) == (True, len(HEAVY.text))
    assert rendered.html.startswith(messages.HEAVY + '<pre class="plain"')
    assert await render(renderer, "*a*") == "<p><em>a</em></p>\n"
    await renderer.stop()


async def test_a_client_that_leaves_does_not_end_the_child(renderer: MarkdownRenderer) -> None:
    """The task of a cancelled request runs to its end, and the next one uses the same child."""
    await render(renderer, "*a*")
    leaving = asyncio.create_task(render(renderer, "*b* " * 2000))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert await render(renderer, "*c*") == "<p><em>c</em></p>\n"
    await renderer.stop()


async def test_too_many_tasks_of_one_account_are_plain_text() -> None:
    """An account cannot queue more than its share; what is beyond it is shown as it is, and others take their turn."""
    limits = RenderLimits(
        ChildLimits(cpu_s=5, memory_bytes=512 * MIB), WAIT_S, TurnLimits(waiting_per_owner_max=1, wait_s=WAIT_S)
    )
    renderer = MarkdownRenderer(make_log(), limits)
    many = [asyncio.create_task(renderer.render("greedy", RenderTask("*a*"))) for _ in range(5)]
    other = await renderer.render("other", RenderTask("*a*"))
    rendered = await asyncio.gather(*many)
    assert [one.is_plain for one in rendered] == [False, True, True, True, True]
    assert not other.is_plain
    await renderer.stop()


async def test_stopping_ends_what_runs(renderer: MarkdownRenderer) -> None:
    """The service can stop while a child works, and one that was never needed was never started."""
    running = asyncio.create_task(renderer.render("account", HEAVY))
    await asyncio.sleep(0)
    await renderer.stop()
    with pytest.raises(asyncio.CancelledError):
        await running
    await MarkdownRenderer(make_log()).stop()
