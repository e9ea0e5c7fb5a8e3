"""The e-mail notices to an owner when the account is changed on the site. No notice has a link."""

import msgspec

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
