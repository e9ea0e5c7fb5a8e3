"""The chat of the web application: POST /platform/api/chat, served by the gateway like any other chat request, and
POST /platform/api/chat/file, which measures a file before it is sent.

The session cookie replaces the API key: every account has a key for the web chat, so rates, slots, holds, charges,
metering and the log are the same as for the API. The reply is a stream of our own events, with Markdown rendered block
by block. After a sign-out or a suspension the next request is refused. Imports no page and no web framework.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec

from cadenza import clock
from cadenza.core.content import Content
from cadenza.core.errors import (
    CadenzaError,
    ContextOverflow,
    Forbidden,
    InsufficientCredit,
    InvalidRequest,
    NotTaken,
    Unauthenticated,
    UnreadableAttachment,
)
from cadenza.core.money import format_dollars
from cadenza.core.retention_limits import RetentionLimits
from cadenza.gateway.auth import Caller, count_request
from cadenza.gateway.chat import read_body, serve_chat
from cadenza.gateway.endpoints import Endpoint
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.request import ApiRequest
from cadenza.gateway.uploads import Upload
from cadenza.http.exchange import Exchange
from cadenza.observe import Log
from cadenza.parts.site.chat.markdown.process import MarkdownRenderer
from cadenza.parts.site.chat.relay import ChatRelay
from cadenza.parts.site.cookies import (
    ANONYMOUS,
    CSRF_HEADER,
    SESSION_COOKIE,
    Origin,
    cookie_name,
    is_own_request,
    read_cookie,
)
from cadenza.parts.site.sign_in.sessions import SignedIn, digest_of, find_session
from cadenza.store.store import StoreUnavailable
from cadenza.store.tables import keys

PATH = "/platform/api/chat"
FILE_PATH = "/platform/api/chat/file"
HEADERS = (
    b"cache-control: no-store\r\nx-content-type-options: nosniff\r\ncross-origin-resource-policy: same-origin\r\n"
    b"content-security-policy: default-src 'none'; frame-ancestors 'none'\r\n"
)
NOT_SIGNED_IN = "You are not signed in, or your session has ended. Sign in again."
THINGS = {"vision": "images", "files": "files", "audio": "audio"}  # by the capability that takes them
STEP_NANO = 100_000  # money is said in steps of $0.0001
FOREIGN = "This request was not sent by one of our own pages, or its page is out of date. Reload the page."


class FileMeasured(Content, msgspec.Struct, frozen=True):
    """How large a file is: its parts in words ("300 pages"), its tokens, and the fewest that a question takes of it."""

    parts: str
    tokens: int
    least_tokens: int


class WebChat:
    """The endpoint, and the renderer of its replies. `base_url` is the address of the site, where it is known."""

    def __init__(self, log: Log, base_url: str | None, retention: RetentionLimits) -> None:
        self.markdown = MarkdownRenderer(log)
        self.endpoints = (
            Endpoint(PATH, "web_chat", ("POST",), "inference", self._serve, self._identify, HEADERS, is_chat=True),
            Endpoint(FILE_PATH, "web_file", ("POST",), "inference", measure_file, self._identify, HEADERS),
        )
        self._base_url = base_url
        self._retention = retention

    async def _serve(self, gateway: Gateway, request: ApiRequest) -> None:
        make_relay = partial(ChatRelay, markdown=self.markdown, account_id=request.principal.account_id)
        try:
            await serve_chat(gateway, msgspec.structs.replace(request, make_stream_relay=make_relay))
        except (InvalidRequest, InsufficientCredit) as error:
            raise in_plain_words(error, _windows(request)) from None

    async def _identify(self, gateway: Gateway, exchange: Exchange) -> Caller:
        """The key of the session's account; 401 without a live session, 403 if one of our own pages did not send it."""
        secret = self._secret(exchange)
        if not secret or secret.startswith(ANONYMOUS):
            raise Unauthenticated(NOT_SIGNED_IN)
        headers = exchange.request.headers
        token = _text(headers, CSRF_HEADER) or ""
        site, origin_of_page, host = (_text(headers, name) for name in ("sec-fetch-site", "origin", "host"))
        origin = Origin(site, origin_of_page, host, self._base_url)
        if not is_own_request(origin, token, secret):
            raise Forbidden(FOREIGN)
        now_ms = clock.now_ms()
        find = partial(find_session, gateway.store, secret, now_ms, self._retention)
        signed_in = await _find(gateway, exchange, digest_of(secret), find)
        digest = await keys.find_web(gateway.store, signed_in.account.id)
        if digest is None:
            account_id = signed_in.account.id
            digest = await gateway.store.transact(lambda tx: keys.web_key(tx, account_id, now_ms))
        gateway.in_flight.key_digests[exchange] = digest
        found = await gateway.key_cache.find(digest)
        if found is None or keys.state_of(found.revoked_at, found.expires_at, now_ms) != "active":
            raise Unauthenticated(NOT_SIGNED_IN)
        return await count_request(gateway, found)

    def _secret(self, exchange: Exchange) -> str:
        base_url = self._base_url or exchange.scheme + "://"
        name = cookie_name(SESSION_COOKIE, is_secure=base_url.startswith("https://"))
        return read_cookie(_text(exchange.request.headers, "cookie") or "", name)


