"""The places of files: folders, the files of a SQLite store, and bytes that the caller already has.

Each function returns what was searched of its place. What cannot be read is in `skipped`, with the reason.
"""

from collections.abc import Iterable
from pathlib import Path

from cadenza.audit.needles import Needles
from cadenza.audit.search import PlaceSearch, Searched


def search_bytes(needles: Needles, place: str, data: bytes | Iterable[bytes]) -> Searched:
    """Bytes that the caller has: a log that it captured, the text of /metrics, traces that it received."""
    search = PlaceSearch(needles, place)
    search.add_pieces(iter((data,)) if isinstance(data, bytes) else iter(data))
    return search.result()


def search_file(needles: Needles, place: str, path: Path) -> Searched:
    """One file of any size. A file that is not there is not an error: it holds nothing."""
    search = PlaceSearch(needles, place)
    try:
        with path.open("rb") as file:
            search.add_file(file, path.name)
    except FileNotFoundError:
        pass
    except OSError as error:
        search.skip(f"{path}: {error.strerror}")
    return search.result()


def search_folder(needles: Needles, place: str, folder: Path, since_s: float | None = None) -> Searched:
    """All files under a folder, with their names. Links are not followed.

    `since_s` (Unix time) leaves out files that did not change after it: they are older than the needles.
    """
    raise NotImplementedError


def search_sqlite(needles: Needles, database: Path) -> list[Searched]:
    """A SQLite store: its files with deleted rows in free pages, every value of every table, and backups beside it."""
    raise NotImplementedError
