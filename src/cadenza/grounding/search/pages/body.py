"""The body of a page as it arrives: decoded, and bounded in bytes, both as sent and decompressed.

Decompressing is done in slices, so that a part which explodes does not hold the event loop.
"""

import math
import weakref
import zlib

import msgspec

from cadenza.grounding.search.records import FetchFailed
from cadenza.http.client_connection import STOP

GZIP_WINDOW = 31  # zlib's word for: with the head and check sum of gzip
SLICE_BYTES = 64 * 1024  # of decompressed output; several pages may be decompressed in one turn of the event loop
MEMBERS_MAX = 64  # of one gzip body
IDENTITY = {b"", b"identity"}
GZIP = {b"gzip", b"x-gzip"}


class Allowance(msgspec.Struct, frozen=True):
    """How much of a body is read. More than that is refused, or cut off where `cuts` says so."""

    bytes_max: int
    cuts: bool = False


NOTHING = Allowance(0, cuts=True)


class HeldBytes:
    """The bytes of all bodies that are arriving and of all pages that somebody still has, bounded together."""

    def __init__(self, bytes_max: int) -> None:
        self._free = bytes_max

    def take(self, count: int) -> None:
        if count > self._free:
            raise FetchFailed("busy")
        self._free -= count

    def give_back(self, count: int) -> None:
        self._free += count

    def hold_for(self, owner: object, count: int) -> None:
        """Take so many bytes until nobody has the owner any more."""
        self.take(count)
        weakref.finalize(owner, self.give_back, count).atexit = False


class Gunzip:
    """Decompresses gzip, which may have several members. What follows the last one is ignored."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(GZIP_WINDOW)
        self._members = 0
        self._is_over = False

    def decode(self, data: bytes, bytes_max: int) -> tuple[bytes, bytes]:
        """At most so many bytes, and the data that was not needed for them."""
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
        return bytes(decoded), b"" if self._is_over else data

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
        self._pending = b""  # not decompressed yet
        self._data = bytearray()
        self.is_full = False

    def receive(self, part: bytes) -> float:
        """As a receiver of a connection: no deadline for the next part, or STOP where it is full or has more to do."""
        assert not self._pending
        self._sent_bytes += len(part)
        self._pending = part
        self.decode_slice()
        return STOP if self._pending or self.is_full else math.inf

    @property
    def has_pending(self) -> bool:
        """Whether `decode_slice` must be called before the next part is received."""
        return bool(self._pending)

    def decode_slice(self) -> None:
        room = self._allowance.bytes_max - len(self._data)
        decoded, rest = self._pending, b""
        if self._gunzip:
            decoded, rest = self._gunzip.decode(self._pending, min(room + 1, SLICE_BYTES))
        self.is_full = len(decoded) > room or self._sent_bytes > self._allowance.bytes_max
        if self.is_full and not self._allowance.cuts:
            raise FetchFailed("too_large")
        self._pending = b"" if self.is_full else rest
        decoded = decoded[:room]
        self._held.take(len(decoded))
        self._data += decoded

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
