"""Compressed data inside of other data: found by how it begins, and decompressed piece by piece within bounds.

Raw deflate has no signature. It is tried at the beginning of a file or value only.
"""

import bz2
import lzma
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

PIECE_BYTES = 256 * 1024
SLICE_BYTES = 4096  # what begins like compressed data and is not fails here
HEAD_BYTES = 30  # of the longest signature: the fixed part of a member of a ZIP archive
ZIP_IS_ENCRYPTED = 1
ZIP_STORED, ZIP_DEFLATED, ZIP_BZIP2 = 0, 8, 12
ZIP_METHODS = frozenset({ZIP_STORED, 1, 6, ZIP_DEFLATED, 9, 10, ZIP_BZIP2, 14, 93, 95, 96, 97, 98, 99})
RAW_DEFLATE = -zlib.MAX_WBITS


Data = bytes | memoryview


class Decompressor(Protocol):
    """What zlib, bz2 and lzma have in common."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: Data, max_length: int, /) -> bytes: ...


class Packed(msgspec.Struct, frozen=True):
    """Compressed data that begins somewhere. `make` is None if this program cannot decompress it."""

    form: str
    make: Callable[[], Decompressor] | None
    skip: int = 0  # bytes between the signature and the data


def deflate() -> Decompressor:
    return zlib.decompressobj(RAW_DEFLATE)


GZIP = Packed("gzip", lambda: zlib.decompressobj(zlib.MAX_WBITS | 16))
ZLIB = Packed("deflate", zlib.decompressobj)
BZIP2 = Packed("bzip2", bz2.BZ2Decompressor)
XZ = Packed("xz", lzma.LZMADecompressor)
START = Packed("deflate", deflate)

SIGNATURES: dict[bytes, Packed] = {
    b"\x1f\x8b\x08": GZIP,
    b"BZh": BZIP2,
    b"\xfd7zXZ\0": XZ,
    b"\x28\xb5\x2f\xfd": Packed("Zstandard", None),
    b"\x04\x22\x4d\x18": Packed("LZ4", None),
}
ZIP_SIGNATURE = b"PK\x03\x04"
ZLIB_SIGNATURE = re.compile(rb"x[\x01\x5e\x9c\xda]")


def find_packed(data: bytes, end: int) -> Iterator[tuple[int, Packed]]:
    """What may be compressed data that begins before `end`, with its offset. If it is not, its first bytes fail."""
    for signature, packed in SIGNATURES.items():
        yield from ((at, packed) for at in offsets(data, signature, end))
    yield from ((match.start(), ZLIB) for match in ZLIB_SIGNATURE.finditer(data, 0, end + 1))
    for at in offsets(data, ZIP_SIGNATURE, end):
        if member := _zip_member(data[at : at + HEAD_BYTES]):
            yield at, member


def offsets(data: bytes, part: bytes, end: int) -> Iterator[int]:
    """Where `part` begins before `end`."""
    at = data.find(part)
    while 0 <= at < end:
        yield at
        at = data.find(part, at + 1)


def _zip_member(head: bytes) -> Packed | None:
    """The member of a ZIP archive with this head. One that is stored needs no decompression."""
    if len(head) < HEAD_BYTES:
        return None
    flags, method = struct.unpack_from("<HH", head, 6)
    name_bytes, extra_bytes = struct.unpack_from("<HH", head, 26)
    if method not in ZIP_METHODS:  # the signature by chance
        return None
    if flags & ZIP_IS_ENCRYPTED:
        return Packed("encrypted ZIP", None)
    if method == ZIP_STORED:
        return None
    make = {ZIP_DEFLATED: deflate, ZIP_BZIP2: bz2.BZ2Decompressor}.get(method)
    return Packed("ZIP", make, HEAD_BYTES + name_bytes + extra_bytes)


class Unpacking:
    """Compressed data as it arrives. It ends by itself, or at the first byte that is not of it."""

    def __init__(self, packed: Packed) -> None:
        assert packed.make
        self.form = packed.form
        self.is_open = True
        self._decompressor = packed.make()
        self._skip = packed.skip

    def feed(self, data: Data) -> Iterator[bytes]:
        """The decompressed pieces."""
        if self._skip:
            self._skip, data = max(0, self._skip - len(data)), data[self._skip :]
        try:
            for start in range(0, len(data), SLICE_BYTES):
                if not self.is_open:
                    return
                yield from self._decompress(data[start : start + SLICE_BYTES])
        except (zlib.error, OSError, lzma.LZMAError):
            self.is_open = False

    def _decompress(self, data: Data) -> Iterator[bytes]:
        piece = bytes(PIECE_BYTES)
        while data or len(piece) == PIECE_BYTES:
            piece = self._decompressor.decompress(data, PIECE_BYTES)
            data = getattr(self._decompressor, "unconsumed_tail", b"")  # bz2 and lzma keep it themselves
            yield piece
            self.is_open = self.is_open and not self._decompressor.eof
            if not self.is_open:
                return
