"""Reads HTTP/1.1 requests from bytes, which may be split anywhere, one request at a time.

httptools reads heads and chunked bodies. It is fed in pieces that end where a request may end, so it never sees a byte
of the next request too early. A body whose length is known is taken from the input as it is. A head that differs from
the last one of its connection only in the length of the body, as most do, is recognised and not read again.
Bytes that are not body (heads, trailers, chunk sizes and their extensions) are bounded, and so is the number of tiny
chunks: each takes 2 µs, however small it is. For each request the receiver gets the head, the parts of the body and the
end, in this order. Nothing is parsed after malformed bytes.
"""

import re
from enum import Enum, auto
from typing import Protocol
from urllib.parse import unquote

import httptools

from cadenza.http.exchange import CONTENT_LENGTH, Request
from cadenza.http.headers import Headers

VERSIONS = (b" HTTP/1.1\r", b" HTTP/1.0\r")
LINE_BYTES = len(b"  HTTP/1.1\r")  # of a request line, beside its method and its target
LENGTH_FIELD = b"\r\ncontent-length:"
LENGTH_DIGITS_MAX = 9  # of a body behind a head that is recognised
KNOWN_HEAD_BYTES_MAX = 2048  # of the head that a connection keeps
HOST = re.compile(rb"[A-Za-z0-9\-._~!$&'()*+,;=:%\[\]]{0,255}")
NUMBER_SIGN, PERCENT = b"#%"  # numbers: `b"#" in target` raises an error inside and takes 20 times as long
FIELDS_MAX = 256  # each takes 2 µs until a page has read them
PATH_BYTES_MAX = 2048  # escaped: each escape takes 0.6 µs to decode
CODINGS_BYTES_MAX = 256
PIECES_PER_TURN = 16  # fed to httptools before the loop may do something else
CHUNKED_PIECES_PER_TURN = 2
CHUNK_BYTES = 16  # the minimum average size of a chunk of a body
SMALL_CHUNKS = 2000  # chunks that may be smaller before the average counts
BLANK_LINE = b"\r\n\r\n"
LINE_ENDS = b"\r\n"
PIECE_BYTES_MAX = 8192  # bounds how often httptools calls back for one piece
CHUNKED_BODY = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"


class Malformed(Exception):
    """The bytes are not HTTP, or a head is too large; `status` is the one to refuse them with."""

    def __init__(self, status: int = 400) -> None:
        super().__init__(status)
        self.status = status


class RequestReceiver(Protocol):
    """Takes what the parser has read."""

    def receive_head(self, request: Request, whole: bytes = b"", /) -> None:
        """A request begins; it is complete if the whole body is given."""

    def receive_body(self, data: bytes, /) -> None: ...

    def receive_end(self) -> None: ...


class RequestPhase(Enum):
    """What is read now, and how much of it is taken at once."""

    HEAD = auto()  # up to the blank line behind the fields; a body of either kind follows, or the next head
    SIZED = auto()  # the rest of a body whose length is known; httptools does not see it
    CHUNKED = auto()  # up to a blank line, where the body may end


class Progress(Enum):
    """Why the parser stopped."""

    NEEDS_INPUT = auto()  # everything that arrived was parsed
    REQUEST_ENDED = auto()  # the next request may wait behind it
    TURN_ENDED = auto()  # there is more, but it was enough for one turn of the loop


HEAD, SIZED, CHUNKED = RequestPhase  # as names: Python 3.11 is slow to look up RequestPhase.X
NEEDS_INPUT, REQUEST_ENDED, TURN_ENDED = Progress


