"""HTML to a small tree of what browsers show, without scripts, styles and visible inline formatting.

Every step is linear in the size of the page, and the tree has a limited depth: deeper elements are taken as part of
the deepest allowed one. There are no entities but those of HTML, and nothing is fetched.
"""

import re
from html import unescape

from cadenza.parts.grounding.files.records import Unreadable
from cadenza.parts.grounding.word_set import word_set

DEPTH_MAX = 200
TAG_CHARS_MAX = 20_000
NAME_CHARS_MAX = 64
STRAYS_MAX = 10_000  # stray end tags; after these, an end tag is compared with the last open element only
TAG = re.compile(r"""</?([a-zA-Z][^\s/>]*+)((?:[^>"']|"[^"]*"|'[^']*')*+)>""")
BRACKET = re.compile(r"<(?=/?[a-zA-Z]|[!?])")
NAME = re.compile(r"</?([a-zA-Z][^\s/>]*+)")
ATTRIBUTE = re.compile(r"""([^\s"'>/=]++)(?:\s*+=\s*+("[^"]*"|'[^']*'|[^\s"'>]++))?+""")
HIDES = re.compile(r"hidden|display\s*+:\s*+none", re.IGNORECASE)  # a quick test: the attributes decide
INVISIBLE = re.compile(r"display\s*+:\s*+none|visibility\s*+:\s*+hidden", re.IGNORECASE)
VOID = word_set("area base br col embed hr img input link meta param source track wbr")
INLINE = word_set("""
    abbr acronym b bdi bdo big cite data del dfn em font i ins kbd mark nobr q rp ruby s samp small span strike strong
    sub sup time tt u var wbr center
    """)
RAW = {tag: re.compile(f"</{tag}", re.IGNORECASE) for tag in ("script", "style", "title", "textarea", "xmp", "iframe")}
DROPPED_RAW = frozenset({"script", "style", "iframe"})
PARAGRAPH_ENDERS = word_set("""
    address article aside blockquote details div dl fieldset figure footer form h1 h2 h3 h4 h5 h6 header hr main nav ol
    p pre section table ul
    """)
CLOSED_BY = {  # the open elements that a start tag closes, unless one of the second set is between them
    "li": (frozenset({"li"}), frozenset({"ul", "ol"})),
    "dt": (frozenset({"dt", "dd"}), frozenset({"dl"})),
    "dd": (frozenset({"dt", "dd"}), frozenset({"dl"})),
    "tr": (frozenset({"tr", "td", "th"}), frozenset({"table"})),
    "td": (frozenset({"td", "th"}), frozenset({"tr", "table"})),
    "th": (frozenset({"td", "th"}), frozenset({"tr", "table"})),
    "option": (frozenset({"option"}), frozenset({"select"})),
}
TABLE_PARTS = frozenset({"table", "thead", "tbody", "tfoot", "tr", "td", "th", "caption"})
TABLE_SCOPE = frozenset({"td", "th", "table"})


class Element:
    """An element and its children: elements, and texts with their entities decoded."""

    __slots__ = ("_raw", "children", "tag")

    def __init__(self, tag: str, raw: str = "") -> None:
        self.tag = tag
        self.children: list[Element | str] = []
        self._raw = raw

    def attributes(self) -> dict[str, str]:
        """Of duplicates, the first counts, as in a browser."""
        found: dict[str, str] = {}
        for match in ATTRIBUTE.finditer(self._raw):
            found.setdefault(match[1].lower(), unescape((match[2] or "").strip("\"'")))
        return found

    def says(self, word: str) -> bool:
        """Whether a word is anywhere in its tag: much faster than parsing the attributes."""
        return word in self._raw

    def is_hidden(self) -> bool:
        """Whether its own attributes hide it. The body of a page never counts: scripts often show it later."""
        if not self._raw or not HIDES.search(self._raw) or self.tag in {"html", "body"}:
            return False
        attributes = self.attributes()
        return "hidden" in attributes or bool(INVISIBLE.search(attributes.get("style", "")))

    def find(self, tag: str) -> "Element | None":
        for child in self.children:
            if isinstance(child, Element):
                found = child if child.tag == tag else child.find(tag)
                if found:
                    return found
        return None


