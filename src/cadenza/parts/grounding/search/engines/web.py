"""What the search engines on the web share: one HTTP exchange, and from its JSON to hits.

An exchange is bounded in time and bytes, and its answer is JSON or a failure. A redirect is not followed: the query
would go to an address that the operator did not name. A result that cannot be used is left out, and the others stay.
Only http and https addresses pass, each page once. Titles and snippets become plain text of a bounded length.
"""

import asyncio
import html
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from cadenza.core.content import Content
from cadenza.http.client import HttpClient, OutOfResources, Unreachable
from cadenza.http.client_connection import Broken, ClientConnection, read_body
from cadenza.parts.grounding.search.records import EngineFailed, Hit

BODY_BYTES_MAX = 1024 * 1024
ERROR_BYTES_MAX = 4 * 1024
RESULTS_READ = 100  # further results are not looked at
TITLE_CHARS_MAX = 200
SNIPPET_CHARS_MAX = 600
URL_CHARS_MAX = 2000
MARKUP_FACTOR = 4  # markup is read up to this multiple of the wanted length: tags and entities take room
REASONS = {
    **dict.fromkeys((400, 413, 414, 422), "refused"),
    **dict.fromkeys((401, 403), "key_refused"),
    **dict.fromkeys((404, 405), "not_found"),
    402: "quota",
}
JOINERS = "\u200c\u200d"  # they are part of Persian words and of emoji

# The input is short, so no pattern takes long.
_HIDDEN = re.compile(r"<!--.*?(?:-->|$)|<(script|style)\b.*?(?:</\1\s*>|$)", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"</?[a-zA-Z!?][^<>]*(?:>|$)")

Answer = TypeVar("Answer")
Headers = Mapping[bytes, bytes]
EngineRequest = tuple[str, str, bytes]  # method, path and body


class ResultList(Content, msgspec.Struct):
    """The answer of SearXNG and of Tavily, and the web results in one of Brave's."""

    results: list[msgspec.Raw]