class RequestInput:
    """What has arrived and is not parsed yet. A piece never reaches beyond the end of a head or of a body."""

    __slots__ = ("_at", "_end", "data")

    def __init__(self) -> None:
        self.data = b""  # nothing once everything was taken
        self._at = 0  # before it everything was taken
        self._end = b""  # the last bytes that were taken, where a blank line may have begun in them

    def __len__(self) -> int:
        return len(self.data) - self._at

    def add(self, data: bytes) -> None:
        self.data = self.data[self._at :] + data
        self._at = 0

    def take(self, size_bytes: int) -> bytes:
        """Take at most `size_bytes`."""
        taken = self.data[self._at : self._at + size_bytes]
        self._at += len(taken)
        if self._at == len(self.data):
            self.data, self._at = b"", 0
        return taken

    def take_whole_head(self) -> bytes:
        """The head at the front, if all of it has arrived and it is small; else nothing. This is the usual case."""
        begin = self._at
        blank_line_at = self.data.find(BLANK_LINE, begin, begin + PIECE_BYTES_MAX)
        if blank_line_at <= begin or self.data[begin] in LINE_ENDS:
            return b""
        return self.take(blank_line_at + len(BLANK_LINE) - begin)

    def skip_line_ends(self) -> int:
        """Drop the line ends at the front; how many bytes they were."""
        rest = self.data[self._at :]
        return len(self.take(len(rest) - len(rest.lstrip(LINE_ENDS))))

    def take_to_blank_line(self) -> bytes:
        """The next piece, which ends at the first blank line if there is one in it."""
        begin = self._at
        end = self._end_of_split_blank_line() if self._end else 0
        if not end:
            end = begin + PIECE_BYTES_MAX
            blank_line_at = self.data.find(BLANK_LINE, begin, end)
            if blank_line_at >= 0:
                end = blank_line_at + len(BLANK_LINE)
        taken = self.take(end - begin)
        self._end = b"" if taken.endswith(BLANK_LINE) else (self._end + taken)[-3:]
        return taken

    def forget_blank_line(self) -> None:
        """What was taken so far is complete: no blank line begins in it."""
        self._end = b""

    def _end_of_split_blank_line(self) -> int:
        """Where a blank line ends that began in what was taken before; 0 if there is none."""
        blank_line_at = (self._end + self.data[self._at : self._at + 3]).find(BLANK_LINE)
        return self._at + blank_line_at + len(BLANK_LINE) - len(self._end) if blank_line_at >= 0 else 0


class KnownHead:
    """A request whose body has a length, and the bytes of its head before and after that length."""

    __slots__ = ("after", "after_bytes", "before", "before_bytes", "length", "length_at", "request", "search_end")

    def __init__(self, before: bytes, after: bytes, request: Request) -> None:
        self.before, self.before_bytes = before, len(before)
        self.after, self.after_bytes = after, len(after)
        self.search_end = len(before) + LENGTH_DIGITS_MAX + len(after)  # of `after`
        self.request = request
        self.length = request.headers[CONTENT_LENGTH]
        self.length_at = request.fields.index((CONTENT_LENGTH, self.length))


