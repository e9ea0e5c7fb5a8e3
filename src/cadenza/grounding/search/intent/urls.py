"""Finds the web addresses in a message that the person wants to have read.

Addresses inside code are left out. So are those of this machine: they are mostly part of a developer's text, unless the
operator lets them be read.
"""

import re
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from cadenza.grounding.search.pages.addresses import Network

DOMAIN = r"(?:[a-z0-9-]{1,63}\.){1,4}(?:com|org|net|io|ai|dev|edu|gov|info|eu|uk|de|fr|es|it|nl|ch|at|jp|cn|ca)/"
REST = r"[^\s<>\"`|\\^{}\u3000-\u303f\uff00-\uff0f]+"
URL = re.compile(rf"(?:https?://|(?<![\w.@/-])(?:www\.|{DOMAIN})){REST}", re.IGNORECASE)
URLS_MAX = 20
URL_CHARS_MAX = 2000
CLOSING = {")": "(", "]": "["}
COMMANDS = ("curl ", "wget ", "git clone ", "fetch(", "pip install ", "docker ")
LOCALHOST = ("127.0.0.1", "::1")
MARKS = ".,;:!?'*_~…"
QUOTES = "\"'`"


def find_urls(text: str, edge_chars: int | None = None, loopback: Sequence[Network] = ()) -> tuple[str, ...]:
    """The addresses in a text, or only those within so many characters of its beginning or its end.

    `loopback` are the networks of this machine that may be read.
    """
    if not _may_have_urls(text):
        return ()
    found = dict[str, None]()
    for match in URL.finditer(text):
        if edge_chars is not None and edge_chars <= match.start() and match.end() <= len(text) - edge_chars:
            continue
        if not _is_in_code(text, match.start()) and (url := _cleaned(match.group(), loopback)) is not None:
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


def _cleaned(raw: str, loopback: Sequence[Network]) -> str | None:
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
    if not host or "@" in parts.netloc or (_is_loopback(host) and not _is_allowed(host, loopback)):
        return None
    return url


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _is_allowed(host: str, networks: Sequence[Network]) -> bool:
    try:
        addresses = [ip_address(one) for one in (LOCALHOST if host == "localhost" else (host,))]
    except ValueError:  # only the beginning is that of an address
        return False
    return any(address in network for address in addresses for network in networks)


def _without_trailing_marks(url: str) -> str:
    """Without the marks of the sentence around it. A closing bracket stays if the address has the opening one."""
    unopened = {closing: url.count(closing) - url.count(opening) for closing, opening in CLOSING.items()}
    end = len(url)
    while end and (url[end - 1] in MARKS or unopened.get(url[end - 1], 0) > 0):
        if url[end - 1] in unopened:
            unopened[url[end - 1]] -= 1
        end -= 1
    return url[:end]
