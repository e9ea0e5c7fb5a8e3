"""The line of grounding on the start screen."""

from pathlib import Path

import pytest

from cadenza.config import load_settings
from cadenza.parts.grounding.screen import screen
from cadenza.store.address import open_store
from cadenza.store.tables.accounts import AccountsFound
from cadenza.terminal.checks import StartFacts


@pytest.mark.parametrize(
    ("toml", "shown"),
    [
        ("", "files, memory"),
        ('memory = false\nsearch = { engine = "searxng", url = "http://[::1]" }\n', "files, web search by searxng"),
        ("attachments = false\nmemory = false\nsearch = false\n", "turned off in the config"),
    ],
)
async def test_screen_says_what_grounding_has(tmp_path: Path, toml: str, shown: str) -> None:
    """What is turned off is not named."""
    (tmp_path / "cadenza.toml").write_text(f"[grounding]\n{toml}")
    begun = StartFacts(
        settings=load_settings(None, {}, tmp_path),
        store=open_store(f"sqlite:///{tmp_path}/cadenza.db"),
        base_url="",
        accounts=AccountsFound(False, False, False),
        demo=None,
        at_terminal=False,
    )
    assert await screen(begun) == [("Grounding", shown)]
