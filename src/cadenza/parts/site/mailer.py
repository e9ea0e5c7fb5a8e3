"""The e-mails of the site: their texts, and the mailer that queues them.

An e-mail is written when its turn comes: the store is not asked while a visitor waits for a reply. The
rate of e-mails to one address is limited. Notices about changes of an account have no link, but for
that to the keys which a new password leaves as they are.
"""

import msgspec

from cadenza.control.account.accounts import normal_email
from cadenza.core.email import Email, Post
from cadenza.core.rates import Rate
from cadenza.fleet.shared import Rates
from cadenza.parts.site.sign_in.links import make_link
from cadenza.parts.site.sign_in.throttle import short_digest
from cadenza.parts.site.tables.links import LinkKind
from cadenza.store.store import Store
from cadenza.store.tables import accounts
from cadenza.store.tables.accounts import Account

NOT_YOU = "If that was not you, change your password now, and tell the operator of this service."
ASK = "If you have questions, ask the operator of this service."
ADDRESS_RATE = Rate(1 / 600, 4)  # e-mails to one address
NOTICE_RATE = Rate(1 / 60, 10)  # notices of one kind to one address
IGNORE = "If you did not ask for this, ignore this e-mail: nothing has changed."


class EmailText(msgspec.Struct, frozen=True):
    """A kind of e-mail. `{detail}` in its text stands for a link, an amount or a name."""

    subject: str
    text: str
    last: str = NOT_YOU

    def to(self, address: str, detail: str = "") -> Email:
        text = f"Hello,\n\n{self.text.format(detail=detail)}\n\n{self.last}\n"
        return Email(address, self.subject, text)


INVITATION = EmailText(
    "Your account at Cadenza",
    "to finish signing up, open this link and choose a password:\n\n{detail}",
    f"It works once, within 7 days.\n{IGNORE}",
)
HAS_ACCOUNT = EmailText(
    "You have an account at Cadenza already",
    "somebody, probably you, tried to sign up with this address. It has an account already.\n\n"
    "Sign in: {detail}/sign-in\nForgotten your password? {detail}/reset",
    IGNORE,
)
RESET = EmailText(
    "Reset your password at Cadenza",
    "to choose a new password, open this link:\n\n{detail}",
    f"It works once, within an hour.\n{IGNORE}",
)
VERIFY = EmailText(
    "Verify your e-mail address",
    "to verify that this address is yours, open this link:\n\n{detail}",
    f"It works once, within 3 days.\n{IGNORE}",
)
NEW_ADDRESS = EmailText(
    "Your new e-mail address at Cadenza",
    "to use this address for your account, open this link where you are signed in:\n\n{detail}",
    f"It works once, within a day.\n{IGNORE}",
)
NEW_ADDRESS_ASKED = EmailText(
    "Somebody asked for a new e-mail address",
    "somebody who is signed in to your account asked to change its e-mail address. It changes when the link that was "
    "sent to the new address is opened.",
    "If that was not you, change your password now: that signs out everybody else and stops the change.",
)
CREDIT_ADDED = EmailText(
    "Credit was added to your account", "an operator added {detail} dollars of credit to your account.", ASK
)
CREDIT_TAKEN = EmailText(
    "Credit of your account was taken back", "an operator took back {detail} dollars of credit of your account.", ASK
)
SUSPENDED = EmailText(
    "Your account was suspended", "an operator suspended your account: its keys are refused, and so is sign-in.", ASK
)
RESUMED = EmailText("Your account is not suspended any more", "an operator ended the suspension of your account.", ASK)
ROLE_GIVEN = EmailText("Your account is an operator's now", "an operator made your account an operator's.", ASK)
ROLE_TAKEN = EmailText("Your account is an ordinary one now", "your account is not an operator's any more.", ASK)
KEY_CREATED = EmailText("A new key for your account", "the key {detail} was created for your account.")
TOKEN_CREATED = EmailText(
    "A new access token for your account", "the access token {detail} was created for your account."
)
APP_ADDED = EmailText("An authenticator app was added", "an authenticator app was added to your account.")
APP_REMOVED = EmailText("An authenticator app was removed", "the authenticator app of your account was removed.")
CODES_RENEWED = EmailText(
    "Your recovery codes were replaced", "the recovery codes of your account were replaced. The old ones do not work."
)
PASSKEY_ADDED = EmailText("A passkey was added", "a passkey was added to your account.")
PASSKEY_REMOVED = EmailText("A passkey was removed", "a passkey of your account was removed.")
PASSWORD_CHANGED = EmailText(
    "Your password at Cadenza was changed",
    "the password of your account was changed, and all other browsers were signed out.{detail}",
    "If that was not you, reset your password and tell the operator of this service.",
)
EMAIL_CHANGED = EmailText(
    "Your e-mail address at Cadenza was changed", "your account at Cadenza has another e-mail address now.", ASK
)


class Mailer:
    """Queues the e-mails of one site. `now_ms` is the time of the request that asks for the e-mail."""

    def __init__(self, store: Store, rates: Rates, post: Post) -> None:
        self._store = store
        self._rates = rates
        self._post = post

    def invite(self, email: str, base_url: str, now_ms: int) -> None:
        """To a person who signs up, or to the owner if the address has an account already."""

        async def write() -> Email | None:
            normal = normal_email(email)
            if normal is None or not await self._may_send(normal):
                return None
            if await accounts.get_by_email(self._store, normal) is not None:
                return HAS_ACCOUNT.to(normal, base_url)
            return INVITATION.to(normal, base_url + await self._link("invite", None, normal, now_ms))

        self._post(write)

    def reset(self, email: str, base_url: str, now_ms: int) -> None:
        """To the owner of an account, if there is one and it is not suspended."""

        async def write() -> Email | None:
            normal = normal_email(email)
            account = await accounts.get_by_email(self._store, normal) if normal else None
            if account is None or account.suspended_at is not None or not await self._may_send(account.email):
                return None
            return RESET.to(account.email, base_url + await self._link("reset", account.id, account.email, now_ms))

        self._post(write)

    def verify(self, account: Account, base_url: str, now_ms: int) -> None:
        async def write() -> Email | None:
            if not await self._may_send(account.email):
                return None
            return VERIFY.to(account.email, base_url + await self._link("verify", account.id, account.email, now_ms))

        self._post(write)

    def change_email(self, account: Account, email: str, url: str) -> None:
        """The link to the new address, and a notice to the old one, which is always sent."""

        async def write() -> Email | None:
            return NEW_ADDRESS.to(email, url) if await self._may_send(email) else None

        async def write_notice() -> Email:
            return NEW_ADDRESS_ASKED.to(account.email)

        self._post(write)
        self._post(write_notice)

    def send_notice(self, to: str, notice: EmailText, detail: str = "") -> None:
        """Notify the owner of a change. Each kind of notice to an address has its own rate limit."""

        async def write() -> Email | None:
            ticket = await self._rates.take(f"notice:{short_digest(notice.subject + to)}", NOTICE_RATE)
            return notice.to(to, detail) if ticket.is_granted else None

        self._post(write)

    async def _may_send(self, email: str) -> bool:
        return (await self._rates.take(f"mail:{short_digest(email)}", ADDRESS_RATE)).is_granted

    async def _link(self, kind: LinkKind, account_id: str | None, email: str, now_ms: int) -> str:
        return await self._store.transact(lambda tx: make_link(tx, kind, account_id, email, now_ms))
