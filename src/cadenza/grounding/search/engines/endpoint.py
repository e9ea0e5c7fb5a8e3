"""One exchange with an engine over HTTP: bounded in time and bytes, and JSON or nothing.

Every failure becomes an EngineFailed with one word (see `base`). A redirect is not followed: the query would go to an
address that the operator did not name.
"""

import asyncio
import math
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime

from cadenza.grounding.search.engines.base import EngineBusy
from cadenza.grounding.search.records import EngineFailed
from cadenza.http.client import HttpClient, OutOfResources, Unreachable
from cadenza.http.client_connection import Broken, ClientConnection, read_body

BODY_BYTES_MAX = 1024 * 1024
ERROR_BYTES_MAX = 4 * 1024
GZIP = 16 + zlib.MAX_WBITS

Headers = Mapping[bytes, bytes]
StatusReader = Callable[[int, bytes], str]  # the reason for a status other than 200 and the beginning of its body


def status_reason(status: int, _body: bytes = b"") -> str:
    match status:
        case 400 | 413 | 414 | 422:
            return "refused"
        case 401 | 403:
            return "key_refused"
        case 402:
            return "quota"
        case 404 | 405:
            return "not_found"
        case _:
            return "failed"


class Endpoint:
    """An engine's address, asked with a time limit for the whole exchange."""

    def __init__(self, http: HttpClient, timeout_s: float, reason: StatusReader = status_reason) -> None:
        self._http = http
        self._timeout_s = timeout_s
        self._reason = reason

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of the response, which says that it is JSON."""
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            response = await self._http.send(method, path, body, self._timeout_s, deadline_s)
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

    async def close(self) -> None:
        await self._http.close()

    async def _read(self, response: ClientConnection, deadline_s: float) -> bytes:
        if response.status != 200:
            raise await self._failure(response, deadline_s)
        coding = response.headers.get(b"content-encoding", b"identity").strip().lower()
        if not _is_json(response.headers) or coding not in {b"identity", b"gzip"}:
            raise EngineFailed("not_json")
        body = await read_body(response, deadline_s, BODY_BYTES_MAX)
        if len(body) <= BODY_BYTES_MAX and coding == b"gzip":
            body = _unzip(body)
        if len(body) > BODY_BYTES_MAX:
            raise EngineFailed("too_large")
        return body

    async def _failure(self, response: ClientConnection, deadline_s: float) -> EngineFailed:
        status, rest_s = response.status, find_rest(response.headers)
        if status == 429 or (status == 503 and rest_s is not None):
            return EngineBusy(rest_s)
        if 300 <= status < 400:
            return EngineFailed("redirected")
        body = b""
        with suppress(TimeoutError, Broken):
            body = await read_body(response, deadline_s, ERROR_BYTES_MAX)
        return EngineFailed(self._reason(status, body))


def find_rest(headers: Headers) -> float | None:
    """For how long the engine asks to be left alone, if it says so.

    Brave has no Retry-After. It lists, for each window of its rate limit, what remains and when the window ends.
    """
    if given := headers.get(b"retry-after"):
        rest_s = _seconds(given)
        return _seconds_until(given, headers.get(b"date", b"")) if rest_s is None else rest_s
    remaining = map(_seconds, headers.get(b"x-ratelimit-remaining", b"").split(b","))
    resets = map(_seconds, headers.get(b"x-ratelimit-reset", b"").split(b","))
    return max((reset for left, reset in zip(remaining, resets, strict=False) if left == 0 and reset), default=None)


def _seconds(value: bytes) -> float | None:
    try:
        wait_s = float(value)
    except ValueError:
        return None
    return max(wait_s, 0.0) if math.isfinite(wait_s) else None


def _seconds_until(moment: bytes, now: bytes) -> float | None:
    """Both as HTTP dates of the engine's own clock."""
    try:
        wait = parsedate_to_datetime(moment.decode()) - parsedate_to_datetime(now.decode())
    except (ValueError, TypeError, OverflowError):
        return None
    return max(wait.total_seconds(), 0.0)


def _is_json(headers: Headers) -> bool:
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return media_type in {b"application/json", b"text/json"} or media_type.endswith(b"+json")


def _unzip(body: bytes) -> bytes:
    """We ask for no compression, but an engine or a proxy in front of it may compress nevertheless."""
    stream = zlib.decompressobj(GZIP)
    try:
        plain = stream.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error:
        raise EngineFailed("not_json") from None
    if not stream.eof and len(plain) <= BODY_BYTES_MAX:
        raise EngineFailed("broken")
    return plain
