"""What `cadenza doctor` finds out about the mail server: whether it takes the login. No e-mail is sent."""

from cadenza.config import Settings
from cadenza.parts.mail.outbox import SendFailed
from cadenza.parts.mail.problems import MAIL_FAILS
from cadenza.parts.mail.settings import MailSettings
from cadenza.parts.mail.smtp import signed_in
from cadenza.terminal.checks import Check, Checks


async def check_mail(settings: Settings) -> list[Check]:
    server = settings.of(MailSettings)
    if not server:
        return []
    if server.password_env and not server.password:
        return [Check("mail", "warning", f"{server.host} was not asked: its password is not set")]
    try:
        async with signed_in(server):
            return [Check("mail", "ok", f"{server.host} answers{' and takes the login' if server.username else ''}")]
    except SendFailed as error:
        return [Check("mail", "fault", f"{server.host}: {error.reason}", MAIL_FAILS.advice)]


checks: Checks = check_mail
