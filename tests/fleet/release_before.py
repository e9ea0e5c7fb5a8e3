"""The release before this one, unpacked from the repository: its program runs beside this release's in the tests.

Pin RELEASE_BEFORE to the last commit of a release when the next one begins to change the schema. The commit must be in
the clone: in a shallow clone, or a source archive, the tests that need it say what to do about it, and fail in CI.
"""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.debian import find_or_install, skip_or_fail
from tests.environment import environment
from tests.service import CLI_S, program

RELEASE_BEFORE = "02d8c874f7ddbee9661f4c7907940709bea3bd2d"
REVISION_BEFORE = "0007"
ROOT = Path(__file__).parents[2]
NO_COMMIT = (
    f"The release before, {RELEASE_BEFORE}, is not in this clone, so no migration can be tried beside it: "
    "fetch the whole history with 'git fetch --unshallow', or that commit with 'git fetch origin COMMIT'."
)


class ReleaseBefore:
    """A folder with the sources of that commit. It uses the packages that this release has installed."""

    def __init__(self, folder: Path) -> None:
        self.variables = {"PYTHONPATH": str(folder / "src")}

    def cli(self, config: Path, *args: str, given: str = "") -> str:
        """Run a command of that release, which must succeed; what it printed."""
        return run(config, *args, given=given, **self.variables)


def unpack(folder: Path) -> ReleaseBefore:
    archive = folder / "release.tar"
    git = find_or_install("git", "git")
    command = [git, "-C", str(ROOT), "archive", "--output", str(archive), RELEASE_BEFORE, "src"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLI_S, check=False)
    if done.returncode:
        skip_or_fail(f"{NO_COMMIT}\n{done.stderr}")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    release = ReleaseBefore(folder)
    asked = "from cadenza.store import migrate; print(migrate.__file__, migrate.REVISIONS[-1])"
    found = subprocess.run(
        [sys.executable, "-c", asked],
        capture_output=True,
        text=True,
        timeout=CLI_S,
        check=True,
        env=environment(**release.variables),
        cwd=os.sep,
    )
    assert found.stdout.split() == [str(folder / "src" / "cadenza" / "store" / "migrate.py"), REVISION_BEFORE]
    return release


def run(config: Path, *args: str, given: str = "", **variables: str) -> str:
    """Run a command, of this release unless the variables say otherwise, which must succeed; what it printed."""
    command = [program(), *args, "--config", str(config)]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=CLI_S, env=environment(**variables), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
