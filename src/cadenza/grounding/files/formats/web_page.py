"""HTML, as a file or as a web page, to text."""

import re

from cadenza.grounding.files.formats.html_text import HtmlText, ShownText
from cadenza.grounding.files.formats.html_tree import Element, parse_html
from cadenza.grounding.files.formats.limits import Allowance
from cadenza.grounding.files.formats.main_text import MainText, title_of
from cadenza.grounding.files.formats.text import clean, decode, known_charset

HEAD_BYTES = 4096
META_CHARSET = re.compile(rb"""<meta[^>]{0,400}?charset\s*=\s*["']?\s*([a-zA-Z0-9_:.-]{1,40})""", re.IGNORECASE)
TITLE_CHARS_MAX = 300


def decode_html(data: bytes, charset: str = "") -> str:
    """By its byte order mark, else by what the server said, else by what the page says, else by its bytes."""
    said = known_charset(charset) if charset else None
    if said is None and (meta := META_CHARSET.search(data[:HEAD_BYTES])):
        said = known_charset(meta[1].decode("ascii"))
        if said and said.startswith("utf-16"):
            said = "utf-8"  # it would not have been found
    return clean(decode(data, said))


def html_text(page: str, allowance: Allowance) -> str:
    """Everything that the page shows. A page that shows nothing until its scripts run gives what it hides."""
    return _shown(parse_html(page, allowance.limits.elements_max), allowance)


def html_file(page: str, allowance: Allowance) -> str:
    """Everything that the page shows, after its title."""
    root = parse_html(page, allowance.limits.elements_max)
    text, title = _shown(root, allowance), title_of(root)[:TITLE_CHARS_MAX]
    is_heading = f"# {title}\n" in f"{text}\n"
    return text if is_heading or not title or not text else f"Title: {title}\n\n{text}"


def _shown(root: Element, allowance: Allowance) -> str:
    text = ShownText().collect(root) or HtmlText().collect(root)
    allowance.take_chars(len(text))
    return text


def main_text(page: str, allowance: Allowance) -> tuple[str, str]:
    """The title of the page, and its main text."""
    root = parse_html(page, allowance.limits.elements_max)
    text = MainText(root).extract()
    allowance.take_chars(len(text))
    return title_of(root)[:TITLE_CHARS_MAX], text
