"""Notices of a low balance, on both databases."""

import asyncio

import pytest

from cadenza.control.money.credit import correct_credit, set_low_balance
from cadenza.core.email import Email
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Owner, Usage
from cadenza.ledger import credit
from cadenza.observe import make_log
from cadenza.parts.mail.low_balance import LowBalanceNotices
from cadenza.parts.mail.low_balance_rows import clear_risen
from cadenza.parts.mail.outbox import SendFailed
from cadenza.store.store import Store
from tests.store.moves import finish, fund, make_hold, money, opened, sweep_process, take
from tests.store.rows import DOLLAR_NANO, NOW_MS, run_sql
from tests.store.test_long_writes import MANY, ROWS_MAX, CountingStore, count, numbers

EMAIL = "acct_a@example.org"
OWNER = Owner("acct_a", EMAIL)


class Mailbox:
    """Keeps what is sent. It can be broken."""

    def __init__(self) -> None:
        self.sent: list[Email] = []
        self.is_broken = False

    async def send(self, email: Email) -> None:
        if self.is_broken:
            raise SendFailed("broken", retry_helps=True)
        self.sent.append(email)


async def spent_account(store: Store) -> None:
    """An account that made a request and has a bit less than a dollar left."""
    await fund(store, DOLLAR_NANO)
    hold = make_hold()
    await take(store, hold)
    await finish(store, hold, Usage(100, 50))
    await sweep_process(store)


async def test_a_low_balance_is_told_once(store: Store, url: str) -> None:
    """Two processes that look again and again send one e-mail; another follows after the balance has risen."""
    await spent_account(store)
    mailbox = Mailbox()
    async with opened(url) as beside:
        watchers = [LowBalanceNotices(one, mailbox.send, make_log(), "https://c.example") for one in (store, beside)]
        for _ in range(3):
            await asyncio.gather(*(watcher.poll(NOW_MS) for watcher in watchers))
    [letter] = mailbox.sent
    assert letter.to == EMAIL
    assert "Your credit is low: 0.99" in letter.subject
    assert "https://c.example/credit" in letter.text
    await store.transact(lambda tx: credit.grant(tx, "acct_a", DOLLAR_NANO, "", NOW_MS))
    assert await watchers[0].poll(NOW_MS) == 0
    await correct_credit(store, EMAIL, -DOLLAR_NANO, "a mistake", COMMAND_LINE, NOW_MS)
    assert await watchers[0].poll(NOW_MS) == 1


async def test_who_cannot_use_credit_is_not_told(store: Store) -> None:
    """An account that never made a request, or is suspended, is not told that its credit is low."""
    await fund(store, 0, "b")
    await spent_account(store)
    await run_sql(store, "UPDATE accounts SET suspended_at = 1 WHERE id = 'acct_a'")
    mailbox = Mailbox()
    assert await LowBalanceNotices(store, mailbox.send, make_log(), None).poll(NOW_MS) == 0


async def test_a_notice_that_was_not_sent_is_sent_later(store: Store) -> None:
    """A mail server that fails loses no notice."""
    await spent_account(store)
    mailbox = Mailbox()
    mailbox.is_broken = True
    watcher = LowBalanceNotices(store, mailbox.send, make_log(), None)
    assert await watcher.poll(NOW_MS) == 0
    mailbox.is_broken = False
    assert await watcher.poll(NOW_MS) == 1


async def test_the_owner_chooses_what_is_low(store: Store) -> None:
    """Zero turns the notice off; a lower amount takes back a notice that does not apply any more."""
    await spent_account(store)
    mailbox = Mailbox()
    watcher = LowBalanceNotices(store, mailbox.send, make_log(), None)
    await set_low_balance(store, OWNER, 0, NOW_MS)
    assert await watcher.poll(NOW_MS) == 0
    await set_low_balance(store, OWNER, (await money(store))[0], NOW_MS)
    assert await watcher.poll(NOW_MS) == 0, "it is not below the balance"
    await set_low_balance(store, OWNER, DOLLAR_NANO, NOW_MS)
    assert await watcher.poll(NOW_MS) == 1
    with pytest.raises(ControlError):
        await set_low_balance(store, OWNER, -1, NOW_MS)


async def test_notices_of_low_balances_are_cleared_in_batches(store: Store) -> None:
    """When many accounts have risen, each transaction changes some of them, and in the end all are changed."""
    await run_sql(
        store,
        f"""INSERT INTO accounts (id, email, password_hash, created_at, balance_nano, low_noticed_at)
        SELECT 'acct_' || n, 'mail' || n, '', 1, 2000000000, 1 FROM {numbers(store)}""",
    )
    counting = CountingStore(store)
    await clear_risen(counting)
    assert max(counting.changed) <= ROWS_MAX
    assert sum(counting.changed) == MANY
    assert await count(store, "SELECT COUNT(*) FROM accounts WHERE low_noticed_at IS NOT NULL") == 0
