"""The errors of pages and of /platform/api. Those of other packages are translated in one place."""

from starlette.exceptions import HTTPException

from cadenza.control.money.idempotency import Unconfirmed
from cadenza.control.requests import UnknownRequest
from cadenza.core.errors import ControlError, Unknown
from cadenza.parts.site.sign_in.credentials import DeadLink
from cadenza.parts.site.sign_in.throttle import Throttled
from cadenza.store.store import ReportsBusy, StoreUnavailable, StoreUncertain


class PageError(Exception):
    """Shown as a page, or as the error object on /platform/api."""

    status = 400
    type = "invalid_request_error"
    title = "That did not work"
    message = ""  # unless one is given

    def __init__(self, message: str = "", wait_s: float | None = None) -> None:
        self.message = message or self.message
        self.headers = {} if wait_s is None else {"retry-after": str(max(1, round(wait_s)))}
        super().__init__(self.message)


class BadForm(PageError):
    """The form, body or query is not valid."""


class FormTooLarge(PageError):
    """The body is larger than any form of the site: nothing of it was read."""

    status = 413
    title = "That is too large"
    message = "A form has at most 64 KiB. Go back: what you typed is still there. Then send less."


class NotSignedIn(PageError):
    """The visitor has no session, or has not given the second factor yet. A page leads to the sign-in."""

    status = 401
    type = "authentication_error"
    title = "Sign in first"
    message = "Sign in first."


class NotAllowed(PageError):
    """The account is not an operator's."""

    status = 403
    type = "permission_error"
    title = "For operators"
    message = "Only an operator may do this."


class TokenRefused(PageError):
    """No live access token, or something else was sent in its place."""

    status = 401
    type = "authentication_error"
    message = (
        "No valid access token was given: it is mistyped, revoked or expired. "
        "Send one as 'Authorization: Bearer cdz_…', or sign in and send the cookie of the session."
    )


class CreditNeeded(PageError):
    """The account cannot pay for any answer."""

    status = 402
    type = "insufficient_quota"
    title = "Your credit is used up"


class ScopeMissing(PageError):
    """The access token may not do this."""

    status = 403
    type = "permission_error"


class WrongOrigin(PageError):
    """The request does not come from one of our own pages, or its token is of another session."""

    status = 403
    type = "permission_error"
    title = "Send the form again"
    message = "This form is out of date or was sent from another site. Go back, reload the page, try again."


class ProofNeeded(PageError):
    """The password or a passkey was given too long ago for this change."""

    status = 403
    type = "permission_error"
    title = "Confirm that it is you"
    message = "Give your password again first, on the page /confirm."


class Missing(PageError):
    """There is no such thing, or it belongs to another account: both look the same."""

    status = 404
    title = "Not found"
    message = "There is nothing at this address."


class NotConfirmed(PageError):
    """The store did not confirm a change: it may have been made."""

    status = 503
    type = "api_error"
    title = "It may have been done"
    message = (
        "The store did not confirm the change: it may have been made. Look before you try again. "
        "Credit that is moved by the same form, or with the same reference, takes effect once."
    )


class TooMany(PageError):
    """Too many requests or attempts."""

    status = 429
    type = "rate_limit_error"
    title = "A moment, please"


def to_page_error(error: Exception) -> PageError:
    found: PageError = Missing()
    match error:
        case PageError():
            found = error
        case Throttled():
            found = TooMany(error.message, error.wait_s)
        case Unconfirmed() | StoreUncertain():
            found = NotConfirmed()
        case Unknown():
            found = Missing(f"There is no such {error.noun}.")
        case DeadLink() | UnknownRequest():
            found = Missing(error.message)
        case ControlError():
            found = PageError(error.message)
        case ReportsBusy():
            found = TooMany(str(error), error.retry_after_s)
        case StoreUnavailable():
            found = TooMany("The service cannot reach its store at the moment. Try again shortly.", 2.0)
        case HTTPException(status_code=405):
            found = PageError("This address does not take this method.")
            found.status = 405
    return found
