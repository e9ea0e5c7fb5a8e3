"""`[mail]` in the config."""

from collections.abc import Iterable
from typing import Annotated, Literal

from cadenza.config.checks import SENDER, Secret
from cadenza.config.reader import PartTable
from cadenza.core.config_keys import Like, Variable, whole


# A key is one line.
# fmt: off
class MailSettings(PartTable, frozen=True, kw_only=True):
    host: Annotated[str, Like("smtp.example.org"), "the SMTP server"]
    port: Annotated[int, whole(1, 65_535), "its port"] = 587
    security: Annotated[Literal["starttls", "tls", "none"], '"none" for a server on this machine'] = "starttls"
    username: Annotated[str | None, Like("cadenza", is_off=True), "goes with password_env"] = None
    password_env: Annotated[str | None, Variable("the password of the SMTP server", "SMTP_PASSWORD")] = None
    sender: Annotated[str, SENDER, Like("Cadenza <cadenza@example.org>"), "the sender of every e-mail"]
    password: Secret | None = None
    # fmt: on

    def mistakes(self) -> Iterable[tuple[str, str]]:
        if (self.username is None) != (self.password_env is None):
            yield "", "username and password_env belong together: give both or none"


TABLES = {"mail": Annotated[MailSettings | None, "without it, the command line prints the links that would be sent"]}
