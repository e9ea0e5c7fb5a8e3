"""Payment events keep what they say, so that those that come before the payment is paid can be applied then."""

from collections.abc import Callable

COLUMNS = ("reference TEXT", "fact TEXT", "happened_at BIGINT")


def upgrade(_database: str, execute: Callable[[str], object]) -> None:
    for column in COLUMNS:
        execute(f"ALTER TABLE payment_events ADD COLUMN {column}")
    execute("CREATE INDEX ix_payment_events_reference ON payment_events (reference)")
