"""A ZIP archive in memory, read within bounds. The sizes that it states are not believed."""

import io
import zipfile
import zlib
from collections.abc import Iterator

from cadenza.grounding.files.formats.limits import Allowance
from cadenza.grounding.files.records import IS_LOCKED, Unreadable

DIRECTORY_ENTRY = b"PK\x01\x02"
PIECE_BYTES = 64 * 1024
ENCRYPTED = 0x1
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
DAMAGED = "it is damaged or incomplete"
FAULTS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError)


class Archive:
    """The entries of an archive, by their names in lower case. Duplicates: the last counts."""

    def __init__(self, data: bytes, allowance: Allowance) -> None:
        entries_max = allowance.limits.entries_max
        if data.count(DIRECTORY_ENTRY) > entries_max:  # before anything is allocated for them
            raise Unreadable(f"it is an archive with more than {entries_max:,} entries")
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except FAULTS:
            raise Unreadable(DAMAGED) from None
        self._allowance = allowance
        self._entries = {entry.filename.replace("\\", "/").lower(): entry for entry in self._zip.infolist()}

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def has(self, name: str) -> bool:
        return name.lower() in self._entries

    def read(self, name: str) -> bytes:
        return b"".join(self.stream(name))

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
                    self._allowance.take_bytes(len(piece))
                    yield piece
        except FAULTS:
            raise Unreadable(DAMAGED) from None
