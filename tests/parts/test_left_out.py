"""Parts that are left out: all else works, and what belongs to them is a sentence that names their extra."""

import subprocess
import sys
from pathlib import Path

import pytest

from cadenza.config import load_settings
from cadenza.parts import PARTS
from tests.loopback import LoopbackUpstream

ROOT = Path(__file__).parents[2]
NAMES = [part.name for part in PARTS]
LIFE_S = 200.0


def left_out(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, f"cadenza.parts.{name}", None)


def test_a_service_lives_without_parts(upstream: LoopbackUpstream) -> None:
    """Without any part and without each, accounts, chats, usage and ledger work, and commands name the extra."""
    command = [sys.executable, "-m", "tests.parts.life", upstream.base_url, ",".join(NAMES), *NAMES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIFE_S, check=False)
    assert done.returncode == 0, done.stderr


def test_each_part_has_a_page() -> None:
    """Its page in docs/parts says how it is installed, configured and left out, and the list of parts names it."""
    index = (ROOT / "docs" / "parts" / "index.md").read_text()
    for name in NAMES:
        assert f"({name}.md)" in index
        assert "A [part](index.md)" in (ROOT / "docs" / "parts" / f"{name}.md").read_text()


@pytest.mark.parametrize(
    ("name", "section", "key"),
    [
        ("postgres", '[store]\nurl = "postgresql://u:p@127.0.0.1/x"\n', "store.url"),
        ("grounding", "[grounding]\nmemory = false\n", "grounding"),
        ("valkey", '[shared_state]\nurl = "valkey://127.0.0.1:6379/0"\n', "shared_state.url"),
    ],
)
def test_a_setting_names_its_missing_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, section: str, key: str
) -> None:
    """A config that needs a part which is not installed says which one, and how to install it."""
    left_out(monkeypatch, name)
    (tmp_path / "cadenza.toml").write_text(section)
    [missing] = load_settings(None, {}, tmp_path).missing_extras
    assert missing == f"{key}: it needs the extra '{name}', which is not installed; run: pip install 'cadenza[{name}]'"
