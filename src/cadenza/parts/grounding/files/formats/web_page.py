"""HTML to text: everything that a file shows, or the main text of a web page without what surrounds it.

To find the main text, paragraphs with sentences vote for the elements around them, and links vote against. Navigation,
banners, forms and lists of links are left out by their tags, their names and the share of their text that is in links.
"""

import re

import msgspec

from cadenza.parts.grounding.files.formats.html_text import HIDDEN, HtmlText, ShownText, texts
from cadenza.parts.grounding.files.formats.html_tree import INVISIBLE, Element, parse_html
from cadenza.parts.grounding.files.formats.source import ReadBudget, SourceFile
from cadenza.parts.grounding.files.formats.text import clean, decode, known_charset
from cadenza.parts.grounding.files.records import PageText, Section

HEAD_BYTES = 4096
META_CHARSET = re.compile(rb"""<meta[^>]{0,400}?charset\s*=\s*["']?\s*([a-zA-Z0-9_:.-]{1,40})""", re.IGNORECASE)
TITLE_CHARS_MAX = 300
HTML_NAMES = (".html", ".htm", ".xhtml")
HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
HTML_START = re.compile(
    rb"(?:<!--.{0,1000}?-->\s*|<\?xml[^>]{0,200}>\s*)*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)

NEVER = frozenset({"nav", "aside", "footer", "form", "menu", "menuitem"})
ROLES = frozenset({"navigation", "banner", "contentinfo", "complementary", "dialog", "alertdialog", "search", "menu"})
UNLIKELY = re.compile(
    r"(?:^|[\W_])(?:ad|ads|advert\w*|banner|bio|breadcrumbs?|byline|captcha|comments?|comment-?list|community|consent|"
    r"cookies?\w*|copyright|disqus|disclaimer|footer|gdpr|hidden|login|masthead|menu|meta|modal|more-?\w*|nav\w*|"
    r"newsletter\w*|outbrain|pager|pagination|paywall|popup|promo\w*|read-?next|recirc\w*|recommend\w*|related\w*|"
    r"shar(?:e|ing)\w*|sidebar\w*|signup|social\w*|sponsor\w*|subscri\w*|syndication|taboola|tags?|tag-?list|"
    r"toolbar|trending|widget\w*|visually-?hidden|sr-only|screen-reader\w*|skip\w*)(?:$|[\W_])",
    re.IGNORECASE,
)
LIKELY = re.compile(r"article|body|content|entry|main|post(?!-?meta)|story|text|column", re.IGNORECASE)
VOTERS = frozenset({"p", "pre", "blockquote", "td", "li", "dd"})
CONTAINERS = frozenset({"article", "body", "div", "main", "section", "td", "blockquote", "html"})
PARAGRAPH_CHARS_MIN, PARAGRAPH_CHARS_MAX = 25, 20_000
MAIN_CHARS_MIN = 250  # if the main text is shorter, the whole page may be taken
LINK_SHARE_MAX = 0.4
DROPPED_SHARE_MAX = 0.4  # an element with a larger share of the text is not left out because of its name
SPACES = re.compile(r"\s+")
COMMA = re.compile("[,،、，.。!?！？]")
DROPPED_FOR_LINKS = frozenset({"ul", "ol", "div", "section", "table", "dl", "header", "p", "h2", "h3", "h4"})


def decode_html(data: bytes, charset: str = "") -> str:
    """Decode by the byte order mark, else the charset of the server, else that of the page, else a guess."""
    said = known_charset(charset) if charset else None
    if said is None and (meta := META_CHARSET.search(data[:HEAD_BYTES])):
        said = known_charset(meta[1].decode("ascii"))
        if said and said.startswith("utf-16"):
            said = "utf-8"  # in UTF-16, the search above would have found nothing
    return clean(decode(data, said))


def html_text(page: str, budget: ReadBudget) -> str:
    """Everything that the page shows. If all of it is hidden until scripts run, the hidden text."""
    return _shown(parse_html(page, budget.limits.elements_max), budget)


def is_html(file: SourceFile) -> bool:
    start = file.start.removeprefix(b"\xef\xbb\xbf").lstrip()
    return bool(HTML_START.match(start)) or file.name.endswith(HTML_NAMES) or file.media_type in HTML_TYPES


def read_html(file: SourceFile) -> list[Section]:
    """Everything that an HTML file shows, after its title."""
    root = parse_html(decode_html(file.data), file.budget.limits.elements_max)
    text, title = _shown(root, file.budget), title_of(root)[:TITLE_CHARS_MAX]
    is_heading = f"# {title}\n" in f"{text}\n"
    return [Section("", text if is_heading or not title or not text else f"Title: {title}\n\n{text}")]


def read_main_text(file: SourceFile) -> PageText:
    """The title of a web page, and its main text."""
    root = parse_html(decode_html(file.data, file.charset), file.budget.limits.elements_max)
    text = MainText(root).extract()
    file.budget.take_chars(len(text))
    return PageText(title_of(root), [Section("", text)])


def _shown(root: Element, budget: ReadBudget) -> str:
    text = ShownText().collect(root) or HtmlText().collect(root)
    budget.take_chars(len(text))
    return text


class Weight(msgspec.Struct):
    """How much text an element has, how much of it is in links, and how many commas and ends of sentences."""

    chars: int = 0
    links: int = 0
    commas: int = 0

    @property
    def link_share(self) -> float:
        return self.links / self.chars if self.chars else 0.0


class MainText:
    """The weights and votes of one page."""

    def __init__(self, root: Element) -> None:
        self._root = root
        self._weights: dict[int, Weight] = {}
        self._scores: dict[int, float] = {}
        self._candidates: dict[int, Element] = {}
        self._parents: dict[int, Element] = {}
        self._unlikely: dict[int, int] = {}  # characters in an element that does not look like main text
        self._dropped: set[int] = set()

    def extract(self) -> str:
        total = self._count(self._root)
        self._dropped = {key for key, chars in self._unlikely.items() if chars < DROPPED_SHARE_MAX * total}
        self._weigh(self._root, is_link=False)
        self._vote(self._root, [])
        best = self._best()
        found = HtmlText(self._is_wanted).collect(best) if best else ""
        if len(found) < MAIN_CHARS_MIN:
            whole = HtmlText(lambda one: one.tag not in NEVER).collect(self._root)
            return whole if len(whole) > 2 * len(found) else found
        return found

    def _count(self, element: Element) -> int:
        """The number of characters in an element. Elements that do not look like main text are noted."""
        if element.tag in HIDDEN:
            self._unlikely[id(element)] = 0
            return 0
        chars = 0
        for child in element.children:
            chars += len(child.strip()) if isinstance(child, str) else self._count(child)
        if self._is_unlikely(element):
            self._unlikely[id(element)] = chars
        return chars

    def _weigh(self, element: Element, *, is_link: bool) -> Weight:
        weight = Weight()
        if id(element) in self._dropped:
            return weight
        is_link = is_link or element.tag == "a"
        for child in element.children:
            if isinstance(child, str):
                chars = len(SPACES.sub(" ", child.strip()))
                inner = Weight(chars, chars if is_link else 0, len(COMMA.findall(child)))
            else:
                inner = self._weigh(child, is_link=is_link)
                self._parents[id(child)] = element
            weight.chars += inner.chars
            weight.links += inner.links
            weight.commas += inner.commas
        self._weights[id(element)] = weight
        return weight

    def _is_unlikely(self, element: Element) -> bool:
        if element.tag in NEVER:
            return True
        if element.tag in {"html", "body", "article", "main", "p", "br", "a", "td", "tr", "tbody", "img"}:
            return False
        attributes = element.attributes()
        if not attributes:
            return False
        if attributes.get("role", "").lower() in ROLES or attributes.get("aria-hidden") == "true":
            return True
        if "hidden" in attributes or INVISIBLE.search(attributes.get("style", "")):
            return True
        names = f"{attributes.get('class', '')} {attributes.get('id', '')}"[:400]
        return bool(UNLIKELY.search(names)) and attributes.get("itemprop") != "articleBody"

    def _vote(self, element: Element, around: list[Element]) -> None:
        """Each paragraph adds its score to the containers around it: all to the nearest, less to the next two."""
        if id(element) in self._dropped:
            return
        weight = self._weights[id(element)]
        if self._is_voter(element) and weight.chars >= PARAGRAPH_CHARS_MIN:
            commas = weight.commas if weight.chars < PARAGRAPH_CHARS_MAX else 0
            score = 1 + min(commas, 10) + min(weight.chars / 100, 3)
            score *= 1 - weight.link_share
            for container, share in zip(reversed(around[-3:]), (1.0, 0.5, 0.2), strict=False):
                key = id(container)
                if key not in self._candidates:
                    self._candidates[key] = container
                    self._scores[key] = self._bonus(container)
                self._scores[key] += score * share
        inner = [*around[-3:], element] if element.tag in CONTAINERS else around
        for child in element.children:
            if isinstance(child, Element):
                self._vote(child, inner)

    def _is_voter(self, element: Element) -> bool:
        if element.tag in VOTERS:
            return True
        if element.tag != "div":
            return False
        return all(isinstance(child, str) or child.tag in {"a", "br", "img", "code"} for child in element.children)

    def _bonus(self, element: Element) -> float:
        attributes = element.attributes()
        names = f"{attributes.get('class', '')} {attributes.get('id', '')}"
        bonus = 10.0 if LIKELY.search(names) else 0.0
        bonus += {"article": 15.0, "main": 10.0}.get(element.tag, 0.0)
        return bonus + (30.0 if "articlebody" in attributes.get("itemprop", "").lower() else 0.0)

    def _best(self) -> Element | None:
        def final(key: int) -> float:
            return self._scores[key] * (1 - self._weights[key].link_share)

        if not self._candidates:
            return None
        key = max(self._candidates, key=final)
        best = self._candidates[key]
        while (parent := self._parents.get(id(best))) and parent.tag != "html":
            score = self._scores.get(id(parent), 0.0) * (1 - self._weights[id(parent)].link_share)
            if not (score > 0.85 * final(key) and parent.tag != "body"):
                break
            best = parent
        return best

    def _is_wanted(self, element: Element) -> bool:
        if id(element) in self._dropped:
            return False
        weight = self._weights.get(id(element))
        if weight is None or element.tag not in DROPPED_FOR_LINKS:
            return True
        return not (weight.link_share > LINK_SHARE_MAX and weight.chars < 2_000)


def title_of(root: Element) -> str:
    """The title of a page: its `og:title`, else its title element, else its first heading."""
    head = root.find("head") or root
    for meta in (child for child in head.children if isinstance(child, Element) and child.tag == "meta"):
        attributes = meta.attributes()
        if attributes.get("property", attributes.get("name", "")).lower() == "og:title" and attributes.get("content"):
            return " ".join(attributes["content"].split())
    for tag in ("title", "h1"):
        if (found := root.find(tag)) and (text := " ".join("".join(texts(found)).split())):
            return text
    return ""
