"""The limits of page fetching."""

import msgspec

MIB = 1024 * 1024


class Kept(msgspec.Struct, frozen=True):
    """How much is kept in memory, and for how long."""

    seconds: float
    entries: int
    bytes: int


class FetchLimits(msgspec.Struct, frozen=True):
    """The limits of one page, and of all pages that one process fetches at a time."""

    connect_s: float = 1.5  # to one address, with the TLS handshake
    page_s: float = 4.0  # for everything: waiting, robots.txt, redirects and the body
    page_bytes: int = 2 * MIB  # of a body, decompressed
    pdf_bytes: int = 8 * MIB
    redirects: int = 5
    at_once: int = 32  # in the whole process
    at_once_per_host: int = 4
    at_once_per_owner: int = 8  # pages, each with its redirects; so slow ones leave room for those of others
    held_bytes: int = 64 * MIB  # of all pages in memory: arriving, waiting to be read, and kept
    pages: Kept = Kept(seconds=600.0, entries=64, bytes=16 * MIB)
    robots: Kept = Kept(seconds=600.0, entries=256, bytes=4 * MIB)
