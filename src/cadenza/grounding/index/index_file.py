"""The file of the local search engine's index, without SQLite: whether it is there, and whether it is an index.

`cadenza serve` asks this at its start, so it reads the first bytes only and imports nothing of the search.
"""

from pathlib import Path

APPLICATION_ID = 0x63647A69  # "cdzi", in the header of the file
MAGIC = b"SQLite format 3\0"
ID_AT = 68  # in the header of every SQLite file, with the highest byte first
ID_BYTES = 4


def index_exists(path: Path) -> bool:
    """Whether there is an index: one look at the file system. A file without content is none yet."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def why_not_an_index(path: Path) -> str | None:
    """Why this file cannot be an index, as the end of a sentence; None if it looks like one."""
    try:
        with path.open("rb") as file:
            header = file.read(ID_AT + ID_BYTES)
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    is_index = header.startswith(MAGIC) and int.from_bytes(header[ID_AT:]) == APPLICATION_ID
    return None if is_index else "is not a search index"
