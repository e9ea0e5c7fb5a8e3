"""Brings the index of the local search engine up to date with a folder.

Each file is a transaction of its own, so a run that is stopped leaves a good index and the next run goes on from there.
A file that cannot be read never stops a run: it is listed, its old text leaves the index, and it is tried again by
every run. A file that changes while it is read keeps its old text until the next run.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from cadenza.core.errors import ControlError
from cadenza.grounding.files.reader import ReaderBusy, UnreadableFile
from cadenza.grounding.files.records import Passage
from cadenza.grounding.index.folder_files import (
    FileChanged,
    FolderBounds,
    FolderContent,
    FolderFile,
    TooManyFiles,
    UnreadEntry,
    list_files,
    read_file,
)
from cadenza.grounding.index.local_index import (
    FILE_PASSAGES_MAX,
    Folder,
    IndexUnusable,
    IndexWriter,
    StoredFile,
    list_folders,
    open_writer,
)

OWNER = "index"
CHANGES = "it changed while it was read"
READER_FAILED = "the reader failed; the next run tries again"
TOO_MANY_PASSAGES = "it is too long"


class PassageReader(Protocol):
    """What turns the bytes of a file into passages; `files.reader.DocumentReader`."""

    async def read_passages(self, owner: str, name: str, data: bytes) -> list[Passage]: ...


class IndexOrder(msgspec.Struct, frozen=True):
    """What to index: the content of a folder, and where its files are published (None: as before)."""

    content: FolderContent
    url: str | None
    now_ms: int
    bounds: FolderBounds = FolderBounds()


class Indexed(msgspec.Struct, frozen=True):
    """What a run did, and what the folder then has in the index. `removed` are files that could be searched."""

    files: int
    new: int
    changed: int
    removed: int
    passages: int
    size_bytes: int
    unread: tuple[UnreadEntry, ...]


def look_at_folder(folder: Path, index: Path, bounds: FolderBounds | None = None) -> FolderContent:
    """List the files to index, without those of the index. ControlError if the folder cannot be read."""
    bounds = bounds or FolderBounds()
    try:
        path = folder.resolve(strict=True)
        str(path).encode()
        return _without_index(list_files(path, bounds), str(index.resolve()))
    except UnicodeEncodeError:
        raise ControlError("The name of the folder is not UTF-8. Rename it.") from None
    except TooManyFiles:
        raise ControlError(f"{folder} has more than {bounds.files_max:,} files. Index folders inside it.") from None
    except OSError as error:
        raise ControlError(f"The folder {folder} cannot be read: {error.strerror}.{_hint(folder, index)}") from None


async def index_folder(
    index: Path, order: IndexOrder, reader: PassageReader, after_file: Callable[[], None]
) -> Indexed:
    """Index what is new or changed and remove what is gone. `after_file` is called for each file of the folder."""
    with usable_index(), open_writer(index) as writer:
        path = str(order.content.folder)
        _refuse_overlap(writer.folders(), path)
        folder_id = writer.put_folder(path, order.url, order.now_ms)
        run = _Run(writer, folder_id, order, reader)
        for file in order.content.files:
            await run.update(file)
            after_file()
            await asyncio.sleep(0)  # Ctrl-C is seen here, even if no file needs the reader
        run.remove_missing()
        run.note_unread()
        [folder] = [folder for folder in writer.folders() if folder.id == folder_id]
    return Indexed(
        files=folder.files - folder.unreadable,
        new=run.new,
        changed=run.changed,
        removed=run.removed,
        passages=folder.passages,
        size_bytes=_size(index),
        unread=(*order.content.unread, *run.unread),
    )


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


def _hint(folder: Path, index: Path) -> str:
    """What to do about an indexed folder that is gone."""
    if folder.exists() or not is_indexed(index, folder):
        return ""
    return f" It is in the index; to take it out, run 'cadenza index {folder} --remove'."


def _without_index(content: FolderContent, index: str) -> FolderContent:
    """The files, without the index and what SQLite and the lock of the writer have beside it."""
    files = tuple(file for file in content.files if not f"{content.folder}/{file.path}".startswith(index))
    return FolderContent(content.folder, files, content.unread)


def _size(index: Path) -> int:
    return index.stat().st_size


class _Run:
    """The work of one run over a folder, and its counts."""

    def __init__(self, writer: IndexWriter, folder_id: int, order: IndexOrder, reader: PassageReader) -> None:
        self.new = self.changed = self.removed = 0
        self.unread = list[UnreadEntry]()
        self._writer = writer
        self._folder_id = folder_id
        self._order = order
        self._reader = reader
        self._stored = writer.files(folder_id)

    async def update(self, file: FolderFile) -> None:
        stored = self._stored.get(file.path)
        if stored and not stored.error and (stored.size, stored.mtime_ns) == (file.size, file.mtime_ns):
            return
        bytes_max = self._order.bounds.file_bytes_max
        if file.size > bytes_max:
            self._refuse(file, b"", f"it is larger than {bytes_max / 2**20:g} MiB")
            return
        try:
            read, data = read_file(self._order.content.folder, file.path, self._order.bounds)
        except FileNotFoundError:
            self._remove(file.path)
        except FileChanged:
            self.unread.append(UnreadEntry(file.path, CHANGES))
        except OSError as error:
            self._refuse(file, b"", (error.strerror or "it cannot be opened").lower())
        else:
            await self._index(self._settled(read), data)

    def remove_missing(self) -> None:
        """Remove the files that are gone. Those in a folder that could not be opened may be there still."""
        present = {file.path for file in self._order.content.files}
        closed = tuple(f"{one.path}/" if one.path else "" for one in self._order.content.unread)
        for path in self._stored.keys() - present:
            if not path.startswith(closed):
                self._remove(path)

    def note_unread(self) -> None:
        """Store the names and folders that cannot be read, so that the list of folders counts them."""
        for one in self._order.content.unread:
            self._writer.put_file(self._folder_id, StoredFile(_noted_path(one.path), 0, 0, b"", one.reason), [])

    async def _index(self, file: FolderFile, data: bytes) -> None:
        digest, stored = hashlib.sha256(data).digest(), self._stored.get(file.path)
        if stored and not stored.error and stored.digest == digest:
            self._writer.touch_file(self._folder_id, _stored(file, digest))
            return
        try:
            passages = await self._reader.read_passages(OWNER, file.path.rpartition("/")[2], data)
        except UnreadableFile as error:
            self._refuse(file, digest, error.reason)
            return
        except ReaderBusy:
            self.unread.append(UnreadEntry(file.path, READER_FAILED))
            return
        if len(passages) > FILE_PASSAGES_MAX:
            self._refuse(file, digest, TOO_MANY_PASSAGES)
            return
        self._writer.put_file(self._folder_id, _stored(file, digest), passages)
        self.new += stored is None
        self.changed += stored is not None

    def _refuse(self, file: FolderFile, digest: bytes, reason: str) -> None:
        self._writer.put_file(self._folder_id, _stored(file, digest, reason), [])
        self.unread.append(UnreadEntry(file.path, reason))

    def _remove(self, path: str) -> None:
        if path in self._stored:
            self._writer.remove_file(self._folder_id, path)
            self.removed += not self._stored[path].error

    def _settled(self, file: FolderFile) -> FolderFile:
        """The file; without its time if that is so young that the file may change again and keep it."""
        young_ns = self._order.now_ms * 1_000_000 - round(self._order.bounds.settled_s * 1e9)
        return FolderFile(file.path, file.size, 0) if file.mtime_ns > young_ns else file


def _noted_path(path: str) -> str:
    """A path in UTF-8 that no file can have: those of files do not begin with a slash."""
    return "/" + path.encode(errors="backslashreplace").decode()


def _stored(file: FolderFile, digest: bytes, error: str = "") -> StoredFile:
    return StoredFile(file.path, file.size, file.mtime_ns, digest, error)


def _refuse_overlap(folders: list[Folder], path: str) -> None:
    """A file in two folders of the index would be found twice."""
    for folder in folders:
        if path.startswith(folder.path.rstrip("/") + "/") and path != folder.path:
            raise ControlError(f"{path} is inside {folder.path}, which is indexed already.")
        if folder.path.startswith(path.rstrip("/") + "/") and path != folder.path:
            raise ControlError(f"{path} contains {folder.path}, which is indexed already: remove that first.")
