"""The one error of the control plane. Its message is shown to the person at the command line or the page."""


class ControlError(Exception):
    """The request cannot be carried out. The message says why and what to do, and shows no secret."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
