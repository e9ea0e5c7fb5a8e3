"""The body of a page as it arrives: decoded, and bounded in bytes, both as sent and decompressed."""

import math
import zlib

import msgspec

from cadenza.gateway.grounding.search.records import FetchFailed
from cadenza.http.client_connection import STOP

GZIP_WINDOW = 31  # zlib's word for: with the head and check sum of gzip
MEMBERS_MAX = 64  # of one gzip body
IDENTITY = {b"", b"identity"}
GZIP = {b"gzip", b"x-gzip"}


class Allowance(msgspec.Struct, frozen=True):
    """How much of a body is read. More than that is refused, or cut off where `cuts` says so."""

    bytes_max: int
    cuts: bool = False


NOTHING = Allowance(0, cuts=True)


class HeldBytes:
    """The bytes of all bodies that are arriving, bounded together."""

    def __init__(self, bytes_max: int) -> None:
        self._free = bytes_max

    def take(self, count: int) -> None:
        if count > self._free:
            raise FetchFailed("busy")
        self._free -= count

    def give_back(self, count: int) -> None:
        self._free += count


class Gunzip:
    """Decompresses gzip, which may have several members. What follows the last one is ignored."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(GZIP_WINDOW)
        self._members = 0
        self._is_over = False

    def decode(self, data: bytes, bytes_max: int) -> bytes:
        decoded = bytearray()
        while data and len(decoded) < bytes_max and not self._is_over:
            try:
                decoded += self._stream.decompress(data, bytes_max - len(decoded))
            except zlib.error:
                if not self._members:
                    raise FetchFailed("broken") from None
                self._is_over = True
            data = self._stream.unconsumed_tail
            if self._stream.eof:
                data = self._begin_member()
        return bytes(decoded)

    @property
    def is_whole(self) -> bool:
        return self._members > 0

    def _begin_member(self) -> bytes:
        rest = self._stream.unused_data
        self._members += 1
        if self._members >= MEMBERS_MAX:
            raise FetchFailed("broken")
        self._stream = zlib.decompressobj(GZIP_WINDOW)
        return rest


class Body:
    """Receives the parts of one body."""

    def __init__(self, allowance: Allowance, coding: bytes, held: HeldBytes) -> None:
        coding = coding.strip().lower()
        if coding not in IDENTITY | GZIP:
            raise FetchFailed("encoding")
        self._allowance = allowance
        self._gunzip = Gunzip() if coding in GZIP else None
        self._held = held
        self._sent_bytes = 0
        self._data = bytearray()

    def receive(self, part: bytes) -> float:
        """The deadline for the next part, as a receiver of a connection returns it: none, or STOP where it is cut."""
        self._sent_bytes += len(part)
        room = self._allowance.bytes_max - len(self._data)
        decoded = self._gunzip.decode(part, room + 1) if self._gunzip else part
        is_full = len(decoded) > room or self._sent_bytes > self._allowance.bytes_max
        if is_full and not self._allowance.cuts:
            raise FetchFailed("too_large")
        decoded = decoded[:room]
        self._held.take(len(decoded))
        self._data += decoded
        return STOP if is_full else math.inf

    def whole(self) -> bytes:
        """The body, once all of it has arrived."""
        if self._gunzip and not self._gunzip.is_whole:
            raise FetchFailed("broken")
        return bytes(self._data)

    def cut(self) -> bytes:
        """The part that has arrived."""
        return bytes(self._data)

    def close(self) -> None:
        self._held.give_back(len(self._data))
        self._data = bytearray()
