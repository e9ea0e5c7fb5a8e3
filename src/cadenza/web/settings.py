"""The settings of the site."""

from typing import Literal

import msgspec

from cadenza.control.stripe import StripeSettings


class SiteSettings(msgspec.Struct, frozen=True):
    """The settings of the site. Without a `base_url`, links carry the address of the request that asks for them."""

    base_url: str | None = None
    sign_up: Literal["closed", "invite", "open"] = "closed"
    opening_credit_nano: int = 0
    region: str = "ca"
    stripe: StripeSettings | None = None
