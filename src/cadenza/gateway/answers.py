"""The replies of the API: JSON, a stream or an error, each with the headers that every reply carries, and heartbeats.

Errors are rendered here and nowhere else: before the first byte as a reply, after it as the event that ends the stream.

A heartbeat keeps the connection of a silent stream alive with comments (`: ping`), from when the request is valid and
has a slot to the end of the reply. If the reply has not started by the first ping, its head is sent with the ping: the
status is then 200, and a later error is an event with a type of its own. A comment has no content, so it may be sent
before credit is held. An account that cannot pay for any answer gets none.
"""

import asyncio
import re
import time
from collections.abc import Callable

import msgspec

from cadenza.core.codes import random_id
from cadenza.core.content import Content
from cadenza.core.errors import CadenzaError, error_headers, render_error
from cadenza.http.events import PING, write_event
from cadenza.http.exchange import PENDING, STREAMING, Exchange
from cadenza.http.headers import encode_headers

SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")  # a client's own x-request-id that is used
NO_STORE = b"cache-control: no-store\r\n"
JSON = b"content-type: application/json\r\n" + NO_STORE
CORS = (
    b"access-control-allow-origin: *\r\n"
    b"access-control-expose-headers: x-request-id, x-should-retry, retry-after, retry-after-ms, x-cadenza-max-tokens, "
    b"x-cadenza-grounding, x-cadenza-ignored, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests\r\n"
)
STREAM = (
    b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache, no-transform\r\n"
    b"x-accel-buffering: no\r\n"
)

PING_S = 12.5  # with the tenth that a ping may be late, and a second of a busy machine, less than 15 seconds


class ErrorShape(msgspec.Struct, frozen=True):
    """How a protocol shows the error of a request, by its id: as a reply, and as the end of a broken stream."""

    reply: Callable[[CadenzaError, str], bytes]
    event: Callable[[CadenzaError, str], bytes]


def error_object(error: CadenzaError, _request_id: str) -> bytes:
    return render_error(error.message, error.type)


def error_event(error: CadenzaError, request_id: str) -> bytes:
    """The newline before it ends an event that may be unfinished."""
    return b"\n" + write_event(error_object(error, request_id))


CHAT_ERRORS = ErrorShape(error_object, error_event)


class Answers(Content, msgspec.Struct, eq=False):
    """Sends the one reply to a request, with the headers of its endpoint and those that are added on the way."""

    exchange: Exchange
    request_id: str
    headers: bytes = CORS
    added_headers: bytes = b""  # its rate, for instance
    errors: ErrorShape = CHAT_ERRORS
    is_waiting: bool = False  # the head of a stream was sent, and its reply has not begun

    def send_json(self, body: bytes, more_headers: bytes = b"") -> None:
        self.exchange.respond(200, self._headers(JSON, more_headers), body)

    def send_no_content(self, more_headers: bytes) -> None:
        self.exchange.respond(204, self._headers(NO_STORE, more_headers), b"")

    def ping(self) -> None:
        """Tell the client of a stream that it lives, unless the stream is over or the client does not read."""
        exchange = self.exchange
        if exchange.state is PENDING:
            self._start_waiting()
        if exchange.state is STREAMING and not exchange.is_congested:
            exchange.write(PING)

    def _start_waiting(self) -> None:
        """Send the head of a stream before its reply, without the headers that are not known yet."""
        self.is_waiting = True
        self.exchange.start_stream(self._headers(STREAM, b""), is_early=True)

    def start_stream(self, more_headers: bytes = b"", first: bytes = b"") -> None:
        """Begin the reply with its first bytes. Its head is sent, unless a ping has sent it."""
        if self.is_waiting:
            self.is_waiting = False
            self.exchange.begin_reply()
            self.exchange.write(first)
        else:
            self.exchange.start_stream(self._headers(STREAM, more_headers), first=first)

    def fail(self, error: CadenzaError) -> None:
        if self.exchange.state is STREAMING:
            if self.is_waiting:
                self.exchange.status = error.status  # for the log and the metrics
            self.break_off(error if self.is_waiting else CadenzaError(error.message))
        else:
            if error.pause_s:
                self.exchange.hold_back(error.pause_s)
            headers = self._headers(JSON + encode_headers(error_headers(error)), b"")
            self.exchange.respond(error.status, headers, self.errors.reply(error, self.request_id))

    def break_off(self, error: CadenzaError) -> None:
        """End a stream with an error."""
        self.exchange.abort_stream(self.errors.event(error, self.request_id))

    def _headers(self, first: bytes, last: bytes) -> bytes:
        request_id = self.request_id.encode()
        return b"".join((first, self.headers, self.added_headers, b"x-request-id: ", request_id, b"\r\n", last))


class Pings:
    """Pings every stream that was silent for `every_s`, or a tenth longer.

    One timer looks at all streams ten times in `every_s`, in 0.1 µs each. A timer for each would take 0.6 kB.
    """

    def __init__(self, every_s: float = PING_S) -> None:
        self.every_s = every_s
        self._since_s: dict[Answers, float] = {}  # when the pings of a stream began, by the monotonic clock
        self._timer: asyncio.TimerHandle | None = None

    def start(self, answers: Answers) -> None:
        self._since_s[answers] = time.monotonic()
        if self._timer is None:
            self._look_later()

    def stop(self, answers: Answers) -> None:
        self._since_s.pop(answers, None)

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.every_s / 10, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._since_s:
            self._look_later()
        silent_s = time.monotonic() - self.every_s
        for answers, since_s in self._since_s.items():
            if since_s <= silent_s and answers.exchange.last_write_s <= silent_s:
                answers.ping()


def new_request_id() -> str:
    return "req_" + random_id()
