"""Archives are downloaded one at a time for each account."""

import asyncio

from cadenza.parts.site.errors import TooMany

LONGEST_S = 900.0  # a download that nobody ended counts no longer
BUSY = "An archive of this account is being downloaded. Try again when it is complete."


class ArchiveTurns:
    """Which accounts download an archive."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def begin(self, account_id: str) -> None:
        """429 if this account has one under way."""
        now_s = asyncio.get_running_loop().time()
        if (left_s := self._until_s.get(account_id, now_s) - now_s) > 0:
            raise TooMany(BUSY, left_s)
        self._until_s[account_id] = now_s + LONGEST_S

    def end(self, account_id: str) -> None:
        self._until_s.pop(account_id, None)
