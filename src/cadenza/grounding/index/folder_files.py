"""The files of an indexed folder, and their bytes.

Hidden files and folders and symbolic links are left out, and nothing outside the folder is ever opened, even if a part
of a path becomes a link while it is read. A file that changes while it is read is not used.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

MIB = 1024 * 1024
SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__"})  # besides hidden ones, such as .git and .venv
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in place of the file does not block


class FolderBounds(msgspec.Struct, frozen=True):
    """The largest file that is read, and the most files of a folder.

    A file that changed less than `settled_s` ago may change again with the same size and time, so the next run compares
    its digest.
    """

    file_bytes_max: int = 32 * MIB
    files_max: int = 200_000
    settled_s: float = 2.0


class FolderFile(msgspec.Struct, frozen=True):
    """A file, by its path relative to the folder."""

    path: str
    size: int
    mtime_ns: int


class UnreadEntry(msgspec.Struct, frozen=True):
    """A file or folder that could not be read. The reason ends a sentence: "it is encrypted"."""

    path: str
    reason: str


class FolderContent(msgspec.Struct, frozen=True):
    """The files in a folder, sorted by path, and the folders and names in it that cannot be read."""

    folder: Path
    files: tuple[FolderFile, ...]
    unread: tuple[UnreadEntry, ...]


class TooManyFiles(Exception):
    """The folder has more files than an index takes."""


class FileChanged(Exception):
    """The file changed while it was read."""


def list_files(folder: Path, bounds: FolderBounds) -> FolderContent:
    """Walk the folder. OSError if it cannot be opened; folders in it that cannot be opened are listed as unread."""
    found, unread, waiting = list[FolderFile](), list[UnreadEntry](), [""]
    with _opened(str(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as root:
        while waiting:
            inside = waiting.pop()
            try:
                with _opened_beneath(root, inside, DIRECTORY) as opened:
                    entries = _entries(opened, inside)
            except OSError as error:
                unread.append(UnreadEntry(inside, why_not_opened(error)))
                continue
            for path, info in entries:
                if not _is_utf8(path):
                    unread.append(UnreadEntry(path, "its name is not UTF-8"))
                elif stat.S_ISDIR(info.st_mode):
                    waiting.append(path)
                else:
                    found.append(FolderFile(path, info.st_size, info.st_mtime_ns))
            if len(found) > bounds.files_max:
                raise TooManyFiles
    return FolderContent(folder, tuple(sorted(found, key=lambda file: file.path)), tuple(unread))


def read_file(folder: Path, path: str, bounds: FolderBounds) -> tuple[FolderFile, bytes]:
    """A file's bytes, and its size and time. FileChanged if it changed while it was read."""
    with (
        _opened(str(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as root,
        _opened_beneath(root, path, FILE) as opened,
    ):
        before = os.fstat(opened)
        if not stat.S_ISREG(before.st_mode) or before.st_size > bounds.file_bytes_max:
            raise FileChanged
        with open(opened, "rb", closefd=False) as file:
            data = file.read(bounds.file_bytes_max + 1)
        after = os.fstat(opened)
    is_same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    if not is_same or len(data) != before.st_size:
        raise FileChanged
    return FolderFile(path, before.st_size, before.st_mtime_ns), data


def _entries(opened: int, inside: str) -> list[tuple[str, os.stat_result]]:
    """The files and folders to index in an open folder, with their paths."""
    found = list[tuple[str, os.stat_result]]()
    with os.scandir(opened) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and entry.name in SKIPPED_FOLDERS:
                continue
            if is_folder or entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    path = f"{inside}/{entry.name}" if inside else entry.name
                    found.append((path, entry.stat(follow_symlinks=False)))
    return found


@contextlib.contextmanager
def _opened_beneath(root: int, path: str, flags: int) -> Iterator[int]:
    """Open a path part by part, so that no part of it may be a link."""
    *parents, last = path.split("/") if path else ["."]
    with contextlib.ExitStack() as stack:
        at = root
        for name in parents:
            at = stack.enter_context(_opened(name, DIRECTORY, at))
        yield stack.enter_context(_opened(last, flags, at))


@contextlib.contextmanager
def _opened(name: str, flags: int, at: int | None = None) -> Iterator[int]:
    descriptor = os.open(name, flags, dir_fd=at)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def why_not_opened(error: OSError) -> str:
    return (error.strerror or "it cannot be opened").lower()
