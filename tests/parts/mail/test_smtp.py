"""Mailer go to a real SMTP server: with TLS that is verified, and without a word about the email when it fails."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest
import trustme
from aiosmtpd.smtp import SMTP
from msgspec.structs import replace

from cadenza.config import Settings, load_settings
from cadenza.core.email import Email
from cadenza.parts.mail.checks import check_mail
from cadenza.parts.mail.outbox import SendFailed
from cadenza.parts.mail.settings import MailSettings
from cadenza.parts.mail.smtp import send_email
from tests.mail_server import Mailbox
from tests.unit.http.addresses import reaches_the_second_address
from tests.unit.http.peer import LOCALHOST, refusing_port
from tests.unit.upstreams.clock import Clock

LETTER = Email("somebody@example.org", "A subject", "First line\nSecond line\n")
Security = Literal["starttls", "tls", "none"]
SERVER = MailSettings(host="localhost", security="none", sender="Cadenza <cadenza@example.org>")


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """A certificate authority that this process trusts."""
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    return made


@contextlib.asynccontextmanager
async def receiving(
    security: Security, authority: trustme.CA | None = None, name: str = "localhost"
) -> AsyncIterator[tuple[Mailbox, int]]:
    """A server in the test's own loop."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if authority:
        authority.issue_cert(name).configure_cert(context)
    mailbox = Mailbox()
    server = await asyncio.get_running_loop().create_server(
        lambda: SMTP(mailbox, hostname="localhost", tls_context=context if security == "starttls" else None),
        LOCALHOST,
        0,
        ssl=context if security == "tls" else None,
    )
    async with server:
        yield mailbox, server.sockets[0].getsockname()[1]


def server_at(port: int, security: Security) -> MailSettings:
    return replace(SERVER, port=port, security=security)


@pytest.mark.parametrize("security", ["none", "starttls", "tls"])
async def test_a_letter_arrives(authority: trustme.CA, security: Security) -> None:
    """The text arrives as it was written, over each kind of connection."""
    async with receiving(security, authority) as (mailbox, port):
        await send_email(server_at(port, security), LETTER)
    [received] = mailbox.emails
    assert (received.to, received.subject) == (LETTER.to, LETTER.subject)
    assert received.text.splitlines() == LETTER.text.splitlines()


@pytest.mark.parametrize("security", ["starttls", "tls"])
async def test_a_server_with_the_certificate_of_another_is_refused(authority: trustme.CA, security: Security) -> None:
    """The e-mail is not handed to a server that is not the one of the config."""
    async with receiving(security, authority, "evil.example") as (mailbox, port):
        with pytest.raises(SendFailed) as caught:
            await send_email(server_at(port, security), LETTER)
    assert mailbox.emails == []
    assert caught.value.retry_helps


async def test_a_server_without_tls_is_refused(authority: trustme.CA) -> None:
    """A server that offers no STARTTLS does not get the e-mail in plain text."""
    async with receiving("none") as (mailbox, port):
        with pytest.raises(SendFailed):
            await send_email(server_at(port, "starttls"), LETTER)
    assert mailbox.emails == []


@pytest.mark.parametrize(("reply", "retry_helps"), [("451 later", True), ("550 no such address", False)])
async def test_a_refusal_tells_whether_to_try_again(reply: str, retry_helps: bool) -> None:
    """A refusal for now is tried again, one for good is not, and neither reason has the address."""
    async with receiving("none") as (mailbox, port):
        mailbox.reply = reply
        with pytest.raises(SendFailed) as caught:
            await send_email(server_at(port, "none"), LETTER)
    assert caught.value.retry_helps is retry_helps
    assert reply[:3] in caught.value.reason
    assert "somebody" not in caught.value.reason


async def test_no_server_is_a_reason_to_try_again() -> None:
    """A mail server that is down is a passing trouble."""
    with refusing_port() as port, pytest.raises(SendFailed) as caught:
        await send_email(server_at(port, "none"), LETTER)
    assert caught.value.retry_helps


async def test_a_silent_address_is_passed_over(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mail server with a silent address is reached at its next one in under half a second."""
    await reaches_the_second_address(clock, monkeypatch, lambda port: send_email(server_at(port, "none"), LETTER))


async def test_doctor_asks_the_mail_server(tmp_path: Path) -> None:
    """A server that answers is well, one that does not is a fault, and neither gets an e-mail."""
    async with receiving("none") as (mailbox, port):
        assert [(one.state, one.found) for one in await check_mail(with_server(tmp_path, port))] == [
            ("ok", "localhost answers")
        ]
    assert mailbox.emails == []
    with refusing_port() as port:
        [failed] = await check_mail(with_server(tmp_path, port))
    assert (failed.state, failed.todo) == ("fault", "Check [mail] and the mail server.")


async def test_doctor_does_not_ask_without_the_password(tmp_path: Path) -> None:
    """Whether the login works is not known then; and without the table there is nothing to ask."""
    [unasked] = await check_mail(with_server(tmp_path, 1, 'username = "cadenza"\npassword_env = "SMTP_PASSWORD"\n'))
    assert (unasked.state, unasked.found) == ("warning", "localhost was not asked: its password is not set")
    assert await check_mail(load_settings(None, {}, tmp_path / "empty")) == []


def with_server(folder: Path, port: int, more: str = "") -> Settings:
    base = '[platform]\nbase_url = "https://chat.example.org"\n'
    mail = f'[mail]\nhost = "localhost"\nport = {port}\nsecurity = "none"\nsender = "a@example.org"\n'
    (folder / "cadenza.toml").write_text(f"{base}{mail}{more}")
    return load_settings(None, {}, folder)
