"""The modes of a store's files. transcripts/stores.txt has the rest."""

import stat
from pathlib import Path

from tests.cli.program import run


def test_a_store_is_its_owners(tmp_path: Path) -> None:
    """Folder and file can be read by their owner only."""
    assert run(tmp_path, "migrate").returncode == 0
    assert _mode(tmp_path / "data") == 0o700
    assert _mode(tmp_path / "data" / "cadenza.db") == 0o600


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