def decode_answer(body: bytes, answer: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.ValidationError:
        raise EngineFailed("malformed") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineFailed("not_json") from None


def decode_results(body: bytes) -> list[msgspec.Raw]:
    return decode_answer(body, ResultList).results


class EngineApi(msgspec.Struct, frozen=True):
    """What differs between the engines on the web.

    `request` makes the request for a query of `make_query` and a number of results.
    """

    name: str
    request: Callable[[str, int], EngineRequest]
    headers: Callable[[str], dict[str, str]]  # of each request, with the key
    results: Callable[[bytes], list[msgspec.Raw]] = decode_results  # EngineFailed if it is not an answer of this engine
    reasons: dict[int, str] = {}  # for statuses that mean something else than usually
    key_refused: bytes = b""  # in the body of an error that is about the key


class WebEngine:
    """An engine that is asked over HTTP."""

    def __init__(self, api: EngineApi, http: HttpClient, timeout_s: float) -> None:
        self.name = api.name
        self._api = api
        self._http = http
        self._timeout_s = timeout_s

    async def search(self, query: str, count: int) -> list[Hit]:
        if not query:
            return []
        return read_hits(self._api.results(await self._ask(self._api.request(query, count))), count)

    async def close(self) -> None:
        await self._http.close()

    async def _ask(self, request: EngineRequest) -> bytes:
        """The body of the response, whose content type is JSON."""
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            method, path, body = request
            response = await self._http.send(self._http.head(method, path), body, self._timeout_s, deadline_s)
            try:
                return await self._read(response, deadline_s)
            finally:
                self._http.release(response)
        except TimeoutError:
            raise EngineFailed("timeout") from None
        except OutOfResources:
            raise EngineFailed("no_files") from None
        except Unreachable:
            raise EngineFailed("unreachable") from None
        except Broken:
            raise EngineFailed("broken") from None

    async def _read(self, response: ClientConnection, deadline_s: float) -> bytes:
        if response.status != 200:
            raise await self._failure(response, deadline_s)
        coding = response.headers.get(b"content-encoding", b"identity").strip().lower()
        if not _is_json(response.headers) or coding != b"identity":
            raise EngineFailed("not_json")
        body = await read_body(response, deadline_s, BODY_BYTES_MAX)
        if len(body) > BODY_BYTES_MAX:
            raise EngineFailed("too_large")
        return body

    async def _failure(self, response: ClientConnection, deadline_s: float) -> EngineFailed:
        status, retry_after_s = response.status, find_retry_after(response.headers)
        if status == 429 or (status == 503 and retry_after_s is not None):
            return EngineFailed("busy", retry_after_s)
        if 300 <= status < 400:
            return EngineFailed("redirected")
        if mark := self._api.key_refused:
            with suppress(TimeoutError, Broken):
                if mark in await read_body(response, deadline_s, ERROR_BYTES_MAX):
                    return EngineFailed("key_refused")
        return EngineFailed((REASONS | self._api.reasons).get(status, "failed"))


def find_retry_after(headers: Headers) -> float | None:
    """When the engine may be asked again, if it says so.

    Brave has no Retry-After. It lists, for each window of its rate limit, what remains and when the window ends.
    """
    if given := headers.get(b"retry-after"):
        return _seconds(given)
    remaining = map(_seconds, headers.get(b"x-ratelimit-remaining", b"").split(b","))
    resets = map(_seconds, headers.get(b"x-ratelimit-reset", b"").split(b","))
    return max((reset for left, reset in zip(remaining, resets, strict=False) if left == 0 and reset), default=None)


def _seconds(value: bytes) -> float | None:
    try:
        wait_s = float(value)
    except ValueError:
        return None
    return max(wait_s, 0.0) if math.isfinite(wait_s) else None


def _is_json(headers: Headers) -> bool:
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return media_type in {b"application/json", b"text/json"} or media_type.endswith(b"+json")


class _Result(Content, msgspec.Struct):
    """A result of any engine. SearXNG and Tavily call the snippet `content`, Brave calls it `description`."""

    url: str
    title: str | None = None
    content: str | None = None
    description: str | None = None


def read_hits(results: list[msgspec.Raw], count: int) -> list[Hit]:
    """The first `count` usable results, in the order of the engine."""
    hits = dict[str, Hit]()  # by the address without its fragment
    for raw in results[:RESULTS_READ]:
        if len(hits) == count:
            break
        try:
            result = msgspec.json.decode(raw, type=_Result)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        if address := _web_address(result.url):
            title = plain_text(result.title or "", TITLE_CHARS_MAX) or address.hostname or ""
            snippet = plain_text(result.content or result.description or "", SNIPPET_CHARS_MAX)
            hits.setdefault(address._replace(fragment="").geturl(), Hit(result.url, title, snippet))
    return list(hits.values())


def _web_address(url: str) -> SplitResult | None:
    """None for what is not the address of a page on the web, or too long, or has a password in it."""
    if len(url) > URL_CHARS_MAX or not url.isprintable() or " " in url:
        return None
    try:
        address = urlsplit(url)
        is_web = address.scheme in {"http", "https"} and bool(address.hostname) and address.port != 0
    except ValueError:
        return None
    return address if is_web and "@" not in address.netloc else None


def plain_text(markup: str, chars_max: int) -> str:
    """The text of a title or a snippet, without tags and entities. It is cut at the end of a word, with an ellipsis."""
    text = markup[: chars_max * MARKUP_FACTOR]
    text = _without_tags(html.unescape(_without_tags(text)))
    text = " ".join(_printable(text).split())
    return text if len(text) <= chars_max else f"{_whole_words(text, chars_max - 1)}…"


def _printable(text: str) -> str:
    """Without control, format and surrogate characters. White space of any kind becomes a space."""
    kept = (character for character in text if character.isprintable() or character.isspace() or character in JOINERS)
    return "".join(" " if character.isspace() else character for character in kept)


def _without_tags(text: str) -> str:
    return _TAG.sub("", _HIDDEN.sub(" ", text))


def _whole_words(text: str, chars_max: int) -> str:
    """The beginning of a text that is longer. A single word that is too long is cut itself."""
    return text[: chars_max + 1].rpartition(" ")[0] or text[:chars_max]
