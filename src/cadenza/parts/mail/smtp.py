"""Sends an e-mail by SMTP. TLS certificates are verified, and every wait is bounded."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate, make_msgid, parseaddr

import aiosmtplib

from cadenza.core.email import Email
from cadenza.http.connecting import closed_on_error, connect_to_host
from cadenza.parts.mail.outbox import SendFailed
from cadenza.parts.mail.settings import MailSettings

TIMEOUT_S = 20.0
PERMANENT_STATUS = 500


@asynccontextmanager
async def signed_in(server: MailSettings) -> AsyncIterator[aiosmtplib.SMTP]:
    """A connection to the server. SendFailed, without any address or text, if it does not take what is done with it."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            connected = await connect_to_host(server.host, server.port)
        with closed_on_error(connected):
            async with aiosmtplib.SMTP(
                hostname=server.host,
                sock=connected,
                username=server.username,
                password=server.password,
                use_tls=server.security == "tls",
                start_tls=server.security == "starttls",
                tls_context=None if server.security == "none" else ssl.create_default_context(),
                timeout=TIMEOUT_S,
            ) as client:
                yield client
    except aiosmtplib.SMTPResponseException as error:
        retry_helps = error.code < PERMANENT_STATUS
        raise SendFailed(f"the mail server answered {error.code}", retry_helps=retry_helps) from None
    except aiosmtplib.SMTPRecipientsRefused as error:
        codes = [one.code for one in error.recipients]
        raise SendFailed(f"the mail server answered {codes}", retry_helps=min(codes) < PERMANENT_STATUS) from None
    except (aiosmtplib.SMTPException, OSError) as error:
        raise SendFailed(type(error).__name__, retry_helps=True) from None


async def send_email(server: MailSettings, email: Email) -> None:
    message, sender = _message(server.sender, email), parseaddr(server.sender)[1]
    async with signed_in(server) as client:
        await client.send_message(message, sender=sender, recipients=[email.to])


def _message(sender: str, email: Email) -> EmailMessage:
    name, address = parseaddr(sender)
    message = EmailMessage()
    message["From"] = Address(name, addr_spec=address)
    message["To"] = Address(addr_spec=email.to)
    message["Subject"] = email.subject
    message["Date"] = formatdate()
    message["Message-ID"] = make_msgid(domain=address.rpartition("@")[2])
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(email.text)
    return message
