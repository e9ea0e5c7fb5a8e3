"""Brings the index of the local search engine up to date with a folder.

Each file is a transaction of its own, so a run that is stopped leaves a good index and the next run goes on from there.
A file that cannot be read never stops a run: it is listed, its old text leaves the index, and it is tried again by
every run. A file that changes while it is read keeps its old text until the next run.
"""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from cadenza.core.errors import ControlError, UnreadableAttachment
from cadenza.grounding.files.reader import ReaderBusy
from cadenza.grounding.files.records import Section
from cadenza.grounding.index.folder_files import (
    FileChanged,
    FolderBounds,
    FolderContent,
    FolderFile,
    TooManyFiles,
    UnreadEntry,
    list_files,
    read_file,
    why_not_opened,
)
from cadenza.grounding.index.local_index import (
    FILE_PASSAGES_MAX,
    Folder,
    IndexWriter,
    StoredFile,
    list_folders,
    open_writer,
)


class PassageReader(Protocol):
    """Turns the bytes of a file into passages: `files.reader.DocumentReader`."""

    async def read_passages(self, owner: str, name: str, data: bytes) -> list[Section]: ...


class IndexTask(msgspec.Struct, frozen=True):
    """The content of a folder to index, and where its files are published (None: as before)."""

    content: FolderContent
    url: str | None
    now_ms: int
    bounds: FolderBounds = FolderBounds()


class Indexed(msgspec.Struct, frozen=True):
    """What a run did, and what the folder then has in the index. `removed` does not count unreadable files."""

    files: int
    new: int
    changed: int
    removed: int
    passages: int
    size_bytes: int
    unread: tuple[UnreadEntry, ...]


def scan_folder(folder: Path, index: Path, bounds: FolderBounds | None = None) -> FolderContent:
    """The files to index, without the index itself. ControlError if the folder cannot be read."""
    bounds = bounds or FolderBounds()
    try:
        path = folder.resolve(strict=True)
        str(path).encode()
        content = list_files(path, bounds)
        beside = str(index.resolve())  # the index, its lock and SQLite's files beside it
    except UnicodeEncodeError:
        raise ControlError("The name of the folder is not UTF-8. Rename it.") from None
    except TooManyFiles:
        raise ControlError(f"{folder} has more than {bounds.files_max:,} files. Index folders inside it.") from None
    except OSError as error:
        raise ControlError(f"The folder {folder} cannot be read: {error.strerror}.{_hint(folder, index)}") from None
    files = tuple(file for file in content.files if not f"{path}/{file.path}".startswith(beside))
    return msgspec.structs.replace(content, files=files)


async def index_folder(index: Path, task: IndexTask, reader: PassageReader, after_file: Callable[[], None]) -> Indexed:
    """Index new and changed files and remove deleted ones. `after_file` is called for each file of the folder."""
    with open_writer(index) as writer:
        path = str(task.content.folder)
        _refuse_overlap(writer.folders(), path)
        folder_id = writer.put_folder(path, task.url, task.now_ms)
        run = _Run(writer, folder_id, task, reader)
        for file in task.content.files:
            await run.update(file)
            after_file()
            await asyncio.sleep(0)  # Ctrl-C is seen here, even if no file needs the reader
        run.remove_missing()
        run.store_unread()
        [folder] = [folder for folder in writer.folders() if folder.id == folder_id]
    return Indexed(
        files=folder.files - folder.unreadable,
        new=run.new,
        changed=run.changed,
        removed=run.removed,
        passages=folder.passages,
        size_bytes=_size_bytes(index),
        unread=(*task.content.unread, *run.unread),
    )


def is_indexed(index: Path, folder: Path) -> bool:
    return str(folder.resolve()) in {one.path for one in list_folders(index)}


def remove_folder(index: Path, folder: Path) -> Folder:
    """Take a folder out of the index, and return what it was. It may be deleted already."""
    path = str(folder.resolve())
    if not is_indexed(index, folder):
        raise ControlError(f"{folder} is not in the index. Run 'cadenza index' to see which folders are.")
    with open_writer(index) as writer:
        [found] = [one for one in writer.folders() if one.path == path]
        writer.remove_folder(found.id)
    return found


