"""What every reader gets: the file, the archive that it may be, and a budget for reading it."""

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import msgspec

from cadenza.core.files import FileType, file_type
from cadenza.parts.grounding.files.records import IS_LOCKED, Unreadable

START_BYTES = 1024  # in which a signature or a header must be
DIRECTORY_ENTRY = b"PK\x01\x02"
PIECE_BYTES = 64 * 1024
ENCRYPTED = 0x1
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
DAMAGED = "it is damaged or incomplete"
FAULTS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError)


class FormatLimits(msgspec.Struct, frozen=True):
    """How much of a document is read. A document beyond a limit is unreadable: it is never cut without a word."""

    chars_max: int = 8_000_000  # of text, in all
    unpacked_bytes_max: int = 128 * 1024 * 1024  # of all parts of an archive that are read
    entries_max: int = 10_000  # of an archive
    pages_max: int = 3_000  # of a PDF; sheets of a workbook, slides; of all attachments together
    elements_max: int = 150_000  # of an HTML page
    attachments_max: int = 20  # of an e-mail, and of those inside it
    nesting_max: int = 3  # an e-mail in an e-mail in an e-mail


class ReadBudget:
    """What is left of the limits for one document and everything inside it. Raises Unreadable beyond them."""

    def __init__(self, limits: FormatLimits) -> None:
        self.limits = limits
        self._chars = limits.chars_max
        self._unpacked_bytes = limits.unpacked_bytes_max
        self._pages = limits.pages_max
        self._attachments = limits.attachments_max
        self._nesting = limits.nesting_max

    def take_chars(self, count: int) -> None:
        self._chars -= count
        if self._chars < 0:
            raise Unreadable(f"it has more than {self.limits.chars_max:,} characters of text")

    def take_unpacked_bytes(self, count: int) -> None:
        self._unpacked_bytes -= count
        if self._unpacked_bytes < 0:
            raise Unreadable(f"it is larger than {self.limits.unpacked_bytes_max // 2**20:,} MiB when it is unpacked")

    def take_pages(self, count: int, what: str) -> None:
        """An attachment that has too many pages takes none, so the next attachment may still be read."""
        if count > self._pages:
            raise Unreadable(f"it has more than {self.limits.pages_max:,} {what}")
        self._pages -= count

    @contextmanager
    def attachment(self) -> Iterator[None]:
        """In this block, an attachment is read."""
        self._attachments -= 1
        if self._attachments < 0 or self._nesting <= 0:
            raise Unreadable("too many attachments")
        self._nesting -= 1
        try:
            yield
        finally:
            self._nesting += 1


class Archive:
    """A ZIP archive in memory. Names ignore case; of duplicates, the last counts. Stated sizes are not trusted."""

    def __init__(self, data: bytes, budget: ReadBudget) -> None:
        entries_max = budget.limits.entries_max
        if data.count(DIRECTORY_ENTRY) > entries_max:  # before anything is allocated for them
            raise Unreadable(f"it is an archive with more than {entries_max:,} entries")
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except FAULTS:
            raise Unreadable(DAMAGED) from None
        self._budget = budget
        self._entries = {entry.filename.replace("\\", "/").lower(): entry for entry in self._zip.infolist()}

    def has(self, name: str) -> bool:
        return name.lower() in self._entries

    def has_any(self, starts: tuple[str, ...]) -> bool:
        """Whether an entry's name begins with one of these."""
        return any(name.startswith(starts) for name in self._entries)

    def stream(self, name: str) -> Iterator[bytes]:
        """The bytes of an entry, as they are unpacked. Unreadable if it is missing."""
        entry = self._entries.get(name.lower())
        if entry is None:
            raise Unreadable(DAMAGED)
        if entry.flag_bits & ENCRYPTED:
            raise Unreadable(IS_LOCKED)
        if entry.compress_type not in METHODS:
            raise Unreadable("it is compressed by a method that is not supported")
        try:
            with self._zip.open(entry) as unpacked:
                while piece := unpacked.read(PIECE_BYTES):
                    self._budget.take_unpacked_bytes(len(piece))
                    yield piece
        except FAULTS:
            raise Unreadable(DAMAGED) from None


class SourceFile:
    """A file to be read, what its sender said of it (name, media type, charset), and the budget for reading it."""

    def __init__(self, name: str, media_type: str, data: bytes, budget: ReadBudget, charset: str = "") -> None:
        self.name = name.lower().strip()
        self.media_type = media_type.partition(";")[0].strip().lower()
        self.data = data
        self.budget = budget
        self.charset = charset
        self.start = data[:START_BYTES]
        self.type = file_type(self.start)

    @cached_property
    def zip(self) -> Archive | None:
        """The archive, if it is a ZIP file. Unreadable if it is damaged."""
        return Archive(self.data, self.budget) if self.type is FileType.ZIP else None

    @property
    def archive(self) -> Archive:
        assert self.zip
        return self.zip
