"""What a page or an endpoint of /platform/api answers when it cannot do what was asked."""


class PageError(Exception):
    """Shown as a page, or as the error object on /platform/api."""

    status = 400
    type = "invalid_request_error"
    title = "That did not work"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadForm(PageError):
    """What was sent cannot be read."""


class NotSignedIn(PageError):
    """The visitor has no session, or has not given the second factor yet. A page leads to the sign-in."""

    status = 401
    type = "authentication_error"
    title = "Sign in first"

    def __init__(self) -> None:
        super().__init__("Sign in first.")


class NotAllowed(PageError):
    """The account is not an operator's."""

    status = 403
    type = "permission_error"
    title = "For operators"

    def __init__(self) -> None:
        super().__init__("Only an operator may do this.")


class WrongOrigin(PageError):
    """The request does not come from one of our own pages, or its token is of another session."""

    status = 403
    type = "permission_error"
    title = "Send the form again"

    def __init__(self) -> None:
        super().__init__("This form is out of date or was sent from another site. Go back, reload the page, try again.")


class Missing(PageError):
    """There is no such thing, or it belongs to another account: both look the same."""

    status = 404
    title = "Not found"

    def __init__(self, message: str = "There is nothing at this address.") -> None:
        super().__init__(message)


class NotConfirmed(PageError):
    """The store did not confirm a change: it may have been made."""

    status = 503
    type = "api_error"
    title = "It may have been done"

    def __init__(self) -> None:
        super().__init__(
            "The store did not confirm the change: it may have been made. Look before you try again. "
            "Credit that is moved by the same form, or with the same reference, counts once."
        )


class TooMany(PageError):
    """Too many requests or attempts."""

    status = 429
    type = "rate_limit_error"
    title = "A moment, please"

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s
