"""The folders in the index of the local search engine: which there are, and their removal."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cadenza.core.errors import ControlError
from cadenza.grounding.index.local_index import Folder, IndexUnusable, list_folders, open_writer


def indexed_folders(index: Path) -> list[Folder]:
    """The folders, oldest first. None where there is no index."""
    with usable_index():
        return list_folders(index)


def is_indexed(index: Path, folder: Path) -> bool:
    return str(folder.resolve()) in {one.path for one in indexed_folders(index)}


def remove_folder(index: Path, folder: Path) -> Folder:
    """Take a folder out of the index, whether it still exists or not, and return what it was."""
    path = str(folder.resolve())
    if not is_indexed(index, folder):
        raise ControlError(f"{folder} is not in the index. Run 'cadenza index' to see which folders are.")
    with usable_index(), open_writer(index) as writer:
        [found] = [one for one in writer.folders() if one.path == path]
        writer.remove_folder(found.id)
    return found


@contextlib.contextmanager
def usable_index() -> Iterator[None]:
    """Tell the person at the command line why the index cannot be used."""
    try:
        yield
    except IndexUnusable as error:
        raise ControlError(str(error)) from None
