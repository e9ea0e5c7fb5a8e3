"""Rules of HTTP/1.1 that our parser enforces and h11 does not, by which the fuzzers explain a difference."""

import re

BLANK_LINE = re.compile(rb"\n\r?\n")
TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]+)(?:;" + TOKEN + rb"(?:=(?:" + TOKEN + rb"|\"[^\"\r\n]*\"))?)*\r\n")
TRAILER = re.compile(rb"(?:" + TOKEN + rb":[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n")


def plain_field(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """A field as both show it: h11 strips spaces, and writes `chunked` in lower case."""
    return name, value.strip(b" \t").lower() if name == b"transfer-encoding" else value.strip(b" \t")


def head_of(message: bytes) -> bytes:
    """The head at the front of the bytes, as h11 finds it; all of them if it has no end."""
    end = BLANK_LINE.search(message)
    return message[: end.end() if end else None]


def has_line_without_cr(head: bytes) -> bool:
    return bool(re.search(rb"(?<!\r)\n", head))


def has_folded_field(head: bytes) -> bool:
    return bool(re.search(rb"\r\n[ \t]", head))


def has_control_character(head: bytes) -> bool:
    return bool(re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", head))


def has_length_twice(head: bytes) -> bool:
    return bool(re.search(rb"\ncontent-length:[^\r]*(?:,|\r.*\ncontent-length:)", head.lower(), re.DOTALL))


def has_two_framings(head: bytes) -> bool:
    return b"\ncontent-length:" in head.lower() and b"\ntransfer-encoding:" in head.lower()


def has_loose_chunks(body: bytes) -> bool:
    """Chunks that are not by the grammar of RFC 9112, 7.1: their lines have spaces or lone CRs or LFs."""
    while chunk := CHUNK_LINE.match(body):
        size = int(chunk[1], 16)
        body = body[chunk.end() :]
        if not size:
            return not TRAILER.match(body)
        if body[size : size + 2] != b"\r\n":
            return True
        body = body[size + 2 :]
    return True
