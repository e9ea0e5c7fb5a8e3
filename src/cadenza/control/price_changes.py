"""Prices that take effect on a date: announced, cancelled, and read by every process.

The config's price is in effect until the first change of the class, and then the newest change that has begun. All
processes know of a change before the command that made it returns, and each applies it by its own clock: if two
clocks differ by a second, so do the moments at which they begin to charge the new price.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339
from cadenza.core.money import Price
from cadenza.core.price_schedules import PriceChange, PriceSchedule, describe_price
from cadenza.core.records import Operator
from cadenza.core.spans import DAY_MS
from cadenza.fleet.changes import make_change
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events, epochs, price_changes
from cadenza.store.tables.audit_events import AuditEvent

EVENT = "class.price"
AHEAD_MS_MAX = 3650 * DAY_MS  # more is a typing error
CANCEL_MS = 5_000  # longer than it takes until every process has heard of a change


class PriceOrder(msgspec.Struct, frozen=True):
    """A change of price as an operator gives it."""

    class_id: str
    from_at: int
    price: Price
    drops_cached: bool = False  # cached input shall cost as much as other input, even if it was cheaper before


def parse_date(text: str) -> int:
    """A date, or a date and a time, in milliseconds. Without a zone it is UTC. ValueError if it is neither."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a date; write it like 2026-12-01 or 2026-12-01T08:00:00Z") from None
    if at.microsecond:
        raise ValueError(f"{text!r} has fractions of a second; write it like 2026-12-01T08:00:00Z")
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()) * 1000


async def read_schedules(store: Store, configured: Mapping[str, Price], now_ms: int) -> dict[str, PriceSchedule]:
    """The prices of each class that the config has a price of."""
    found = await price_changes.list_all(store)
    return {id_: PriceSchedule.of(price, found.get(id_, ()), now_ms) for id_, price in configured.items()}


async def change_price(
    store: Store, order: PriceOrder, configured: Mapping[str, Price], by: Operator, now_ms: int
) -> PriceSchedule:
    """Announce a price that takes effect on a date, and return the prices of the class."""
    class_id, price, date = order.class_id, order.price, rfc3339(order.from_at)
    check_class(class_id, configured)
    if order.from_at <= now_ms:
        raise ControlError(
            f"{date} is past. A price takes effect on a date in the future; now it is {rfc3339(now_ms)}."
        )
    if order.from_at > now_ms + AHEAD_MS_MAX:
        raise ControlError(f"{date} is more than ten years ahead.")
    if price.cached_input_nano is not None and price.cached_input_nano > price.input_nano:
        raise ControlError("The price of cached input must not be above the price of input.")

    def work(tx: Transaction) -> PriceSchedule:
        epochs.begin_next(tx, epochs.CLASSES)  # first: it locks out every other change of a class until the commit
        changes = price_changes.list_of_class(tx, class_id)
        if any(change.from_at == order.from_at for change in changes):
            raise ControlError(
                f"{class_id} has a change of price from {date} already. "
                f"Withdraw it with: cadenza class price {class_id} --cancel {date}"
            )
        before = PriceSchedule.of(configured[class_id], changes, now_ms).at(order.from_at)
        _check_cached(order, before)
        added = PriceChange(order.from_at, price)
        price_changes.add(tx, class_id, added, by.name, now_ms)
        detail = f"{describe_price(price)} from {date}, instead of {describe_price(before)}"
        audit_events.add(tx, AuditEvent(now_ms, by, EVENT, subject=class_id, detail=detail))
        return PriceSchedule.of(configured[class_id], [*changes, added], now_ms)

    return await make_change(store, work)


async def cancel_change(store: Store, class_id: str, from_at: int, by: Operator, now_ms: int) -> PriceChange:
    """Withdraw a change of price that has not taken effect."""
    date = rfc3339(from_at)

    def work(tx: Transaction) -> PriceChange:
        epochs.begin_next(tx, epochs.CLASSES)
        changes = price_changes.list_of_class(tx, class_id)
        found = next((change for change in changes if change.from_at == from_at), None)
        if found is None:
            dates = ", ".join(rfc3339(change.from_at) for change in changes if change.from_at > now_ms)
            coming = f"Changes to come: {dates}." if dates else "It has no changes to come."
            raise ControlError(f"{class_id} has no change of price from {date}. {coming}")
        if from_at <= now_ms:
            raise ControlError(f"The price from {date} counts already. Announce another change instead.")
        if from_at <= now_ms + CANCEL_MS:
            raise ControlError(
                f"The price from {date} counts in less than {CANCEL_MS // 1000} seconds: too late to tell every "
                "process. Announce another change instead."
            )
        price_changes.remove(tx, class_id, from_at)
        detail = f"cancelled: {describe_price(found.price)} from {date}"
        audit_events.add(tx, AuditEvent(now_ms, by, EVENT, subject=class_id, detail=detail))
        return found

    return await make_change(store, work)


def say_unused(class_id: str, configured: Price, default: Price, schedule: PriceSchedule) -> str | None:
    """The sentence about a price of the config that a change has replaced; None if there is nothing to say."""
    if schedule.since_at is None or configured in (default, schedule.first):
        return None
    return (
        f"[prices.{class_id}] in the config is not used: since {rfc3339(schedule.since_at)} the price is "
        f"{describe_price(schedule.first)}. Remove the section; 'cadenza class price {class_id}' changes the price."
    )


def check_class(class_id: str, configured: Mapping[str, Price]) -> None:
    if class_id not in configured:
        raise ControlError(f"There is no class '{class_id}' with a price. Use one of: {', '.join(configured)}.")


def _check_cached(order: PriceOrder, before: Price) -> None:
    """A cached price must not get lost because an option was forgotten."""
    if before.cached_input_nano is None or order.price.cached_input_nano is not None or order.drops_cached:
        return
    raise ControlError(
        f"{order.class_id} has a price of cached input ({describe_price(before)}). Give --cached-input as well, or "
        "--cached-input none if cached input shall cost as much as other input."
    )
