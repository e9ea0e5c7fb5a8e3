"""The retention audit has a site without TLS, with a secret key of its own."""

from cadenza.parts.retention.case import PartAudit
from cadenza.parts.retention.config import PrivateConfig, Table
from cadenza.parts.site.settings import SITE_KEY_VARIABLE

KEPT = ("opening_credit", "opening_credits_per_hour")  # not its address: the audit has no TLS


def private(given: Table, config: PrivateConfig, _upstream_url: str) -> Table:
    config.secret(SITE_KEY_VARIABLE, "the secret key of the site", 32 * "-")
    platform = given.get("platform", {})
    return {"platform": {name: platform[name] for name in KEPT if name in platform}}


AUDIT = PartAudit(private=private)
