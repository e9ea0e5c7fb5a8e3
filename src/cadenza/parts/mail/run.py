"""Sends what pages post, and the notices of low credit, while the service runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cadenza import clock
from cadenza.core.email import Email
from cadenza.fleet.background import repeat, running
from cadenza.parts.mail.low_balance import POLL_INTERVAL_S, LowBalanceNotices
from cadenza.parts.mail.outbox import Outbox
from cadenza.parts.mail.problems import MAIL_FAILS
from cadenza.parts.mail.settings import MailSettings
from cadenza.service import Run, Service


@asynccontextmanager
async def send_mail(service: Service) -> AsyncIterator[None]:
    server, log = service.settings.of(MailSettings), service.log
    assert server

    async def send(email: Email) -> None:
        from cadenza.parts.mail.smtp import send_email  # noqa: PLC0415 import time: with the first e-mail

        await send_email(server, email)

    outbox = Outbox(send, log)
    service.post = outbox.post
    service.health.notes[MAIL_FAILS.kind] = outbox.say_failure
    notices = LowBalanceNotices(service.store, send, log, service.settings.site_url)
    try:
        async with running(repeat(lambda: notices.poll(clock.now_ms()), POLL_INTERVAL_S, log)):
            yield
    finally:
        await outbox.stop()


run: Run = send_mail
