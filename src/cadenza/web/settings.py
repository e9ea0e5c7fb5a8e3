"""The settings of the site."""

from typing import Literal

import msgspec


class SiteSettings(msgspec.Struct, frozen=True):
    """The settings of the site. Without a `base_url`, the pages show the address that a request names."""

    base_url: str | None = None
    sign_up: Literal["closed", "invite", "open"] = "closed"
    opening_credit_nano: int = 0
    region: str = "ca"
