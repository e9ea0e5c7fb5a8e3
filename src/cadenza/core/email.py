"""An e-mail, and what posts one: pages write e-mails, and the part that has a mail server sends them later."""

from collections.abc import Awaitable, Callable

import msgspec


class Email(msgspec.Struct, frozen=True):
    """An e-mail of plain text."""

    to: str
    subject: str
    text: str


Compose = Callable[[], Awaitable[Email | None]]  # writes it when its turn comes; None: nothing is sent after all
Post = Callable[[Compose], None]
