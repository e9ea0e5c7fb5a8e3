"""Runs the program where a deployment puts it: in a read-only file system of its own, without root and capabilities.

It stands in for systemd and for a container engine, which need a machine of their own: a mount namespace with the paths
of the deployment, read-only but for those that it lets the program write. Seccomp and cgroups are not imitated.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from tests.debian import skip_or_fail
from tests.service import CLI_S, program

USER = 10001
SCRIPT = """
set -e
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"
for path in $WRITABLE; do mount --bind "$root$path" "$root$path"; done # first: the checkout may be in one of them
for path in $READ_ONLY; do mount --rbind "$path" "$root$path"; mount -o remount,bind,ro "$root$path"; done
for path in /dev /proc; do mount --rbind "$path" "$root$path"; done
mount -o remount,bind,ro "$root"
exec chroot "$root" setpriv --reuid USER --regid USER --clear-groups --no-new-privs --bounding-set=-all "$@"
""".replace("USER", str(USER))


class Place(msgspec.Struct, frozen=True):
    """What a deployment gives the program: files by their paths, the paths that it may write, and its environment."""

    files: Mapping[str, str]
    writable: tuple[str, ...]
    variables: Mapping[str, str]
    workdir: str


class Confined:
    """A file system with the program in it, made for one deployment."""

    def __init__(self, root: Path, place: Place) -> None:
        self._root = root
        self._place = place
        self._read_only = sorted({"/usr", sys.base_prefix, sys.prefix, str(Path(__file__).parents[2] / "src")})
        root.chmod(0o755)
        for path in ("/dev", "/proc", place.workdir, *self._read_only, *place.writable):
            (root / path[1:]).mkdir(parents=True, exist_ok=True)
        for link in (path for path in map(Path, ("/bin", "/sbin", "/lib", "/lib64")) if path.is_symlink()):
            (root / link.name).symlink_to(link.readlink())
        for path in place.writable:
            shutil.chown(root / path[1:], USER, USER)
        for path, text in place.files.items():
            self.write(path, text)

    def write(self, path: str, text: str) -> None:
        """Put a file there, as an operator does."""
        file = self._root / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def start(self, *args: str, out: IO[bytes] | int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        """Start the program with these arguments."""
        paths = {"READ_ONLY": " ".join(self._read_only), "WRITABLE": " ".join(self._place.writable)}
        given = [f"{name}={value}" for name, value in self._place.variables.items()]
        command = ["env", "-i", f"--chdir={self._place.workdir}", *given, program(), *args]
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(self._root), *command],
            env={**os.environ, **paths},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )

    def run(self, *args: str) -> tuple[int, str]:
        """The exit code of a command, and what it printed."""
        process = self.start(*args)
        printed, _ = process.communicate(timeout=CLI_S)
        return process.returncode, printed.decode()


@contextmanager
def confined(place: Place) -> Iterator[Confined]:
    """Skipped, or with CI=true failed, where this machine allows no mount namespace."""
    allowed = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False, timeout=CLI_S)
    if os.getuid() != 0 or allowed.returncode:
        skip_or_fail("a mount namespace needs root")
    with tempfile.TemporaryDirectory(prefix="cadenza-root-") as folder:
        yield Confined(Path(folder), place)
