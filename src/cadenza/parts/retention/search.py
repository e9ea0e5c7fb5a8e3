"""Finds canaries in bytes of any size, in bounded memory: window by window, and inside of compressed data.

Compressed data is recognised by how it begins; raw deflate, which has no signature, only at the beginning of a file or
value. A hit never shows what is around it.
"""

import bz2
import lzma
import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from cadenza.parts.retention.canaries import TRUNCATED, CanarySet

WINDOW_BYTES = 8 * 1024 * 1024  # what begins in one window is searched up to the end of the next
SLICE_BYTES = 4096  # what begins like compressed data and is not fails here
UNPACKED_BYTES_MAX = 64 * 1024 * 1024
DEPTH_MAX = 2  # an archive in an archive
NAMED_MAX = 3
LINE_BREAKS = b"\r\n"  # base64 may be broken into lines, in e-mail for instance
ZIP_HEAD_BYTES = 30
ZIP_STORED, ZIP_DEFLATED, ZIP_METHOD_MAX = 0, 8, 99
SIGNATURES = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"\x04\x22\x4d\x18": "LZ4",
    b"PK\x03\x04": "ZIP",
}
SIGNATURE = re.compile(b"|".join([*map(re.escape, SIGNATURES), rb"x[\x01\x5e\x9c\xda]"]))  # the last one is zlib's
DECOMPRESSORS: dict[str, Callable[[], "zlib._Decompress | bz2.BZ2Decompressor | lzma.LZMADecompressor"]] = {
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "deflate": zlib.decompressobj,
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
    "raw deflate": lambda: zlib.decompressobj(-zlib.MAX_WBITS),
}


class CanaryHit(NamedTuple):
    """A canary that was found: its name, its form, and where it is."""

    canary: str
    form: str  # such as "plain", or "base64 in gzip"
    where: str  # within the place: a file, or a table and a column


class PlaceSearch:
    """The search of one place, and what came of it. `hits` counts how often each is there."""

    def __init__(self, canaries: CanarySet, place: str) -> None:
        self.place = place
        self.size_bytes = 0  # as read, before decompression
        self.hits = Counter[CanaryHit]()
        self._canaries = canaries
        self._skipped = dict[str, list[str]]()  # what, by reason

    def skip(self, reason: object, what: str = "") -> None:
        """Record what could not be searched, and why."""
        self._skipped.setdefault(str(reason), []).append(what)

    @property
    def skipped(self) -> list[str]:
        """Each reason, with the first few of what was skipped for it and their number."""
        named = {reason: ", ".join(sorted({*what} - {""})[:NAMED_MAX]) for reason, what in self._skipped.items()}
        lines = {reason: f"{what}: {reason}" if what else reason for reason, what in named.items()}
        counts = {reason: f" ({len(what):,} in all)" if what[1:] else "" for reason, what in self._skipped.items()}
        return [line + counts[reason] for reason, line in lines.items()]

    def add(self, data: bytes, where: str = "") -> bool:
        """Search a whole value, and return whether something was found."""
        before = self.hits.total()
        with self.feeding(where) as feed:
            feed(data)
        return self.hits.total() > before

    @contextmanager
    def feeding(self, where: str = "") -> Iterator[Callable[[bytes], None]]:
        """Search a value that the block feeds in pieces. If the block fails, the pieces before it are searched."""
        waiting, is_start = bytearray(), True

        def search(end: int) -> None:
            nonlocal is_start
            self._search(bytes(waiting), end, where, is_start=is_start)
            del waiting[:end]
            is_start = False

        def feed(piece: bytes) -> None:
            self.size_bytes += len(piece)
            waiting.extend(piece)
            while len(waiting) >= 2 * WINDOW_BYTES:
                search(WINDOW_BYTES)

        try:
            yield feed
        finally:
            search(len(waiting))

    def _search(self, data: bytes, end: int, where: str, inside: str = "", *, is_start: bool = False) -> None:
        """Find what begins before `end`. `inside` says what the data was unpacked from."""
        joined, joined_end = data.translate(None, LINE_BREAKS), len(data[:end].translate(None, LINE_BREAKS))
        for form in self._canaries.forms():
            text, limit = (joined, joined_end) if form.form == "base64" else (data, end)
            at = text.find(form.beginning)
            while 0 <= at < limit:
                name = form.names.get(text[at : at + form.length], TRUNCATED)
                self.hits[CanaryHit(name, form.form + inside, where)] += 1
                at = text.find(form.beginning, at + 1)
        if inside.count(" in ") == DEPTH_MAX:
            return
        if is_start:
            self._unpack("deflate", "raw deflate", memoryview(data), where, inside)
        for match in SIGNATURE.finditer(data, 0, min(end + ZIP_HEAD_BYTES, len(data))):
            if match.start() < end:
                self._unpack(*_packed(data, match), where, inside)

    def _unpack(self, form: str, method: str | None, data: memoryview, where: str, inside: str) -> None:
        """Search what the data unpacks to. If it is damaged, or begins like this by chance, it ends there."""
        if method not in DECOMPRESSORS:
            if method is not None:
                self.skip(f"{form} data, which this program cannot decompress", where)
            return
        decompressor, unpacked, start = DECOMPRESSORS[method](), bytearray(), 0
        try:
            while start < len(data) and not decompressor.eof and len(unpacked) <= UNPACKED_BYTES_MAX:
                unpacked += decompressor.decompress(data[start : start + SLICE_BYTES])
                start += SLICE_BYTES
            if not decompressor.eof and (start < len(data) or len(data) >= WINDOW_BYTES):
                self.skip(
                    f"{form} data beyond {WINDOW_BYTES // 2**20} MiB, or {UNPACKED_BYTES_MAX // 2**20} unpacked", where
                )
        except (zlib.error, OSError, lzma.LZMAError):
            pass
        if unpacked:
            self._search(bytes(unpacked), len(unpacked), where, f" in {form}{inside}")


def _packed(data: bytes, match: re.Match[bytes]) -> tuple[str, str | None, memoryview]:
    """What may be compressed data: its form, how to decompress it (None: it need not be), and where it begins."""
    at, view, form = match.start(), memoryview(data), SIGNATURES.get(match[0], "deflate")
    if form != "ZIP":
        return form, form, view[at:]
    if len(data) < at + ZIP_HEAD_BYTES:
        return form, None, view
    flags, method, name_bytes, extra_bytes = struct.unpack_from("<HH16xHH", data, at + 6)
    if method > ZIP_METHOD_MAX or (method == ZIP_STORED and not flags & 1):  # the signature by chance, or as it is
        return form, None, view
    can_unpack = method == ZIP_DEFLATED and not flags & 1  # else it is encrypted, or rare
    return form, "raw deflate" if can_unpack else "", view[at + ZIP_HEAD_BYTES + name_bytes + extra_bytes :]
