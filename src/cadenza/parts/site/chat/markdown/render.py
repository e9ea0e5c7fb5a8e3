"""Renders Markdown to HTML that cannot run, load or restyle anything. Runs in the child process only.

The Markdown is hostile: HTML in it is text, links lead only to http, https and mailto, pictures become links, and the
result passes an allow-list at the end. Headings begin at h3, because the page has its own. Code is coloured by classes,
and formulas become MathML.
"""

import importlib
import pkgutil
import re
from collections.abc import Sequence

import nh3
import pygments.lexers
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_all_lexers, get_lexer_by_name
from pygments.token import STANDARD_TYPES

from cadenza.parts.site.chat.markdown import formulas
from cadenza.parts.site.chat.markdown.messages import TASK_CHARS_MAX, Rendered, RenderTask, escape

SCHEMES = ("http://", "https://", "mailto:")
LINK_CHARS_MAX = 2048
LINE = re.compile(r"[^\r\n]*+(?:\r\n?|\n|\Z)")
LINE_END = "\r\n"
ONE_LINE = frozenset({"heading_open", "hr"})  # blocks that end with their last line
# Lists and indented code go on after a blank line.
ENDED_BY_BLANK = frozenset({"paragraph_open", "blockquote_open", "table_open"})
COLOURED_CHARS_MAX = 16 * 1024
LANGUAGE_CHARS_MAX = 24
NESTED_MAX = 20
TAGS = {
    *("a", "blockquote", "br", "code", "div", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span"),
    *("strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    *formulas.TAGS,
}
ATTRIBUTES: dict[str, set[str]] = {"*": set(), "a": {"href"}, "ol": {"start"}, **formulas.ATTRIBUTES}
BOXES = {"[ ] ": "\u2610", "[x] ": "\u2611"}  # of a list of tasks
LANGUAGES = {alias for _, aliases, _, _ in get_all_lexers(plugins=False) for alias in aliases}
CELL_CLASSES = {"align-center", "align-right"}
CLASSES = {
    "div": {"code", "scroll"},
    "li": {"task"},
    "span": {"language", *filter(None, STANDARD_TYPES.values())},
    "td": CELL_CLASSES,
    "th": CELL_CLASSES,
}
FOCUSABLE = {"pre": {"tabindex": {"0"}}, "div": {"tabindex": {"0"}}}  # what scrolls must be reachable by keyboard


def import_lexers() -> None:
    """Import the lexer of every language, and the modules that lexers import when they are first used."""
    for module in pkgutil.iter_modules(pygments.lexers.__path__, "pygments.lexers."):
        importlib.import_module(module.name)


class HtmlRenderer:
    """Renders Markdown, as a whole or as far as its blocks are complete."""

    def __init__(self) -> None:
        options = {"html": False, "linkify": False, "typographer": False, "maxNesting": NESTED_MAX}
        self._markdown = MarkdownIt("commonmark", options, renderer_cls=Html)
        self._markdown.enable(["table", "strikethrough"])
        self._markdown.disable("reference")  # a definition would apply to blocks that are rendered in other tasks
        self._markdown.inline.ruler.before("escape", "formula", formulas.take_formula)
        self._markdown.core.ruler.push("tasks", _mark_tasks)
        self._markdown.core.ruler.push("safe_links", _check_links)
        self._cleaner = nh3.Cleaner(
            tags=TAGS,
            clean_content_tags={"script", "style"},
            attributes=ATTRIBUTES,
            attribute_filter=_keep_attribute,
            allowed_classes=CLASSES,
            tag_attribute_values=FOCUSABLE,
            url_schemes={"http", "https", "mailto"},
            link_rel="noopener noreferrer nofollow",
        )

    def render(self, source: str) -> str:
        return self._cleaner.clean(self._markdown.render(source))

    def render_complete(self, task: RenderTask) -> Rendered:
        """The blocks of a task that no further line can change, rendered together.

        They look like the same blocks of the whole text: a block ends where all containers are closed. An open code
        block is rendered in parts once it is half as long as a task may be.
        """
        source = task.fence + task.text
        if task.is_end:
            return Rendered(self.render(source), len(task.text))
        lines = [line for line in LINE.findall(source) if line.endswith(("\r", "\n"))]
        complete, fence = self._complete_lines(lines)
        if fence and len(task.text) > TASK_CHARS_MAX // 2:
            return Rendered(self.render(source), len(task.text), fence)
        complete_source = "".join(lines[:complete])
        if not complete_source:
            return Rendered("", 0, task.fence)
        return Rendered(self.render(complete_source), len(complete_source) - len(task.fence))

    def _complete_lines(self, lines: Sequence[str]) -> tuple[int, str]:
        """How many lines belong to complete blocks, and the opening line of the code block that is open."""
        tokens: list[Token] = []
        self._markdown.block.parse("".join(f"{line.rstrip(LINE_END)}\n" for line in lines), self._markdown, {}, tokens)
        blocks = [token for token in tokens if token.map and token.level == 0]
        if not blocks:
            return len(lines), ""  # blank lines
        last = blocks[-1]
        assert last.map
        start, end = last.map
        if last.type == "fence":
            is_open = last.content.count("\n") == end - start - 1  # a closing line is not part of the content
            return (start, lines[start]) if is_open else (len(lines), "")
        is_complete = last.type in ONE_LINE or (last.type in ENDED_BY_BLANK and end < len(lines))
        return (len(lines) if is_complete else start), ""


class Html(RendererHTML):
    """The elements whose HTML differs from markdown-it's."""

    def fence(self, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType) -> str:
        words = tokens[index].info.split()
        language = words[0][:LANGUAGE_CHARS_MAX] if words else ""
        label = f'<span class="language">{escape(language)}</span>' if language else ""
        return _code(_colour(tokens[index].content, language), label)

    def code_block(self, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType) -> str:
        return _code(escape(tokens[index].content))

    def heading_open(self, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType) -> str:
        return f"<{_heading(tokens[index])}>"

    def heading_close(self, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType) -> str:
        return f"</{_heading(tokens[index])}>\n"

    def table_open(self, _tokens: Sequence[Token], _index: int, _options: OptionsDict, _env: EnvType) -> str:
        return '<div class="scroll" tabindex="0"><table>\n'

    def table_close(self, _tokens: Sequence[Token], _index: int, _options: OptionsDict, _env: EnvType) -> str:
        return "</table></div>\n"

    def th_open(self, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType) -> str:
        token = tokens[index]
        name = f"align-{str(token.attrGet('style') or '').rpartition(':')[2]}"
        return f'<{token.tag} class="{name}">' if name in CELL_CLASSES else f"<{token.tag}>"

    td_open = th_open

    def formula(self, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType) -> str:
        return formulas.to_mathml(tokens[index].content)


def _code(html: str, label: str = "") -> str:
    return f'<div class="code">{label}<pre tabindex="0"><code>{html}</code></pre></div>\n'


def _heading(token: Token) -> str:
    return f"h{min(int(token.tag[1]) + 2, 6)}"


def _colour(code: str, language: str) -> str:
    name = language.lower()
    if name not in LANGUAGES or len(code) > COLOURED_CHARS_MAX:
        return escape(code)
    lexer = get_lexer_by_name(name, stripnl=False)
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))


