"""The e-mails of the site: what they say, and how each is written when its turn comes.

The store is asked only then, never while somebody waits for a reply. An address gets few e-mails in a row, whatever is
asked for it.
"""

import msgspec

from cadenza.control.account.accounts import normal_email
from cadenza.control.email.outbox import Email, Outbox
from cadenza.control.sign_in.links import make_link
from cadenza.control.sign_in.throttle import short_digest
from cadenza.core.rates import Rate
from cadenza.fleet.shared import Rates
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import accounts
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.links import LinkKind

NOT_YOU = "If that was not you, change your password now, and tell the operator of this service."
ASK = "If you have questions, ask the operator of this service."


class Notice(msgspec.Struct, frozen=True):
    """A kind of notice. `{detail}` in its text stands for the amount or the name."""

    subject: str
    text: str
    last: str = NOT_YOU

    def write(self, detail: str) -> str:
        return f"Hello,\n\n{self.text.format(detail=detail)}\n\n{self.last}\n"


CREDIT_ADDED = Notice(
    "Credit was added to your account", "an operator added {detail} dollars of credit to your account.", ASK
)
CREDIT_TAKEN = Notice(
    "Credit of your account was taken back", "an operator took back {detail} dollars of credit of your account.", ASK
)
SUSPENDED = Notice(
    "Your account was suspended", "an operator suspended your account: its keys are refused, and so is sign-in.", ASK
)
RESUMED = Notice("Your account is not suspended any more", "an operator ended the suspension of your account.", ASK)
ROLE_GIVEN = Notice("Your account is an operator's now", "an operator made your account an operator's.", ASK)
ROLE_TAKEN = Notice("Your account is an ordinary one now", "your account is not an operator's any more.", ASK)
KEY_CREATED = Notice("A new key for your account", "the key {detail} was created for your account.")
APP_ADDED = Notice("An authenticator app was added", "an authenticator app was added to your account.")
APP_REMOVED = Notice("An authenticator app was removed", "the authenticator app of your account was removed.")
CODES_RENEWED = Notice(
    "Your recovery codes were replaced", "the recovery codes of your account were replaced. The old ones do not work."
)
PASSKEY_ADDED = Notice("A passkey was added", "a passkey was added to your account.")
PASSKEY_REMOVED = Notice("A passkey was removed", "a passkey of your account was removed.")
PASSWORD_CHANGED = Notice(
    "Your password at Cadenza was changed",
    "the password of your account was changed, and all other browsers were signed out.",
    "If that was not you, reset your password and tell the operator of this service.",
)
EMAIL_CHANGED = Notice(
    "Your e-mail address at Cadenza was changed", "your account at Cadenza has another e-mail address now.", ASK
)


ADDRESS_RATE = Rate(1 / 600, 4)  # e-mails to one address
NOTICE_RATE = Rate(1 / 60, 10)  # notices of one kind to one address
IGNORE = "If you did not ask for this, ignore this e-mail: nothing has changed."


class Mailer:
    """Queues the e-mails of one site. `now_ms` of a call is the time of the request that asks for the e-mail."""

    def __init__(self, store: Store, rates: Rates, outbox: Outbox) -> None:
        self._store = store
        self._rates = rates
        self._outbox = outbox

    def invite(self, email: str, base_url: str, now_ms: int) -> None:
        """To somebody who signs up. If the address has an account already, its owner is told so."""

        async def write() -> Email | None:
            normal = normal_email(email)
            if normal is None or not await self._may_send(normal):
                return None
            account = await accounts.get_by_email(self._store, normal)
            if account is not None:
                return Email(normal, "You have an account at Cadenza already", _has_account(base_url))
            url = base_url + await self._link("invite", None, normal, now_ms)
            return Email(normal, "Your account at Cadenza", _invitation(url))

        self._outbox.post(write)

    def reset(self, email: str, base_url: str, now_ms: int) -> None:
        """To the owner of an account, if there is one and it is not suspended."""

        async def write() -> Email | None:
            normal = normal_email(email)
            account = await accounts.get_by_email(self._store, normal) if normal else None
            if account is None or account.suspended_at is not None or not await self._may_send(account.email):
                return None
            url = base_url + await self._link("reset", account.id, account.email, now_ms)
            return Email(account.email, "Reset your password at Cadenza", _reset(url))

        self._outbox.post(write)

    def verify(self, account: Account, base_url: str, now_ms: int) -> None:
        async def write() -> Email | None:
            if not await self._may_send(account.email):
                return None
            url = base_url + await self._link("verify", account.id, account.email, now_ms)
            return Email(account.email, "Verify your e-mail address", _verify(url))

        self._outbox.post(write)

    def change_email(self, account: Account, email: str, url: str) -> None:
        """The link to the new address, and a notice to the old one."""

        async def write() -> Email | None:
            if not await self._may_send(email):
                return None
            return Email(email, "Your new e-mail address at Cadenza", _new_address(url))

        self._outbox.post(write)
        self.notice(account.email, "Somebody asked for a new e-mail address", _email_notice())

    def notice(self, to: str, subject: str, text: str) -> None:
        """An e-mail without a link, which is always sent."""

        async def write() -> Email:
            return Email(to, subject, text)

        self._outbox.post(write)

    def send_notice(self, to: str, notice: Notice, detail: str = "") -> None:
        """Notify the owner of a change. Each kind of notice to an address has its own rate limit."""

        async def write() -> Email | None:
            ticket = await self._rates.take(f"notice:{short_digest(notice.subject + to)}", NOTICE_RATE)
            return Email(to, notice.subject, notice.write(detail)) if ticket.is_granted else None

        self._outbox.post(write)

    async def _may_send(self, email: str) -> bool:
        return (await self._rates.take(f"mail:{short_digest(email)}", ADDRESS_RATE)).is_granted

    async def _link(self, kind: LinkKind, account_id: str | None, email: str, now_ms: int) -> str:
        def make(tx: Transaction) -> str:
            return make_link(tx, kind, account_id, email, now_ms)

        return await self._store.transact(make)


def _invitation(url: str) -> str:
    return (
        f"Hello,\n\nto finish signing up, open this link and choose a password:\n\n{url}\n\n"
        f"It works once, within 7 days.\n{IGNORE}\n"
    )


def _has_account(base_url: str) -> str:
    return (
        "Hello,\n\nsomebody, probably you, tried to sign up with this address. It has an account already.\n\n"
        f"Sign in: {base_url}/sign-in\nForgotten your password? {base_url}/reset\n\n{IGNORE}\n"
    )


def _reset(url: str) -> str:
    return f"Hello,\n\nto choose a new password, open this link:\n\n{url}\n\nIt works once, within an hour.\n{IGNORE}\n"


def _verify(url: str) -> str:
    return (
        f"Hello,\n\nto verify that this address is yours, open this link:\n\n{url}\n\n"
        f"It works once, within 3 days.\n{IGNORE}\n"
    )


def _new_address(url: str) -> str:
    return (
        f"Hello,\n\nto use this address for your account, open this link where you are signed in:\n\n{url}\n\n"
        f"It works once, within a day.\n{IGNORE}\n"
    )


def _email_notice() -> str:
    return (
        "Hello,\n\nsomebody who is signed in to your account asked to change its e-mail address. It changes when the "
        "link that was sent to the new address is opened.\n\nIf that was not you, change your password now: that "
        "signs out everybody else and stops the change.\n"
    )
