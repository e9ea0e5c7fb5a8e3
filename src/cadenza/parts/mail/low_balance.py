"""Notifies the owner of an account by e-mail when its balance gets low: once, and again only after it has risen.

Every process checks once a minute. If the mail server fails, it is logged, and the next check tries again.
"""

from cadenza.core.email import Email
from cadenza.core.money import format_dollars
from cadenza.observe import Log
from cadenza.parts.mail import low_balance_rows as low_balances
from cadenza.parts.mail.outbox import Send, SendFailed
from cadenza.store.store import Store
from cadenza.store.tables.accounts import Account

POLL_INTERVAL_S = 60.0
NOTICES_MAX = 100  # in one check


class LowBalanceNotices:
    """The notices of one process. `site_url` is the address of the site, if there is one."""

    def __init__(self, store: Store, send: Send, log: Log, site_url: str | None) -> None:
        self._store = store
        self._send = send
        self._log = log
        self._site_url = site_url

    async def poll(self, now_ms: int) -> int:
        """Notify the owners of all accounts whose balance became low. Return how many were notified."""
        await low_balances.clear_risen(self._store)
        told = 0
        for account in await low_balances.find_untold(self._store, NOTICES_MAX):
            if not await low_balances.claim(self._store, account.id, now_ms):
                continue
            try:
                await self._send(self._write(account))
            except SendFailed:
                await low_balances.release(self._store, account.id)
                self._log.warning("a notice of low credit was not sent: the mail server did not take it")
                break
            told += 1
        return told

    def _write(self, account: Account) -> Email:
        where = f": {self._site_url}/credit" if self._site_url else "."
        left = format_dollars(account.balance_nano)
        text = (
            f"Your account {account.email} has {left} dollars of credit left.\n"
            "When it is used up, requests are refused with status 402.\n\n"
            f"Add credit, or change when you get this message{where}\n"
        )
        return Email(account.email, f"Your credit is low: {left} dollars", text)
