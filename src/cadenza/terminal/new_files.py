"""Files that commands write for their user, such as reports and exports: private, and never over another file."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cadenza.store.sqlite.files import new_private_file


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Make the file, which only this user can read, for the block. If the block fails, no file stays.

    ValueError if there is a file of that name, or the file system refuses.
    """
    try:
        with new_private_file(path), path.open("wb") as file:
            yield file
    except FileExistsError:
        raise ValueError(f"{path} exists already: give another name, or move it away.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}.") from None