async def measure_file(gateway: Gateway, request: ApiRequest) -> None:
    """How large a file is. The body is its bytes, and the query parameter `name` is its name."""
    if not (measure := gateway.grounder.offer().measure):
        raise InvalidRequest("Files are not read by this service.")
    upload = Upload(gateway.uploads, request.principal, request.snapshot.catalogue.least_nano)
    data = bytes(await read_body(request.exchange, upload))  # 413 402 408 429
    try:
        name = request.query.get("name", "")
        size = await measure(request.principal.account_id, name, data)
    except InvalidRequest as error:
        raise in_plain_words(error, _windows(request)) from None
    request.answers.send_json(msgspec.json.encode(FileMeasured(size.parts, size.tokens, size.least_tokens)))


async def _find(
    gateway: Gateway, exchange: Exchange, digest: bytes, find: Callable[[], Awaitable[SignedIn | None]]
) -> SignedIn:
    """Look up the session of a cookie. A client that guesses cookies is rate-limited like one that guesses keys."""
    unknown = gateway.unknown_keys
    if not unknown.is_live(digest):
        try:
            await unknown.begin(digest, exchange.client_address)
        except Unauthenticated:
            raise Unauthenticated(NOT_SIGNED_IN) from None
    try:
        found = await find()
    except StoreUnavailable:
        unknown.release(digest)
        raise
    except BaseException:
        unknown.spend(digest)
        raise
    if found is None or found.session.stage != "complete":
        unknown.found_dead(digest)
        raise Unauthenticated(NOT_SIGNED_IN)
    unknown.found_live(digest)
    return found


def _windows(request: ApiRequest) -> dict[str, int]:
    """The largest window of each class, in tokens."""
    return {one.plan.class_id: one.plan.context_tokens for one in request.snapshot.catalogue.served()}


def in_plain_words(error: InvalidRequest | InsufficientCredit, windows: Mapping[str, int]) -> CadenzaError:
    """The error in the words of the chat page: the API's own message names fields, which visitors do not know."""
    if isinstance(error, UnreadableAttachment):
        return InvalidRequest(f"{error.name} cannot be read: {error.reason}.")
    if isinstance(error, ContextOverflow):
        larger = [class_id for class_id, tokens in windows.items() if tokens > error.prompt_tokens]
        another = (
            f", begin a new conversation, or choose {' or '.join(larger)}" if larger else " or begin a new conversation"
        )
        return InvalidRequest(
            f"This is too long: with the conversation before it, it has {error.prompt_tokens:,} tokens, and the class "
            f"takes {error.window_tokens:,}. Shorten this message{another}."
        )
    if isinstance(error, InsufficientCredit) and error.needed_nano:
        needed = format_dollars(-(-error.needed_nano // STEP_NANO) * STEP_NANO)
        left = f"${format_dollars(error.free_nano // STEP_NANO * STEP_NANO)}"
        has = "less than $0.0001" if 0 < error.free_nano < STEP_NANO else left
        return InsufficientCredit(f"You have {has} left; this message needs at least ${needed}. Add credit.")
    if isinstance(error, NotTaken) and (things := THINGS.get(error.need)):
        ways_out = ["Remove them", *([f"choose {' or '.join(error.able_classes)}"] if error.able_classes else [])]
        return InvalidRequest(f"{error.class_id} takes no {things}. {', or '.join(ways_out)}.")
    return error


def _text(headers: dict[bytes, bytes], name: str) -> str | None:
    value = headers.get(name.encode())
    return None if value is None else value.decode("latin-1")
