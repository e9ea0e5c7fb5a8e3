"""The one error of the control plane, written for the person at the command line or the page."""


class ControlError(Exception):
    """What was asked cannot be done. Its sentence says why and what to do, and shows no secret."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
