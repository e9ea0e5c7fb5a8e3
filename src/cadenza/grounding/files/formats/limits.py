"""The bounds of all readers, and the count of what one document has used of them."""

import msgspec

from cadenza.grounding.files.records import Unreadable


class FormatLimits(msgspec.Struct, frozen=True):
    """How much of a document is read. Beyond a bound it is unreadable: a part never poses as the whole."""

    chars_max: int = 8_000_000  # of text, in all
    unpacked_bytes_max: int = 128 * 1024 * 1024  # of all parts of an archive that are read
    entries_max: int = 10_000  # of an archive
    pages_max: int = 3_000  # of a PDF; sheets of a workbook, slides, chapters; of all attachments together
    elements_max: int = 150_000  # of an HTML page
    attachments_max: int = 20  # of an e-mail, and of those inside it
    nesting_max: int = 3  # an e-mail in an e-mail in an e-mail


class Allowance:
    """What is left of the limits for one document, with everything inside it."""

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

    def take_bytes(self, count: int) -> None:
        self._unpacked_bytes -= count
        if self._unpacked_bytes < 0:
            raise Unreadable(f"it is larger than {self.limits.unpacked_bytes_max // 2**20:,} MiB when it is unpacked")

    def take_attachment(self) -> bool:
        """Whether one more attachment may be read."""
        self._attachments -= 1
        return self._attachments >= 0 and self._nesting > 0

    def enter(self) -> None:
        self._nesting -= 1

    def leave(self) -> None:
        self._nesting += 1

    def take_pages(self, count: int, what: str) -> None:
        """An attachment with more pages than are left is not read; the next one may still be."""
        if count > self._pages:
            raise Unreadable(f"it has more than {self.limits.pages_max:,} {what}")
        self._pages -= count