class TreeBuilder:
    """The open elements while a page is read."""

    def __init__(self, elements_max: int) -> None:
        self.root = Element("html")
        self._open = [self.root]
        self._too_deep = 0  # open elements beyond the depth
        self._left = elements_max
        self._strays = 0  # end tags without an open element
        self._hidden_from = 0  # the depth of the outermost hidden inline element; 0 if there is none

    def takes_inline(self, tag: str, raw: str) -> bool:
        """Whether an inline tag is kept: it hides text, or is inside an inline element that does."""
        if self._hidden_from and len(self._open) >= self._hidden_from:
            return True
        is_hidden = bool(raw) and len(self._open) < DEPTH_MAX and Element(tag, raw).is_hidden()
        self._hidden_from = len(self._open) + 1 if is_hidden else 0
        return is_hidden

    def add_text(self, text: str) -> None:
        if text:
            self._open[-1].children.append(unescape(text) if "&" in text else text)

    def start(self, tag: str, raw: str) -> None:
        if len(self._open) >= DEPTH_MAX and tag not in VOID:
            self._too_deep += 1
            self.add_text(" ")
            return
        if tag in PARAGRAPH_ENDERS and self._open[-1].tag == "p":
            self._open.pop()
        elif tag in CLOSED_BY:
            self._close_before(*CLOSED_BY[tag])
        self._left -= 1
        if self._left < 0:
            raise Unreadable("it has too many elements")
        element = Element(tag, raw)
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def end(self, tag: str) -> None:
        if self._too_deep:
            self._too_deep -= 1
            return
        depth = len(self._open) if self._strays < STRAYS_MAX else 2
        for index in range(len(self._open) - 1, len(self._open) - depth, -1):
            opened = self._open[index].tag
            if opened == tag:
                del self._open[index:]
                return
            if opened in TABLE_SCOPE and tag not in TABLE_PARTS:
                break  # a stray end tag inside a cell does not end the table
        self._strays += 1

    def _close_before(self, closed: frozenset[str], stops: frozenset[str]) -> None:
        keep = len(self._open)
        for index in range(len(self._open) - 1, 0, -1):
            tag = self._open[index].tag
            if tag in closed:
                keep = index
            elif tag in stops:
                break
        del self._open[keep:]


def parse_html(page: str, elements_max: int) -> Element:
    builder, position = TreeBuilder(elements_max), 0
    tags_end = page.rfind(">") + 1
    while bracket := BRACKET.search(page, position, tags_end):
        builder.add_text(page[position : bracket.start()])
        position = _take_tag(page, bracket.start(), builder)
    builder.add_text(page[position:])
    return builder.root


def _take_tag(page: str, at: int, builder: TreeBuilder) -> int:
    """Take the tag or comment that begins at `at`; returns where it ends."""
    if page.startswith("<!--", at):
        end = page.find("-->", at + 4)
        return len(page) if end < 0 else end + 3
    if page.startswith(("<!", "<?"), at):
        return page.find(">", at) + 1
    if match := TAG.match(page, at, at + TAG_CHARS_MAX):
        name, raw, after = match[1].lower(), match[2], match.end()
    else:  # a quote is never closed, or the tag is enormous
        name, raw, after = NAME.split(page[at : at + NAME_CHARS_MAX])[1].lower(), "", page.find(">", at) + 1
    if name in INLINE and not builder.takes_inline(name, raw):
        return after
    if page[at + 1] == "/":
        builder.end(name)
        return after
    builder.start(name, raw)
    return _take_raw(page, name, after, builder) if name in RAW else after


def _take_raw(page: str, name: str, at: int, builder: TreeBuilder) -> int:
    """Take the content of an element that cannot contain tags; returns where its end tag ends."""
    end = RAW[name].search(page, at)
    stop = end.start() if end else len(page)
    if name not in DROPPED_RAW:
        builder.add_text(page[at:stop])
    builder.end(name)
    return page.find(">", stop) + 1 or len(page)
