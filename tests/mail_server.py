"""A real SMTP server on this machine that keeps what it receives."""

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default

import msgspec
from aiosmtpd.smtp import SMTP, Envelope, Session

from tests.service import wait_until

START_S = 60.0
LINK = re.compile(r"(?m)^http://[^/]+(/\S+)\s*$")


class Received(msgspec.Struct, frozen=True):
    """One e-mail."""

    to: str
    subject: str
    text: str

    @property
    def path(self) -> str:
        """The path of the link in it."""
        found = LINK.search(self.text)
        assert found, self.text
        return found[1]


class Mailbox:
    """All e-mails that arrived, oldest first. With a `reply` they are refused."""

    def __init__(self) -> None:
        self.emails: list[Received] = []
        self.reply = ""

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802 aiosmtpd's name
        if self.reply:
            return self.reply
        assert isinstance(envelope.content, bytes)
        message = message_from_bytes(envelope.content, policy=default)
        assert isinstance(message, EmailMessage)
        self.emails.append(Received(envelope.rcpt_tos[0], message["Subject"], message.get_content()))
        return "250 taken"

    def wait_for(self, to: str, subject: str) -> Received:
        """The newest e-mail to an address whose subject contains these words."""
        found: list[Received] = []

        def has_come() -> bool:
            found[:] = [one for one in self.emails if one.to == to and subject in one.subject]
            return bool(found)

        wait_until(has_come, f"an e-mail to {to} about {subject!r}")
        return found[-1]


@contextlib.contextmanager
def running_mailbox() -> Iterator[tuple[Mailbox, int]]:
    """The mailbox, and its port. It serves in a thread with an event loop of its own."""
    mailbox, loop, listening = Mailbox(), asyncio.new_event_loop(), Future[int]()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        creating = loop.create_server(lambda: SMTP(mailbox, hostname="localhost"), "127.0.0.1", 0)
        server = loop.run_until_complete(creating)
        listening.set_result(server.sockets[0].getsockname()[1])
        loop.run_forever()
        server.close()
        for task in (tasks := asyncio.all_tasks(loop)):
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=serve, name="mailbox", daemon=True)
    thread.start()
    try:
        yield mailbox, listening.result(START_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_S)