def _mark_tasks(state: StateCore) -> None:
    """Show `[ ]` and `[x]` at the start of a list item as boxes."""
    for item, _, inline in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        if item.type == "list_item_open" and inline.children and inline.children[0].type == "text":
            text = inline.children[0]
            if box := BOXES.get(text.content[:4].lower()):
                text.content = f"{box} {text.content[4:]}"
                item.attrSet("class", "task")


def _check_links(state: StateCore) -> None:
    """Turn pictures into links, and links to addresses that are not allowed into text."""
    for token in state.tokens:
        if token.children and any(one.type in {"link_open", "image"} for one in token.children):
            token.children = _without_pictures(token.children)


def _without_pictures(children: list[Token]) -> list[Token]:
    kept: list[Token] = []
    in_link: list[bool] = []  # for each open link, whether it is kept
    for token in children:
        if token.type == "link_open":
            in_link.append(_is_allowed(token.attrGet("href")))
            if in_link[-1]:
                kept.append(token)
        elif token.type == "link_close":
            if in_link.pop():
                kept.append(token)
        elif token.type == "image":
            kept += _link_to_picture(token, is_in_link=bool(in_link))
        else:
            kept.append(token)
    return kept


def _link_to_picture(token: Token, *, is_in_link: bool) -> list[Token]:
    text = Token("text", "", 0, content=token.content or "picture")
    if is_in_link or not _is_allowed(token.attrGet("src")):
        return [text]
    return [Token("link_open", "a", 1, attrs={"href": str(token.attrGet("src"))}), text, Token("link_close", "a", -1)]


def _is_allowed(address: object) -> bool:
    return isinstance(address, str) and len(address) <= LINK_CHARS_MAX and address.lower().startswith(SCHEMES)


def _keep_attribute(tag: str, name: str, value: str) -> str | None:
    if (tag, name) == ("a", "href"):
        return value if _is_allowed(value) else None
    if (tag, name) == ("ol", "start"):
        return value if value.isdecimal() else None
    return value
