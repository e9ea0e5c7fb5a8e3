"""Ends canaries: the version from before serves every account, as the audit log says. Their columns stay."""

import time
from collections.abc import Callable

RUNNING = "FROM class_states WHERE candidate IS NOT NULL"
DETAIL = "'the canary of version ' || candidate || ' ended, version ' || version || ' stays: there are no canaries now'"


def upgrade(database: str, execute: Callable[[str], object]) -> None:
    del database  # the same SQL for both
    execute(
        "INSERT INTO audit_events (at, actor, event, subject, detail) "
        f"SELECT {time.time_ns() // 1_000_000}, 'migration', 'class.rollback', class_id, {DETAIL} {RUNNING}"
    )
    execute(f"UPDATE epochs SET number = number + 1 WHERE EXISTS (SELECT 1 {RUNNING})")  # noqa: S608 our own words
    execute(
        "UPDATE class_states SET candidate = NULL, share = 0, canary = NULL, revision = revision + 1 "
        "WHERE candidate IS NOT NULL"
    )
