"""Makes HTTP messages that are good, nearly good, or broken, from a seeded source of chance."""

import random
from collections.abc import Sequence

METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "CONNECT", "BREW", "get", "PRI", "")
TARGETS = (
    "/",
    "/a",
    "/a?b=c",
    "/a%20b",
    "http://here/a",
    "*",
    "here:80",
    "a",
    "/\x7f",
    "/a b",
    "/é",
    "//a",
    "",
    "/a#b",
)
VERSIONS = ("HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.2", "http/1.1", "HTTP/11", "RTSP/1.0", "")
HOSTS = ("here", "here:80", "[::1]:80", "", "h" * 255, "h" * 256, "a b", "a/b", "<x>", "here, there")
LINE_ENDS = ("\n", "\r", "\r\r\n", "\n\r", "\r\n ", "\r\n\t")
CODINGS = ("chunked", "Chunked", "gzip, chunked", "chunked, chunked", "gzip", "identity", "xchunked", "chunked;q=1", "")
LENGTHS = ("+3", "-1", "3, 3", "3,4", "0x3", "3 3", " 3 ", "99999999999999999999", "", "03", "3.0", "3;")
FIELDS = (
    "x-a: b",
    "x-a:b",
    "x-a:  b  ",
    "x-a : b",
    " x-a: b",
    "x-a: b\x00c",
    "x-a: é",
    "no colon",
    ": no name",
    "x-a:",
    "x\x7fa: b",
    "connection: close",
    "connection: keep-alive",
    "connection: upgrade",
    "upgrade: h2c",
    "expect: 100-continue",
    "x-a: " + "b" * 300,
    "cookie: a=b; c=d",
    "x-(a): b",
)
STATUSES = (
    "200 OK",
    "204 No Content",
    "404 Not Found",
    "500",
    "304 Not Modified",
    "100 Continue",
    "101 Switch",
    "20 A",
)
CHUNK_SIZES = ("0x3", "+3", "-3", " 3", "3 ", "3;a=b", "3;a", "03", "g", "", "3;" + "x" * 100, "FFFFFFFFFFFFFFFFF")


class MessageMaker:
    """Each message is good, unless chance breaks some of its parts."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._fault_rate = 0.0

    def requests(self) -> bytes:
        """One to three requests, one behind the other."""
        self._begin()
        made = b"".join(self._request() for _ in range(self._chance.choice((1, 1, 2, 3))))
        return self._mutated(made)

    def response(self) -> bytes:
        """One response, sometimes with interim ones before it or bytes behind it."""
        self._begin()
        made = self._response()
        if self._breaks():
            made = b"HTTP/1.1 100 Continue\r\n\r\n" + made
        if self._breaks():
            made += self._chance.choice((b"\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"x"))
        return self._mutated(made)

    def _begin(self) -> None:
        self._fault_rate = self._chance.choice((0.0, 0.02, 0.1))

    def _breaks(self) -> bool:
        return self._chance.random() < self._fault_rate

    def _pick(self, good: Sequence[str], faulty: Sequence[str]) -> str:
        return self._chance.choice(faulty if self._breaks() else good)

    def _request(self) -> bytes:
        method = self._pick(METHODS[:7], METHODS)
        target = self._pick(TARGETS[:4], TARGETS)
        version = self._pick(VERSIONS[:1] * 5 + VERSIONS[1:2], VERSIONS)
        line = f"{method}{self._space()}{target}{self._space()}{version}"
        hosts = self._chance.choice((0, 2)) if self._breaks() else 1
        fields = [f"{self._name('host')}: {self._pick(HOSTS[:3], HOSTS)}" for _ in range(hosts)]
        framing, body = self._body(is_usual=method in ("POST", "PUT", "PATCH"))
        prefix = self._pick(("",), ("\r\n", "\n", "\r\n\r\n", " ", "\x00"))
        return prefix.encode() + self._head(line, fields + framing) + body

    def _response(self) -> bytes:
        line = f"{self._pick(VERSIONS[:2], VERSIONS)}{self._space()}{self._pick(STATUSES[:4], STATUSES)}"
        framing, body = self._body(is_usual=True)
        return self._head(line, framing) + body

    def _space(self) -> str:
        return self._pick((" ",), ("  ", "\t", "", "\x0b"))

    def _name(self, name: str) -> str:
        return self._chance.choice((name, name.title(), name.upper()))

    def _head(self, line: str, fields: list[str]) -> bytes:
        fields = fields + [self._pick(FIELDS[:3], FIELDS) for _ in range(self._chance.choice((0, 1, 3)))]
        self._chance.shuffle(fields)
        lines = [line, *fields, ""]
        return "".join(one + self._pick(("\r\n",), LINE_ENDS) for one in lines).encode("latin-1")

    def _body(self, *, is_usual: bool) -> tuple[list[str], bytes]:
        """The fields that frame a body, and the body."""
        if not is_usual and not self._breaks():
            return [], b""
        body = bytes(self._chance.choices(b"abc\r\n0: GET/", k=self._chance.choice((0, 1, 5, 40, 300))))
        if self._breaks():
            body += b"\r\n\r\n"
        if self._chance.random() < 0.5:
            length = self._pick((str(len(body)),), LENGTHS)
            fields = [f"{self._name('content-length')}: {length}"]
            return fields * (2 if self._breaks() else 1), body
        fields = [f"{self._name('transfer-encoding')}: {self._pick(CODINGS[:2], CODINGS)}"]
        if self._breaks():
            fields.append(self._chance.choice(("content-length: 3", "transfer-encoding: chunked")))
        return fields, self._chunked(body)

    def _chunked(self, body: bytes) -> bytes:
        made = b""
        while body:
            size = self._chance.randint(1, len(body))
            shown = self._pick((f"{size:x}", f"{size:X}", f"{size:x};a=b"), CHUNK_SIZES)
            made += shown.encode() + self._line_end() + body[:size] + self._line_end()
            body = body[size:]
        trailer = b"".join(self._pick(FIELDS[:2], FIELDS).encode() + self._line_end() for _ in range(self._breaks()))
        return (
            made + self._pick(("0",), ("00", "0;a", "", "-0")).encode() + self._line_end() + trailer + self._line_end()
        )

    def _line_end(self) -> bytes:
        return self._pick(("\r\n",), LINE_ENDS).encode()

    def _mutated(self, made: bytes) -> bytes:
        data = bytearray(made)
        while data and self._breaks():
            at = self._chance.randrange(len(data))
            match self._chance.randrange(4):
                case 0:
                    del data[at]
                case 1:
                    data.insert(at, self._chance.choice(b"\x00\t\n\r :,;0A\x7f\xff"))
                case 2:
                    data[at] = self._chance.randrange(256)
                case _:
                    del data[at:]
        return bytes(data)
