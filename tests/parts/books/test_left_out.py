"""The ledger without the books."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cadenza.cli import app
from cadenza.parts import MissingPart
from tests.migrated import copy_migrated_store


def test_only_the_hashes_of_closed_months_need_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ledger check` works without the part; with --all it names the extra."""
    monkeypatch.setitem(sys.modules, "cadenza.parts.books", None)
    monkeypatch.chdir(tmp_path)
    copy_migrated_store(tmp_path / "cadenza.db")
    (tmp_path / "cadenza.toml").write_text('[store]\nurl = "sqlite:///cadenza.db"\n')
    done = CliRunner().invoke(app, ["ledger", "check"])
    assert (done.exit_code, done.stdout.startswith("The ledger is sound.")) == (0, True)
    refused = CliRunner().invoke(app, ["ledger", "check", "--all"]).exception
    assert isinstance(refused, MissingPart)
    assert "cadenza[books]" in str(refused)
