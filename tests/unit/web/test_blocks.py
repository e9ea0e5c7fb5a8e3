"""Markdown that arrives in pieces is split into blocks where the document is closed, at linear cost."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.web.chat.markdown.blocks import Block, BlockSplitter
from cadenza.web.chat.markdown.render import BlockRenderer

RENDERER = BlockRenderer()
LINES = [
    *(
        "text",
        "more text",
        "",
        "",
        "",
        "a `b",
        "    four",
        "     five",
        "  two",
        "   three",
        "\ttab",
        "===",
        "---",
        "***",
    ),
    *("- item", "* other", "1. one", "2. two", "10. ten", "1) x", "- ", "-", "- - x", "- # h", "- ```", "   - nested"),
    *(
        "```",
        "```py",
        "~~~",
        "  ```",
        "   ```",
        "    ```",
        "# head",
        "> quote",
        "> - q",
        "> ```",
        "| a | b |",
        "|---|---|",
    ),
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


def split(pieces: list[str], block_chars_max: int = 10_000) -> list[Block]:
    splitter = BlockSplitter(block_chars_max)
    return [block for piece in pieces for block in splitter.feed(piece)] + splitter.end()


@pytest.mark.parametrize("name", EXAMPLES)
def test_blocks_look_like_the_whole(name: str) -> None:
    """The blocks rendered one by one are what the whole document is, whatever pieces it came in."""
    source = EXAMPLES[name]
    whole = RENDERER.render(source)
    for size in (1, 3, len(source)):
        blocks = split([source[start : start + size] for start in range(0, len(source), size)])
        assert "".join(block.source for block in blocks) == source
        assert "".join(RENDERER.render(block.source) for block in blocks) == whole


@settings(max_examples=300)
@given(st.lists(st.sampled_from(LINES), max_size=14), st.integers(1, 9))
def test_any_lines_look_like_the_whole(lines: list[str], size: int) -> None:
    """The same holds for arbitrary sequences of lines, however they are nested."""
    source = "\n".join(lines)
    blocks = split([source[start : start + size] for start in range(0, len(source), size)])
    assert "".join(block.source for block in blocks) == source
    assert "".join(RENDERER.render(block.source) for block in blocks) == RENDERER.render(source)


def test_a_block_is_complete_as_soon_as_it_can_be() -> None:
    """A heading ends with its line, a paragraph with the empty line after it, code with its closing fence."""
    splitter = BlockSplitter()
    assert splitter.feed("# Title") == []
    assert splitter.feed("\nText") == [Block("# Title\n")]
    assert splitter.feed("\n\n") == [Block("Text\n\n")]
    assert splitter.feed("```\na\n``") == []
    assert splitter.feed("`\n") == [Block("```\na\n```\n")]
    assert splitter.end() == []


def test_a_large_block_is_cut_and_plain() -> None:
    """What is larger than a block may be is shown as it is; a fence that was cut stays plain to its end."""
    blocks = split(["x" * 80, " " * 80, "\n\n# Title\n"], block_chars_max=100)
    assert [block.is_plain for block in blocks] == [True, True, False]
    blocks = split(["```\n", "code\n" * 50, "\n\n", "```\n", "*text*"], block_chars_max=100)
    assert [block.is_plain for block in blocks] == [True, True, True, False]
    assert blocks[-1].source == "*text*"


@pytest.mark.parametrize("text", ["x", "- a\n", "```\n", "\n", "text\n\n", "[", "> a\n"])
def test_the_cost_is_linear(text: str) -> None:
    """Four times as much text, in small pieces, takes about four times as long, and not sixteen times."""

    def measure_s(count: int) -> float:
        pieces = [text * 4] * count
        begun_s = time.process_time()
        split(pieces)
        return time.process_time() - begun_s

    limit_s = 9 * min(measure_s(2_500) for _ in range(3))
    assert any(measure_s(10_000) < limit_s for _ in range(3))