class RequestParser:
    """The parser of one connection, and its input that is not parsed yet."""

    def __init__(self, receiver: RequestReceiver, head_bytes_max: int) -> None:
        self.input = RequestInput()
        self._phase = HEAD
        self._receiver = receiver
        self._head_bytes_max = head_bytes_max
        self._parser: httptools.HttpRequestParser | None = None  # made with the next head, if it is needed
        self._known: KnownHead | None = None  # the last head that the next one may be like
        self._head = b""  # that is being read, if it arrived whole
        self._line = b""  # the request line and the CR behind it, or as much of them as has arrived
        self._target = b""
        self._fields: Headers = []
        self._host: bytes | None = None  # the last one that was found to be valid
        self._body_left_bytes = 0  # of a body whose length is known
        self._spare_bytes = 0  # by which chunks may be smaller than CHUNK_BYTES
        self._overhead_bytes = 0  # of a head, or fed since the last progress in a body
        self._has_progressed = False  # the last piece completed a head or a request, or had a part of a body
        self._has_ended = False  # a request ended since read() was called

    @property
    def is_in_body(self) -> bool:
        return self._phase is not HEAD

    def read(self, data: bytes = b"") -> Progress:
        """Parse the input, and `data` behind it, up to the end of one request; Malformed where it is not HTTP.

        A head that differs from the last one only in the length of the body is recognised, if no input waits before it.
        """
        known = self._known
        if known and data.startswith(known.before) and self._phase is HEAD and not (self._line or self.input.data):
            end = data.find(known.after, known.before_bytes, known.search_end)
            length = data[known.before_bytes : end]
            if end > 0 and length.isdigit() and (size_bytes := int(length)):
                request = known.request
                if length != known.length:
                    request = request.with_length(length, known.length_at)
                begin = end + known.after_bytes
                end = begin + size_bytes
                if end > len(data):
                    return self._begin_sized(request, size_bytes, data[begin:])
                self.input.data = data[end:]
                self._overhead_bytes = 0  # line ends that came before the head
                self._receiver.receive_head(request, data[begin:end])
                return REQUEST_ENDED
        if data:  # adding nothing would copy what waits
            self.input.add(data)
        return self._read_input()

    def _read_input(self) -> Progress:
        self._has_ended = False
        if self._phase is HEAD and not self._line and (head := self.input.take_whole_head()):
            self._line = head[: head.find(b"\r") + 1]
            self._head = head
            self._feed(head)
            self._head = b""
            if self._has_ended:
                return REQUEST_ENDED
        for number in range(PIECES_PER_TURN):
            if self._phase is SIZED:
                return self._read_sized()
            if self._phase is CHUNKED and number >= CHUNKED_PIECES_PER_TURN:
                break
            piece = self.input.take_to_blank_line() if self._phase is CHUNKED else self._take_head()
            if not piece:
                return NEEDS_INPUT
            self._feed(piece)
            if self._has_ended:
                return REQUEST_ENDED
        return TURN_ENDED if self.input else NEEDS_INPUT

    def _begin_sized(self, request: Request, size_bytes: int, arrived: bytes) -> Progress:
        self._body_left_bytes = size_bytes
        self._phase = SIZED
        self.input.data = arrived
        self._receiver.receive_head(request)
        return self._read_sized()

    def _read_sized(self) -> Progress:
        piece = self.input.take(self._body_left_bytes)
        if piece:
            self._body_left_bytes -= len(piece)
            self._receiver.receive_body(piece)
            if not self._body_left_bytes:
                self.end_request()
                return REQUEST_ENDED
        return NEEDS_INPUT

    def _take_head(self) -> bytes:
        """The rest of the head, or as much of it as has arrived. Its request line is kept, up to the CR behind it."""
        if not self._line:
            self._count_overhead(self.input.skip_line_ends())
        piece = self.input.take_to_blank_line()
        self._count_overhead(len(piece))
        if not self._line.endswith(b"\r"):
            end = piece.find(b"\r")
            self._line += piece[: end + 1] if end >= 0 else piece
        return piece

    def _feed(self, piece: bytes) -> None:
        self._has_progressed = False
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._refuse_upgrade()
            return
        except httptools.HttpParserError as error:
            raise Malformed(error.__context__.status if isinstance(error.__context__, Malformed) else 400) from None
        if self._phase is SIZED:
            self._parser = None  # it waits for the body, which it does not see; the next head gets another one
        elif not self._has_progressed and self._phase is CHUNKED:
            self._count_overhead(len(piece))

    def _count_overhead(self, size_bytes: int) -> None:
        self._overhead_bytes += size_bytes
        if self._overhead_bytes > self._head_bytes_max:
            raise Malformed

    def _refuse_upgrade(self) -> None:
        """Read the body of a request that asks for an upgrade, which is not granted. It is the last of its connection.

        httptools treats the bytes after such a head as another protocol. A new parser gets the framing of the body.
        """
        if self._phase is HEAD:
            self.end_request()
        elif self._phase is CHUNKED:
            self._parser = httptools.HttpRequestParser(_BodyCallbacks(self))
            self._feed(CHUNKED_BODY)

    # httptools' callbacks. It turns an exception into an HttpParserError.

    def on_message_begin(self) -> None:
        if self._has_ended:
            raise Malformed  # never fed by us: a request that ended elsewhere than at the end of its piece
        self._target = b""
        self._fields = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is HEAD:  # trailers are not kept
            self._fields.append((name.lower(), value))
            if len(self._fields) > FIELDS_MAX:
                raise Malformed

    def on_headers_complete(self) -> None:
        self._has_progressed = True
        self._overhead_bytes = 0
        parser, line, fields = self._parser, self._line, self._fields
        assert parser
        method = parser.get_method()
        if len(line) != len(method) + len(self._target) + LINE_BYTES or not line.endswith(VERSIONS):
            raise Malformed
        path, query = _split_target(self._target)
        keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        is_http_1_0 = line.endswith(b"0\r")
        request = Request(method.decode(), path, query, fields, is_http_1_0=is_http_1_0, keep_alive=keep_alive)
        headers = request.headers
        if headers.get(b"host") != self._host or self._host is None or len(headers) != len(fields):
            self._check_host(request)
        if b"transfer-encoding" in headers:
            _check_transfer_coding(request)
            self._phase = CHUNKED
            self._spare_bytes = SMALL_CHUNKS * CHUNK_BYTES
        elif length := headers.get(b"content-length"):  # httptools has refused one that is beside a transfer coding
            self._body_left_bytes = int(length)
            self._phase = SIZED if self._body_left_bytes else HEAD
        if self._phase is SIZED and request.keep_alive and self._head:
            self._learn(self._head, request)
        self._receiver.receive_head(request)

    def on_body(self, data: bytes) -> None:
        self._has_progressed = True
        self._overhead_bytes = 0
        if self._phase is CHUNKED:
            self._spare_bytes += len(data) - CHUNK_BYTES
            if self._spare_bytes < 0:
                raise Malformed
        self._receiver.receive_body(data)

    def on_message_complete(self) -> None:
        assert self._parser
        if not self._parser.should_upgrade():  # otherwise HttpParserUpgrade follows
            self.end_request()

    def _learn(self, head: bytes, request: Request) -> None:
        """Keep the head, to recognise the next one by it. One with a field twice, or of a rare kind, is not kept.

        Where every head is another one, only every second one is kept in vain.
        """
        if self._known:
            self._known = None
            return
        length = request.headers[b"content-length"]
        is_usual = len(request.headers) == len(request.fields) and not (request.is_http_1_0 or request.expects_continue)
        if is_usual and length.isdigit() and len(head) <= KNOWN_HEAD_BYTES_MAX:
            at = head.find(length, head.lower().find(LENGTH_FIELD) + len(LENGTH_FIELD))
            self._known = KnownHead(head[:at], head[at + len(length) :], request)

    def close(self) -> None:
        """Nothing more is read. What refers back to the connection is dropped, so that it is freed at once."""
        self._parser = None
        del self._receiver

    def end_request(self) -> None:
        self._has_progressed = self._has_ended = True
        self._phase = HEAD
        self._line = self._target = b""
        self._overhead_bytes = 0
        self.input.forget_blank_line()
        self._receiver.receive_end()

    def _check_host(self, request: Request) -> None:
        """Exactly one valid Host (RFC 9112, 3.2); HTTP/1.0 may leave it out."""
        hosts = [value for name, value in request.fields if name == b"host"]
        if len(hosts) > 1 or (not hosts and not request.is_http_1_0):
            raise Malformed
        if hosts and not HOST.fullmatch(hosts[0].strip()):
            raise Malformed
        self._host = hosts[0] if hosts else None


