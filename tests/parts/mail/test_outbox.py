"""The queue of e-mails: bounded, patient with a mail server, and silent about addresses."""

import asyncio
import io
from pathlib import Path

import pytest

from cadenza.core.email import Compose, Email
from cadenza.observe import Log, make_log
from cadenza.parts.mail.outbox import END_S, QUEUE_MAX, Outbox, SendFailed

LETTER = Email("somebody@example.org", "A subject", "A text")


class Server:
    """A mail server that fails a few times, then takes every e-mail."""

    def __init__(self, failures: int = 0, *, retry_helps: bool = True) -> None:
        self.tries = 0
        self.taken = asyncio.Event()
        self.refused = asyncio.Event()
        self._failures = failures
        self._retry_helps = retry_helps

    async def send(self, _letter: Email) -> None:
        self.tries += 1
        if self.tries <= self._failures:
            self.refused.set()
            raise SendFailed("the mail server answered 451", retry_helps=self._retry_helps)
        self.taken.set()


def composed(email: Email | None) -> Compose:
    async def compose() -> Email | None:
        return email

    return compose


@pytest.fixture
def written() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(written: io.StringIO) -> Log:
    return make_log(written)


async def test_a_letter_is_tried_again(log: Log, written: io.StringIO) -> None:
    """A mail server that fails twice gets the e-mail at the third try, and the log shows no address and no text."""
    server = Server(failures=2)
    outbox = Outbox(server.send, log, pauses_s=(0.0, 0.0))
    outbox.post(composed(LETTER))
    await server.taken.wait()
    await outbox.stop()
    assert server.tries == 3
    assert "451" in written.getvalue()
    assert not any(part in written.getvalue() for part in (LETTER.to, LETTER.subject, LETTER.text))


async def test_a_letter_that_is_refused_for_good_is_not_tried_again(log: Log) -> None:
    """An address that the mail server refuses is not asked for again."""
    server = Server(failures=1, retry_helps=False)
    outbox = Outbox(server.send, log, pauses_s=(0.0, 0.0))
    outbox.post(composed(LETTER))
    await server.refused.wait()
    await outbox.stop()
    assert server.tries == 1


async def test_a_full_queue_drops_letters(log: Log, written: io.StringIO) -> None:
    """A flood of e-mails takes no more memory than the queue, and what is dropped is logged."""
    server = Server()
    outbox = Outbox(server.send, log, queue_max=2)
    for _ in range(5):
        outbox.post(composed(LETTER))
    await outbox.stop()
    assert server.tries == 2
    assert written.getvalue().count("dropped") == 3


async def test_one_broken_letter_does_not_stop_the_others(log: Log, written: io.StringIO) -> None:
    """An e-mail that cannot be written, and one that is not needed, are passed over."""

    async def broken() -> Email | None:
        raise ValueError("somebody@example.org")

    server = Server()
    outbox = Outbox(server.send, log)
    outbox.post(broken)
    outbox.post(composed(None))
    outbox.post(composed(LETTER))
    await server.taken.wait()
    await outbox.stop()
    assert server.tries == 1
    assert "somebody@" not in written.getvalue()


def test_the_page_has_its_bounds() -> None:
    """docs/parts/mail.md says how many e-mails wait at most, and for how long at the end."""
    page = (Path(__file__).parents[3] / "docs" / "parts" / "mail.md").read_text()
    assert f"At most {QUEUE_MAX} wait" in page
    assert f"have {END_S:g} seconds" in page
