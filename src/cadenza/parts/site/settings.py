"""`[platform]` in the config. It imports no page and no web framework."""

from typing import Annotated, Literal, Self

from msgspec import field
from msgspec.structs import replace

from cadenza.config import Settings
from cadenza.config.checks import ADDRESS, Secret
from cadenza.config.reader import ConfigReader, PartTable
from cadenza.core.config_keys import DOLLARS, Like, whole

SITE_KEY_VARIABLE = "CADENZA_SECRET_KEY"
SITE_KEY_CHARS_MIN = 32


# A key is one line, or two with its sentence.
# fmt: off
class PlatformSettings(PartTable, frozen=True):
    """The web application. `secret_key` encrypts the secrets of authenticator apps in the store."""

    base_url: Annotated[str | None, ADDRESS, Like("https://chat.example.org"),
        "its address, for links; without it, the address of the request"] = None
    sign_up: Annotated[Literal["closed", "invite", "open"],
        '"invite": with an invitation; "open": everybody'] = "closed"
    opening_credit_nano: Annotated[int, DOLLARS,
        "dollars for an account that is created on the site"] = field(default=0, name="opening_credit")
    opening_credits_per_hour: Annotated[int, whole(1, 1_000_000),
        "how many accounts get it in an hour; more sign-ups than that wait"] = 100
    secret_key: Secret | None = None
    # fmt: on

    @classmethod
    def given_in(cls, settings: Settings) -> Self:
        found = settings.of(cls)
        assert found, "it is in the settings without a table in the file too"
        return found

    def completed(self, reader: ConfigReader) -> Self:
        """Links need the address of the site from the config: the Host header of a request can be forged."""
        if "mail" in reader.tables and not self.base_url:
            reader.problem(("platform", "base_url"), "missing; e-mails have links, which begin with it")
        reader.site_url = self.base_url
        key = reader.environ.get(SITE_KEY_VARIABLE, "").strip()
        if key and len(key) < SITE_KEY_CHARS_MIN:
            words = f"the value of {SITE_KEY_VARIABLE} is too short: {SITE_KEY_CHARS_MIN} characters"
            reader.problem(("platform",), words)
        return replace(self, secret_key=Secret(key) if key else None)


TABLES = {"platform": Annotated[PlatformSettings, "the web application"]}
