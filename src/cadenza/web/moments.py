"""Times in the JSON of /platform/api."""

from datetime import UTC, datetime


def rfc3339(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def rfc3339_or_none(at_ms: int | None) -> str | None:
    return None if at_ms is None else rfc3339(at_ms)