class _BodyCallbacks:
    """The callbacks of a parser that reads a body only."""

    def __init__(self, parser: RequestParser) -> None:
        self.on_body = parser.on_body
        self.on_message_complete = parser.end_request


def _check_transfer_coding(request: Request) -> None:
    """Only `chunked` alone (RFC 9112, 6.1 and 6.3).

    If it is not the last coding, is repeated, or comes with HTTP/1.0, the end of the body is unknown: 400. If
    other codings come before it, the end is known, but the body cannot be read: 501.
    """
    given = b",".join([value for name, value in request.fields if name == b"transfer-encoding"])
    codings = [coding.strip().lower() for coding in given[:CODINGS_BYTES_MAX].split(b",")]
    if (
        len(given) > CODINGS_BYTES_MAX
        or request.is_http_1_0
        or codings[-1] != b"chunked"
        or codings.count(b"chunked") > 1
    ):
        raise Malformed
    if len(codings) > 1:
        raise Malformed(501)


def _split_target(target: bytes) -> tuple[str, bytes]:
    """The path, decoded, and the query as it came; Malformed for a target without a path, or with too long a one."""
    if target.startswith(b"/") and NUMBER_SIGN not in target:  # the usual form, which needs no parser
        path, _, query = target.partition(b"?")
    else:
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            raise Malformed from None
        path, query = url.path or b"/", url.query or b""
        if path == b"*":
            raise Malformed
    if len(path) > PATH_BYTES_MAX:
        raise Malformed(414)
    return unquote(path.decode("latin-1")) if PERCENT in path else path.decode("latin-1"), query
