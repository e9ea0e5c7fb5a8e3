"""The release after this one: a copy of this program with one more migration, to run beside this one.

The first program is this one or, in a clone that has the tag of release 0.1.0, that release. So from the first
migration on, the migrations of this program are tried beside the release, and one more beside this program's schema.
"""

import shutil
import subprocess
import tarfile
from pathlib import Path

import cadenza
from cadenza.store.migrate import REVISIONS

FIRST_TAG = "v0.1.0"
HEAD = REVISIONS[-1]
NEXT = f"{int(HEAD) + 1:04}"
MIGRATION = f'''"""A column that this program does not know."""

import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{HEAD}"
breaks_before = "{{}}"


def upgrade() -> None:
    op.add_column("usage", sa.Column("later", sa.Text))
'''
PACKAGE = Path(cadenza.__file__).parent
ROOT = Path(__file__).parents[1]


def next_release(folder: Path, *, breaks: bool = False) -> dict[str, str]:
    """Make it in a folder. Return the variables with which `cadenza` is that program."""
    shutil.copytree(PACKAGE, folder / "cadenza")  # with what is compiled, which stays valid
    migration = folder / "cadenza" / "store" / "migrations" / "versions" / f"{NEXT}_later.py"
    migration.write_text(MIGRATION.format(NEXT if breaks else ""))
    return {"PYTHONPATH": str(folder)}


def first_release(folder: Path) -> dict[str, str]:
    """The variables with which `cadenza` is release 0.1.0, or this program while that has no tag in this clone."""
    archive = folder / "release.tar"
    command = ["git", "-C", str(ROOT), "archive", "--output", str(archive), FIRST_TAG, "src"]
    if subprocess.run(command, capture_output=True, timeout=60, check=False).returncode:
        return {}
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return {"PYTHONPATH": str(folder / "src")}