def _size_bytes(index: Path) -> int:
    return index.stat().st_size


def _hint(folder: Path, index: Path) -> str:
    """What to do about an indexed folder that was deleted."""
    if folder.exists() or not is_indexed(index, folder):
        return ""
    return f" It is in the index; to take it out, run 'cadenza index {folder} --remove'."


class _Run:
    """One run over a folder, and its counts."""

    def __init__(self, writer: IndexWriter, folder_id: int, task: IndexTask, reader: PassageReader) -> None:
        self.new = self.changed = self.removed = 0
        self.unread = list[UnreadEntry]()
        self._writer = writer
        self._folder_id = folder_id
        self._task = task
        self._reader = reader
        self._stored = writer.files(folder_id)

    async def update(self, file: FolderFile) -> None:
        stored = self._stored.get(file.path)
        if stored and not stored.error and (stored.size, stored.mtime_ns) == (file.size, file.mtime_ns):
            return
        bytes_max = self._task.bounds.file_bytes_max
        if file.size > bytes_max:
            self._refuse(file, b"", f"it is larger than {bytes_max / 2**20:g} MiB")
            return
        try:
            read, data = read_file(self._task.content.folder, file.path, self._task.bounds)
        except FileNotFoundError:
            self._remove(file.path)
        except FileChanged:
            self.unread.append(UnreadEntry(file.path, "it changed while it was read"))
        except OSError as error:
            self._refuse(file, b"", why_not_opened(error))
        else:
            await self._index(self._settled(read), data)

    def remove_missing(self) -> None:
        """Remove deleted files. Those in a folder that could not be opened may still exist."""
        present = {file.path for file in self._task.content.files}
        closed = tuple(f"{one.path}/" if one.path else "" for one in self._task.content.unread)
        for path in self._stored.keys() - present:
            if not path.startswith(closed):
                self._remove(path)

    def store_unread(self) -> None:
        """Store the names and folders that cannot be read, so that the list of folders counts them."""
        for one in self._task.content.unread:  # a path in UTF-8 that no file has: it begins with a slash
            path = "/" + one.path.encode(errors="backslashreplace").decode()
            self._writer.put_file(self._folder_id, StoredFile(path, 0, 0, b"", one.reason), [])

    async def _index(self, file: FolderFile, data: bytes) -> None:
        digest, stored = hashlib.sha256(data).digest(), self._stored.get(file.path)
        if stored and not stored.error and stored.digest == digest:
            self._writer.touch_file(self._folder_id, _stored(file, digest))
            return
        try:
            passages = await self._reader.read_passages("index", file.path.rpartition("/")[2], data)
        except UnreadableAttachment as error:
            self._refuse(file, digest, error.reason)
            return
        except ReaderBusy:
            self.unread.append(UnreadEntry(file.path, "the reader failed; the next run tries again"))
            return
        if len(passages) > FILE_PASSAGES_MAX:
            self._refuse(file, digest, "it is too long")
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
        """The file; without its time if it is so recent that the file may change again and keep it."""
        recent_ns = self._task.now_ms * 1_000_000 - round(self._task.bounds.settled_s * 1e9)
        return FolderFile(file.path, file.size, 0) if file.mtime_ns > recent_ns else file


def _stored(file: FolderFile, digest: bytes, error: str = "") -> StoredFile:
    return StoredFile(file.path, file.size, file.mtime_ns, digest, error)


def _refuse_overlap(folders: list[Folder], path: str) -> None:
    """A file in two folders of the index would be found twice."""
    for folder in folders:
        if path.startswith(folder.path.rstrip("/") + "/") and path != folder.path:
            raise ControlError(f"{path} is inside {folder.path}, which is indexed already.")
        if folder.path.startswith(path.rstrip("/") + "/") and path != folder.path:
            raise ControlError(f"{path} contains {folder.path}, which is indexed already: remove that first.")
