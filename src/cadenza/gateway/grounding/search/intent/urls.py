"""Finds the web addresses in a message. An address inside code is not one that the person wants to have read."""

import re
from urllib.parse import urlsplit

DOMAIN = r"(?:[a-z0-9-]{1,63}\.){1,4}(?:com|org|net|io|ai|dev|edu|gov|info|eu|uk|de|fr|es|it|nl|ch|at|jp|cn|ca)/"
REST = r"[^\s<>\"`|\\^{}\u3000-\u303f\uff00-\uff0f]+"
URL = re.compile(rf"(?:https?://|(?<![\w.@/-])(?:www\.|{DOMAIN})){REST}", re.IGNORECASE)
URLS_MAX = 3
URL_CHARS_MAX = 2000
CLOSING = {")": "(", "]": "["}
COMMANDS = ("curl ", "wget ", "git clone ", "fetch(", "pip install ", "docker ")
MARKS = ".,;:!?'*_~…"
QUOTES = "\"'`"


def find_urls(text: str, edge_chars: int | None = None) -> tuple[str, ...]:
    """The addresses in a text, or only those within so many characters of its beginning or its end."""
    if not _may_have_urls(text):
        return ()
    found = dict[str, None]()
    for match in URL.finditer(text):
        if edge_chars is not None and edge_chars <= match.start() and match.end() <= len(text) - edge_chars:
            continue
        if not _is_in_code(text, match.start()) and (url := _cleaned(match.group())) is not None:
            found[url] = None
            if len(found) == URLS_MAX:
                break
    return tuple(found)


def without_urls(text: str) -> str:
    return URL.sub(" ", text) if _may_have_urls(text) else text


def _may_have_urls(text: str) -> bool:
    return "/" in text or "www." in text.lower()


def _is_in_code(text: str, start: int) -> bool:
    """Whether a command, an assignment or a call stands before the address on its line."""
    before = text[max(start - 200, 0) : start].rpartition("\n")[2]
    if before.endswith("`") or (before[-1:] in QUOTES and before[-2:-1] in "(=[{:" and before[-2:-1]):
        return True
    return any(command in before for command in COMMANDS)


def _cleaned(raw: str) -> str | None:
    if len(raw) > URL_CHARS_MAX:
        return None
    url = _without_trailing_marks(raw)
    if not url.lower().startswith(("http://", "https://")):
        url = f"https://{url}"
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or "@" in parts.netloc or host == "localhost" or host.startswith("127.") or host == "::1":
        return None
    return url


def _without_trailing_marks(url: str) -> str:
    """Without the marks of the sentence around it. A closing bracket stays if the address has the opening one."""
    unopened = {closing: url.count(closing) - url.count(opening) for closing, opening in CLOSING.items()}
    end = len(url)
    while end and (url[end - 1] in MARKS or unopened.get(url[end - 1], 0) > 0):
        if url[end - 1] in unopened:
            unopened[url[end - 1]] -= 1
        end -= 1
    return url[:end]
