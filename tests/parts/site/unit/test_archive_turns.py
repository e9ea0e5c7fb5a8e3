"""Downloads of archives: one at a time for each account."""

import pytest

from cadenza.parts.site.account.archive_turns import ArchiveTurns
from cadenza.parts.site.errors import TooMany


async def test_an_account_has_one_download_at_a_time() -> None:
    """A second one is refused until the first has ended; other accounts do not wait."""
    turns = ArchiveTurns()
    turns.begin("acct_a")
    with pytest.raises(TooMany, match="being downloaded"):
        turns.begin("acct_a")
    turns.begin("acct_b")
    turns.end("acct_a")
    turns.begin("acct_a")
