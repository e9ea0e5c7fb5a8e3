"""From the JSON of an engine to hits. A result that cannot be used is left out; the others stay.

Only http and https addresses pass, each page once. Titles and snippets are plain text of a bounded length.
"""

from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from cadenza.grounding.search.engines.text import plain_text
from cadenza.grounding.search.records import EngineFailed, Hit

TITLE_CHARACTERS_MAX = 200
SNIPPET_CHARACTERS_MAX = 600
URL_CHARACTERS_MAX = 2000
RESULTS_READ = 100  # further results are not looked at

Answer = TypeVar("Answer")


class _Result(msgspec.Struct):
    """A result of any engine. SearXNG and Tavily call the snippet `content`, Brave calls it `description`."""

    url: str
    title: str | None = None
    content: str | None = None
    description: str | None = None


def decode_answer(body: bytes, answer: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.ValidationError:
        raise EngineFailed("malformed") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineFailed("not_json") from None


def read_hits(results: list[msgspec.Raw], count: int) -> list[Hit]:
    """The first hits, `count` at most, in the order of the engine."""
    hits, seen = list[Hit](), set[str]()
    for raw in results[:RESULTS_READ]:
        if len(hits) == count:
            break
        result = _read_result(raw)
        address = _web_address(result.url) if result else None
        if not result or not address:
            continue
        page = address._replace(fragment="").geturl()
        if page not in seen:
            seen.add(page)
            hits.append(_hit(result, address))
    return hits


def _read_result(raw: msgspec.Raw) -> _Result | None:
    try:
        return msgspec.json.decode(raw, type=_Result)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _web_address(url: str) -> SplitResult | None:
    """None for what is not the address of a page on the web, or too long, or has a password in it."""
    if len(url) > URL_CHARACTERS_MAX or not url.isprintable() or " " in url:
        return None
    try:
        address = urlsplit(url)
        is_web = address.scheme in {"http", "https"} and bool(address.hostname) and address.port != 0
    except ValueError:
        return None
    return address if is_web and "@" not in address.netloc else None


def _hit(result: _Result, address: SplitResult) -> Hit:
    title = plain_text(result.title or "", TITLE_CHARACTERS_MAX)
    snippet = plain_text(result.content or result.description or "", SNIPPET_CHARACTERS_MAX)
    return Hit(url=result.url, title=title or address.hostname or "", snippet=snippet)
