"""Finds needles in bytes of any size, in one pass and in bounded memory.

A `Scanner` is fed with pieces. What begins near the end of a piece is decided with the next one. Compressed data is
decompressed and fed to a scanner of its own. A hit never shows what is around it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import msgspec

from cadenza.audit.compressed import HEAD_BYTES, START, Data, Packed, Unpacking, find_packed, offsets
from cadenza.audit.needles import NeedleForm, Needles

READ_BYTES = 1024 * 1024
DEPTH_MAX = 2  # an archive in an archive
OPEN_MAX = 64  # compressed data that is read at once by one scanner
UNPACKED_BYTES_MAX = 512 * 1024 * 1024  # of one place
HITS_MAX = 1000  # of one place
NAMED_MAX = 3
LINE_BREAKS = b"\r\n"


Row = tuple[Any, ...]


class NeedleHit(msgspec.Struct, frozen=True):
    """A needle that was found: its name, its form, and where it is."""

    needle: str
    form: str  # such as "plain", or "base64 in gzip"
    place: str
    where: str  # within the place: a file, or a table and a column
    offset: int  # in bytes, from the beginning of the file or value; of compressed data, of its outermost beginning


class Searched(msgspec.Struct, frozen=True):
    """What was searched of one place. `skipped` says what was not, and why."""

    place: str
    size_bytes: int  # as read, before decompression
    hits: list[NeedleHit]
    skipped: list[str]


class PlaceSearch:
    """The search of one place. Everything that is read of it is added; `result` is what came of it."""

    def __init__(self, needles: Needles, place: str, unpacked_bytes_max: int = UNPACKED_BYTES_MAX) -> None:
        self.place = place
        self._forms = needles.forms()
        self._size_bytes = 0
        self._hits = dict[NeedleHit, None]()
        self._skipped = dict[str, list[str]]()  # what, by reason
        self._unpacked_bytes_max = self._unpacked_left = unpacked_bytes_max

    def add(self, data: bytes, where: str = "") -> bool:
        """Search a whole value, and return whether something was found that was not known."""
        before = len(self._hits)
        self.add_pieces((data,), where)
        return len(self._hits) > before

    def add_pieces(self, pieces: Iterable[bytes], where: str = "") -> None:
        """Search a value that comes in pieces."""
        with self.feeding(where) as feed:
            for piece in pieces:
                feed(piece)

    @contextmanager
    def feeding(self, where: str = "") -> Iterator[Callable[[bytes], None]]:
        """Search a value that the block feeds in pieces. If the block fails, the pieces before were searched."""
        scanner = self._scanner(where)

        def feed(piece: bytes) -> None:
            self._size_bytes += len(piece)
            scanner.feed(piece)

        try:
            yield feed
        finally:
            scanner.finish()

    def add_file(self, file: BinaryIO, where: str = "") -> None:
        self.add_pieces(iter(lambda: file.read(READ_BYTES), b""), where)

    def add_rows(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Search every text (bytearray) and blob (bytes) of a table. A hit says which column it is in."""
        batch, size_bytes = list[Row](), 0
        for row in rows:
            batch.append(row)
            size_bytes += sum(len(value) for value in row if isinstance(value, (bytes, bytearray)))
            if size_bytes >= READ_BYTES:
                self._add_batch(table, columns, batch)
                batch, size_bytes = [], 0
        self._add_batch(table, columns, batch)

    def _add_batch(self, table: str, columns: Sequence[str], rows: list[Row]) -> None:
        """Search the texts of all rows at once, and one by one only if something is found."""
        texts = b"\0".join(value for row in rows for value in row if isinstance(value, bytearray))
        found = list[str]()
        trial = Scanner(self._forms, lambda needle, *_: found.append(needle), self.skip, self._take_unpacked)
        trial.feed(texts)
        trial.finish()
        self._size_bytes += 0 if found else len(texts)
        searched_singly = (bytes, bytearray) if found else bytes
        for row in rows:
            for column, value in zip(columns, row, strict=True):
                if isinstance(value, searched_singly):
                    self.add(bytes(value), f"{table}.{column}")

    def add_result(self, searched: Searched) -> None:
        """Add what another search found in a part of this place."""
        self._size_bytes += searched.size_bytes
        self._hits |= dict.fromkeys(searched.hits)
        for skipped in searched.skipped:
            self.skip(skipped)

    def skip(self, reason: str, what: str = "") -> None:
        """Say what could not be searched, and why."""
        self._skipped.setdefault(reason, []).append(what)

    def result(self) -> Searched:
        skipped = [_listed(reason, what) for reason, what in self._skipped.items()]
        return Searched(self.place, self._size_bytes, list(self._hits), skipped)

    def _scanner(self, where: str) -> "Scanner":
        def found(needle: str, form: str, offset: int) -> None:
            if len(self._hits) < HITS_MAX:
                self._hits[NeedleHit(needle, form, self.place, where, offset)] = None
            else:
                self.skip(f"more than {HITS_MAX} hits: the others are not listed")

        return Scanner(self._forms, found, self.skip, self._take_unpacked)

    def _take_unpacked(self, size_bytes: int) -> bool:
        if self._unpacked_left < size_bytes:
            self.skip(f"compressed data beyond {self._unpacked_bytes_max // 2**20} MiB, decompressed")
            return False
        self._unpacked_left -= size_bytes
        return True


