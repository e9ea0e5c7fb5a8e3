"""What `cadenza doctor` says of how long things are kept: the limits of the config, and how old the oldest rows are."""

from cadenza import clock
from cadenza.cli.doctor.installation import ask_store
from cadenza.config import Settings
from cadenza.config.checks import is_private
from cadenza.config.kinds import kind_of
from cadenza.config.settings import ProviderSettings
from cadenza.control.retention_keeper import KeptRow, read_kept
from cadenza.core.retention_limits import RetentionLimits
from cadenza.core.spans import DAY_MS
from cadenza.terminal.checks import Check
from cadenza.upstreams.dialects import DIALECTS

ENFORCED = "zero, enforced by its API: each request demands it (provider.zdr)"
LOCAL = "zero, enforced: the model runs on this machine"
PROMISED = "zero by contract only: its API has no switch"
OWN_SERVER = "zero as configured: a server in your network, and what it logs is up to you"
STORE_FALSE = (
    "zero by contract only: each request says store: false, so that no completion is kept for retrieval; "
    "logs against abuse, up to 30 days, end only with a contract"
)

HOUR_MS = 60 * 60 * 1000
LATE_MS = 2 * DAY_MS  # the service looks every few minutes, and a day is removed when it is over


async def check_retention(settings: Settings) -> Check:
    """A warning if something is much older than its limit: then no service applies it."""
    limits, now_ms = settings.retention, clock.now_ms()
    rows = await ask_store(settings, lambda store: read_kept(store, limits)) or []
    late = [row for row in rows if row.limit_ms and row.oldest_at and row.oldest_at < now_ms - row.limit_ms - LATE_MS]
    lines = [describe_limits(limits), *(_describe(row, now_ms) for row in rows if row.oldest_at)]
    todo = f"Start the service with this config: it removes what is too old ({', '.join(row.name for row in late)})."
    return Check("kept", "warning" if late else "ok", "\n".join(lines), todo if late else "")


def describe_limits(limits: RetentionLimits) -> str:
    events = f"{limits.audit_event_days} days" if limits.audit_event_days else "no limit"
    requests = f"{limits.usage_days} days, then by day" if limits.usage_days else "no limit"
    return (
        f"requests: {requests}; audit events: {events}; sessions: {limits.session_days} days, "
        f"{limits.session_idle_days} without use; in memory: search results {limits.search_result_s} s, "
        f"pages {limits.page_s} s"
    )


def _describe(row: KeptRow, now_ms: int) -> str:
    assert row.oldest_at is not None
    age_ms = max(0, now_ms - row.oldest_at)
    hours = f"{age_ms // HOUR_MS} hours" if age_ms >= 2 * HOUR_MS else "less than 2 hours"
    age = f"{age_ms // DAY_MS} days" if age_ms >= 2 * DAY_MS else hours
    return f"oldest of the {row.name}: {age}"


def describe_retention(provider: ProviderSettings) -> str:
    """What makes sure that the provider keeps nothing."""
    if provider.retention_by == "api":
        return LOCAL if kind_of(provider.kind).is_local else ENFORCED
    if DIALECTS[provider.dialect].adds:
        return STORE_FALSE
    return OWN_SERVER if is_private(provider.base_url or "") else PROMISED
