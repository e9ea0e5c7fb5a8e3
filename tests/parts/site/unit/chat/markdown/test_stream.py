"""Markdown that arrives in pieces is rendered block by block, as the whole would be, at linear cost."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.parts.site.chat.markdown.messages import TASK_CHARS_MAX, Rendered, RenderTask, plain_html
from cadenza.parts.site.chat.markdown.process import MarkdownStream, RenderedText
from cadenza.parts.site.chat.markdown.render import HtmlRenderer

RENDERER = HtmlRenderer()
LINES = [
    *("text", "more text", "", "", "", "a `b", "    four", "     five", "  two", "   three", "\ttab", "===", "---"),
    "***",
    *("- item", "* other", "1. one", "2. two", "10. ten", "1) x", "- ", "-", "- - x", "- # h", "- ```", "   - nested"),
    *("```", "```py", "~~~", "  ```", "   ```", "    ```", "# head", "> quote", "> - q", "> ```"),
    *("| a | b |", "|---|---|"),
]
EXAMPLES = {
    "paragraphs": "One\nline.\n\nTwo.\n\n\n\nThree.",
    "heading without an empty line": "# Title\nText\n## Next\nMore",
    "fence over many lines": "Before:\n```python\nx = 1\n\n\ny = 2\n```\nAfter",
    "fence of tildes with backticks inside": "~~~\n```\n\n```\n~~~\ntext",
    "fence that never closes": "text\n\n```js\nlet a;\n\nlet b;",
    "loose list": "- a\n\n- b\n\n  more of b\n\n- c\n\nAfter",
    "list with code": "1. First:\n\n   ```sh\n   ls\n\n   pwd\n   ```\n\n2. Second\n\nText",
    "list that a fence ends": "1. First\n```sh\nls\n\npwd\n```\n2. Second",
    "nested lists": "- a\n  - b\n    - c\n\n      d\n- e\n\nf",
    "table": "| a | b |\n|--:|---|\n| 1 | 2 |\n\nText",
    "quote": "> a\n> b\n\n> c\n\ntext",
    "indented code": "    a\n\n    b\n\ntext",
    "Windows line ends": "# Title\r\n\r\n```\r\na\r\n\r\nb\r\n```\r\nText\r\n",
}


class Run:
    """A stream whose tasks are rendered in this process, and how many characters they had together."""

    def __init__(self) -> None:
        self.stream = MarkdownStream(self._render)
        self.parsed_chars = 0
        self.parts: list[RenderedText] = []

    async def _render(self, task: RenderTask) -> Rendered:
        self.parsed_chars += len(task.text)
        return RENDERER.render_complete(task)

    def feed(self, *pieces: str) -> str:
        """The HTML of what is complete after these pieces."""
        before = len(self.parts)
        asyncio.run(self._feed(pieces))
        return "".join(part.html for part in self.parts[before:])

    async def _feed(self, pieces: Sequence[str]) -> None:
        for piece in pieces:
            self.stream.feed(piece)
            if self.stream.is_due:
                self.parts += await self.stream.render()

    def end(self) -> str:
        """The HTML of the whole text."""
        self.parts += asyncio.run(self.stream.render(is_end=True))
        return "".join(part.html for part in self.parts)

    @property
    def source(self) -> str:
        return "".join(part.source for part in self.parts)


def in_pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_parts_look_like_the_whole(name: str) -> None:
    """The parts of a document, joined, are what the whole document is, whatever pieces it came in."""
    source = EXAMPLES[name]
    for size in (1, 3, len(source)):
        run = Run()
        run.feed(*in_pieces(source, size))
        assert run.end() == RENDERER.render(source)
        assert run.source == source


@given(st.lists(st.sampled_from(LINES), max_size=14), st.integers(0, 14))
def test_any_lines_look_like_the_whole(lines: list[str], count: int) -> None:
    """What is complete after any number of lines is the same whatever follows, however the lines are nested."""
    source = "".join(f"{line}\n" for line in lines)
    first = RENDERER.render_complete(RenderTask("".join(f"{line}\n" for line in lines[:count]), is_end=False))
    assert first.html + RENDERER.render(source[first.chars :]) == RENDERER.render(source)


def test_a_block_is_complete_as_soon_as_it_can_be() -> None:
    """A heading ends with its line, a paragraph with the empty line after it, code with its closing fence."""
    run = Run()
    assert run.feed("# Title") == ""
    assert run.feed("\nText") == "<h3>Title</h3>\n"
    assert run.feed("\n\n") == "<p>Text</p>\n"
    assert run.feed("```\na\n``") == ""
    assert "<code>a\n</code>" in run.feed("`\n")
    assert run.source == "# Title\nText\n\n```\na\n```\n"


def test_long_code_is_rendered_in_parts() -> None:
    """Each part is a code block of its language, no line is lost, and what follows it is Markdown again."""
    run, code = Run(), "q = 1\n" * 20_000
    run.feed("```py\n", *in_pieces(code, 500), "```\n", "*text*\n\n")
    html = run.end()
    assert html.count('<span class="language">py</span>') == html.count("</pre>") > 3
    assert html.count("q") == 20_000
    assert html.endswith("<p><em>text</em></p>\n")
    assert run.source == f"```py\n{code}```\n*text*\n\n"


@pytest.mark.slow(reason="renders texts as long as they may be")
@pytest.mark.parametrize("text", ["x" * 80_000, "- item\n" * 12_000], ids=["one line", "list"])
def test_a_block_that_is_too_long_is_plain_text(text: str) -> None:
    """It is shown as it is, and so is the rest of the reply; what was complete before it is rendered."""
    run = Run()
    run.feed("# Title\n", *in_pieces(text, 500), "\n\n*text*")
    assert run.end().startswith("<h3>Title</h3>\n<pre class=")
    assert run.parts[-1].html == plain_html(run.parts[-1].source)
    assert run.source == f"# Title\n{text}\n\n*text*"
    assert all(len(part.source) <= TASK_CHARS_MAX + 500 for part in run.parts)


@pytest.mark.slow(reason="renders texts as long as they may be")
@pytest.mark.parametrize("text", ["x", "- a\n", "```\n", "\n", "text\n\n", "[", "> a\n", "a line of text\n"])
def test_the_work_is_linear(text: str) -> None:
    """However small the pieces are, at most about five times as many characters are parsed as the text has."""
    run = Run()
    run.feed(*[text] * (10_000 // len(text)))
    run.end()
    assert run.parsed_chars <= 6 * 10_000


@pytest.mark.slow(reason="renders texts as long as they may be")
def test_a_long_text_at_once_is_rendered_in_tasks_of_bounded_size() -> None:
    """A text that arrives as one piece, with many blocks, is rendered as its pieces would be."""
    run, source = Run(), "# Title\n\nSome *text*.\n\n" * 4_000
    run.feed(source)
    assert run.end() == RENDERER.render(source)
    assert len(run.parts) > 2


def test_after_a_failure_the_rest_is_plain_text() -> None:
    """Once a part could not be rendered, the child is not asked again for this reply."""
    asked = list[str]()

    async def fail(task: RenderTask) -> Rendered:
        asked.append(task.text)
        return Rendered("failed", len(task.text), is_plain=True)

    stream = MarkdownStream(fail)
    stream.feed("*a*\n\n")
    assert asyncio.run(stream.render()) == [RenderedText("*a*\n\n", "failed")]
    stream.feed("*b*\n\n*c*")
    assert not stream.is_due
    assert asyncio.run(stream.render(is_end=True)) == [RenderedText("*b*\n\n*c*", plain_html("*b*\n\n*c*"))]
    assert asked == ["*a*\n\n"]