def _listed(reason: str, what: list[str]) -> str:
    """The first few of what was skipped for one reason, and how many there are."""
    named = [one for one in what if one][:NAMED_MAX]
    if not named:
        return reason if len(what) == 1 else f"{reason} ({len(what):,})"
    more = f" and {len(what) - len(named)} more" if len(what) > len(named) else ""
    return f"{', '.join(named)}{more}: {reason}"


class Scanner:
    """Looks for all forms of all needles in the data that it is fed.

    `found` gets the name of a needle, its form and its offset; `skip` what cannot be searched; `take` is asked whether
    this many more bytes may be decompressed.
    """

    def __init__(
        self,
        forms: list[NeedleForm],
        found: Callable[[str, str, int], None],
        skip: Callable[[str], None],
        take: Callable[[int], bool],
        depth: int = 0,
    ) -> None:
        self._forms = forms
        self._found = found
        self._skip = skip
        self._take = take
        self._depth = depth
        self._overlap = max([HEAD_BYTES, *(form.length + len(LINE_BREAKS) for form in forms)])
        self._at = 0  # the offset of the tail
        self._tail = b""
        self._open = list[tuple[Unpacking, Scanner]]()
        self._is_begun = False

    def feed(self, data: bytes) -> None:
        for unpacking, inner in self._open:
            self._unpack(unpacking, inner, data)
        self._open = [(unpacking, inner) for unpacking, inner in self._open if unpacking.is_open]
        if not self._is_begun and self._depth == 0:
            self._begin(0, START, data)
        self._is_begun = True
        shown = data if data.strip(b"\0") else data[: self._overlap]  # much of a new file is zeros
        buffer = self._tail + shown
        self._scan(buffer, max(0, len(buffer) - self._overlap))
        self._at += len(data) - len(shown)

    def finish(self) -> None:
        """Decide what the end of the data left open. Compressed data that is cut off was searched as far as it goes."""
        self._scan(self._tail, len(self._tail))
        for _, inner in self._open:
            inner.finish()
        self._open.clear()

    def _scan(self, buffer: bytes, end: int) -> None:
        """Decide everything that begins before `end`, and keep the rest."""
        for form in self._forms:
            for at in offsets(buffer, form.beginning, end):
                self._found(form.name(buffer[at : at + form.length]), form.form, self._at + at)
        self._scan_broken_lines(buffer, end)
        if self._depth < DEPTH_MAX:
            view = memoryview(buffer)
            for at, packed in find_packed(buffer, end):
                self._begin(at, packed, view[at:])
        self._at += end
        self._tail = buffer[end:]

    def _scan_broken_lines(self, buffer: bytes, end: int) -> None:
        """Base64 may be broken into lines, in e-mail for instance."""
        joined = buffer.translate(None, LINE_BREAKS)
        if len(joined) == len(buffer):
            return
        for form in self._forms:
            if form.form == "base64" and form.beginning in joined:
                for match in re.finditer(rb"[\r\n]*".join(map(re.escape, map(bytes, zip(form.beginning)))), buffer):
                    if match.start() < end and len(match[0]) > len(form.beginning):
                        whole = buffer[match.start() : match.start() + form.length + len(LINE_BREAKS)]
                        self._found(form.name(whole.translate(None, LINE_BREAKS)), form.form, self._at + match.start())

    def _begin(self, at: int, packed: Packed, data: Data) -> None:
        if packed.make is None:
            self._skip(f"{packed.form} data, which this program cannot decompress")
            return
        if len(self._open) >= OPEN_MAX:
            self._skip(f"compressed data beyond {OPEN_MAX} pieces at once")
            return
        offset = self._at + at

        def found(needle: str, form: str, _: int) -> None:
            self._found(needle, f"{form} in {packed.form}", offset)

        unpacking = Unpacking(packed)
        inner = Scanner(self._forms, found, self._skip, self._take, self._depth + 1)
        self._unpack(unpacking, inner, data)
        if unpacking.is_open:
            self._open.append((unpacking, inner))

    def _unpack(self, unpacking: Unpacking, inner: "Scanner", data: Data) -> None:
        for piece in unpacking.feed(data):
            if not self._take(len(piece)):
                unpacking.is_open = False
                break
            inner.feed(piece)
        if not unpacking.is_open:
            inner.finish()
