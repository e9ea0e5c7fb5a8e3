"""The places of processes and of the machine: environment, command line, open files, core files, shared memory.

The memory of processes is not searched: while a request is served, its content is there.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from cadenza.audit.needles import Needles
from cadenza.audit.places import add_path, search_folder
from cadenza.audit.search import PlaceSearch, Searched

PROC = Path("/proc")
CORE_FOLDERS = {"systemd-coredump": "var/lib/systemd/coredump", "apport": "var/crash"}
DELETED = " (deleted)"
NO_PROC = "this system has no /proc"
PROTECTED = "the kernel keeps this user out of the process; run the audit as root"
ENVIRONMENT = "Environment of the processes"
COMMAND_LINE = "Command lines and names of the processes"
OPEN_FILES = "Open files of the processes, also deleted ones"
CORE_FILES = "Core files"
SHARED_MEMORY = "Shared memory"
SWAP = "Swap"


def search_processes(needles: Needles, pids: Sequence[int], elsewhere: Sequence[Path] = ()) -> list[Searched]:
    """Environment, command line and open files of these processes and of all that they started.

    Open files are those that are deleted or written to, except in folders that are searched `elsewhere`.
    """
    environment, command_line, open_files = (
        PlaceSearch(needles, place) for place in (ENVIRONMENT, COMMAND_LINE, OPEN_FILES)
    )
    if not PROC.is_dir():
        for search in (environment, command_line, open_files):
            search.skip(NO_PROC)
    for pid in _with_descendants(pids):
        folder = PROC / str(pid)
        _add(environment, folder / "environ", pid)
        for name in ("cmdline", "comm"):
            _add(command_line, folder / name, pid)
        _add_open_files(open_files, pid, elsewhere)
    return [environment.result(), command_line.result(), open_files.result()]


def _with_descendants(pids: Sequence[int]) -> list[int]:
    children = dict[int, list[int]]()
    for path in PROC.glob("[0-9]*/stat"):
        try:
            parent = int(path.read_bytes().rpartition(b")")[2].split()[1])  # the name, in parentheses, may have spaces
        except (OSError, IndexError):  # it ended
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found = list(pids)
    for pid in found:
        found += children.get(pid, [])
    return found


def _add(search: PlaceSearch, path: Path, pid: int) -> None:
    try:
        search.add(path.read_bytes(), f"process {pid}")
    except PermissionError:
        search.skip(PROTECTED, f"process {pid}")
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended


def _add_open_files(search: PlaceSearch, pid: int, elsewhere: Sequence[Path]) -> None:
    folder = PROC / str(pid) / "fd"
    try:
        numbers = sorted(path.name for path in folder.iterdir())
    except PermissionError:
        search.skip(PROTECTED, f"process {pid}")
        return
    except (FileNotFoundError, ProcessLookupError):
        return
    for number in numbers:
        path = folder / number
        try:
            target, is_file = os.readlink(path), stat.S_ISREG(path.stat().st_mode)  # noqa: PTH115 keeps what it says
            flags = int((folder.with_name("fdinfo") / number).read_text().partition("flags:")[2].split()[0], 8)
        except PermissionError:
            search.skip(PROTECTED, f"process {pid}, file {number}")
            continue
        except (OSError, IndexError):  # closed meanwhile
            continue
        is_known = any(Path(target).is_relative_to(known) for known in elsewhere)
        if is_file and (target.endswith(DELETED) or (flags & os.O_ACCMODE != os.O_RDONLY and not is_known)):
            add_path(search, path, f"process {pid}, {target}")


def search_machine(
    needles: Needles,
    since_s: float,
    working_folder: Path,
    root: Path = Path("/"),
    leave_out: Sequence[Path] = (),
) -> list[Searched]:
    """Core files where the kernel puts them, shared memory, and swap, which cannot be read.

    Only files that changed after `since_s` (Unix time) are read. `root` is the root of the file system. `leave_out`
    names files that the caller searches as another place.
    """
    cores = _search_core_files(needles, since_s, working_folder, root, leave_out)
    shared = search_folder(needles, SHARED_MEMORY, root / "dev/shm", since_s, leave_out)
    return [cores, shared, _name_swap(needles, root)]


def _search_core_files(
    needles: Needles, since_s: float, working_folder: Path, root: Path, leave_out: Sequence[Path]
) -> Searched:
    try:
        pattern = (root / "proc/sys/kernel/core_pattern").read_text().strip()
    except OSError:
        search = PlaceSearch(needles, CORE_FILES)
        search.skip(NO_PROC)
        return search.result()
    if not pattern.startswith("|"):
        folder = (working_folder / pattern).parent  # they are in the folder itself
        below = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
        return search_folder(needles, CORE_FILES, folder, since_s, [*below, *leave_out])
    program = Path(pattern[1:].split()[0]).name
    if program in CORE_FOLDERS:
        return search_folder(needles, CORE_FILES, root / CORE_FOLDERS[program], since_s)
    search = PlaceSearch(needles, CORE_FILES)
    search.skip(f"the kernel hands them to a program, {program}, and where that puts them is not known")
    return search.result()


def _name_swap(needles: Needles, root: Path) -> Searched:
    search = PlaceSearch(needles, SWAP)
    try:
        areas = [line.split()[0] for line in (root / "proc/swaps").read_text().splitlines()[1:]]
    except OSError:
        search.skip(NO_PROC)
        return search.result()
    for area in areas:
        search.skip("pages of all programs, which are not searched; encrypt it or turn it off", area)
    return search.result()
