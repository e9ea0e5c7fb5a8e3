"""The settings of the site, and what the composition root passes to it. Imports no page and no web framework."""

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from cadenza.control.classes import ClassRules
from cadenza.core.email import Post
from cadenza.core.retention import USUAL_LIMITS, RetentionLimits
from cadenza.fleet.shared import Rates
from cadenza.gateway.gateway import Gateway
from cadenza.observe import Log
from cadenza.observe.minutes import MinuteRing
from cadenza.observe.worker_metrics import ReadMetrics
from cadenza.parts.site.chat.markdown.process import MarkdownRenderer
from cadenza.server.service_health import ServiceHealth


class SiteSettings(msgspec.Struct, frozen=True):
    """The settings of the site. Without a `base_url`, the pages show the address that a request names."""

    base_url: str | None = None
    sign_up: Literal["closed", "invite", "open"] = "closed"
    opening_credit_nano: int = 0
    opening_credits_per_hour: int = 100
    region: str | None = None
    has_config: bool = True  # False: the embedded model serves every class
    secret_key: str | None = None
    retention: RetentionLimits = USUAL_LIMITS


class SiteParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the site is built from."""

    gateway: Gateway
    rates: Rates
    log: Log
    settings: SiteSettings
    class_rules: Callable[[str], ClassRules]  # what the config says about a class
    read_metrics: ReadMetrics  # of all worker processes
    minutes: MinuteRing
    health: ServiceHealth
    markdown: MarkdownRenderer
    post: Post | None  # None: no e-mail is sent
    made: Mapping[type, object]  # by parts in their `run`, for their pages
