"""Changes of prices on both databases: announced with a date, refused, withdrawn, recorded."""

import asyncio

import msgspec
import pytest

from cadenza.control.price_changes import (
    CANCEL_MS,
    PriceOrder,
    cancel_change,
    change_price,
    parse_date,
    read_schedules,
    say_unused,
)
from cadenza.core.errors import ControlError
from cadenza.core.money import Price
from cadenza.core.price_schedules import PriceChange, PriceSchedule
from cadenza.core.records import COMMAND_LINE
from cadenza.store.store import Store
from cadenza.store.tables import epochs
from cadenza.store.tables.audit_events import list_newest
from tests.store.rows import NOW_MS

CONFIGURED = {"mezzo": Price(100, 210, 20), "forte": Price(1_070, 3_450)}
NEW = Price(1_200, 3_600)
DAY_MS = 24 * 60 * 60 * 1000
ORDER = PriceOrder("forte", NOW_MS + DAY_MS, NEW)


async def announce(store: Store, order: PriceOrder = ORDER, now_ms: int = NOW_MS) -> PriceSchedule:
    return await change_price(store, order, CONFIGURED, COMMAND_LINE, now_ms)


async def forte(store: Store, now_ms: int = NOW_MS) -> PriceSchedule:
    return (await read_schedules(store, CONFIGURED, now_ms))["forte"]


async def test_a_change_is_announced(store: Store) -> None:
    """It is to come, begins the next epoch of classes, is in the audit log, and leaves other classes alone."""
    before = await epochs.current(store, epochs.CLASSES)
    schedule = await announce(store)
    assert schedule == await forte(store) == PriceSchedule(CONFIGURED["forte"], (PriceChange(ORDER.from_at, NEW),))
    assert (await read_schedules(store, CONFIGURED, NOW_MS))["mezzo"] == PriceSchedule(CONFIGURED["mezzo"])
    assert await epochs.current(store, epochs.CLASSES) == before + 1
    [event] = await list_newest(store)
    assert (event.actor, event.event, event.subject) == (COMMAND_LINE.name, "class.price", "forte")
    assert "1.20 input / 3.60 output from" in event.detail
    assert "instead of 1.07 input / 3.45 output" in event.detail


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (PriceOrder("forte", NOW_MS - 1, NEW), "is past"),
        (PriceOrder("forte", NOW_MS, NEW), "is past"),
        (PriceOrder("forte", NOW_MS + 3651 * DAY_MS, NEW), "more than ten years"),
        (PriceOrder("forte", NOW_MS + DAY_MS, Price(100, 100, 101)), "must not be above"),
        (PriceOrder("piano", NOW_MS + DAY_MS, NEW), "Use one of: mezzo, forte"),
        (PriceOrder("mezzo", NOW_MS + DAY_MS, Price(200, 400)), "--cached-input none"),
    ],
)
async def test_a_wrong_change_is_refused(store: Store, order: PriceOrder, words: str) -> None:
    """A past date, a cached price above that of input, an unknown class, a forgotten cached price: nothing changes."""
    before = await epochs.current(store, epochs.CLASSES)
    with pytest.raises(ControlError, match=words):
        await announce(store, order)
    assert await epochs.current(store, epochs.CLASSES) == before
    assert await list_newest(store) == []


async def test_a_cached_price_can_be_dropped(store: Store) -> None:
    """If the operator says so."""
    schedule = await announce(store, PriceOrder("mezzo", NOW_MS + DAY_MS, Price(200, 400), drops_cached=True))
    assert schedule.changes[0].price.cached_input_nano is None


async def test_one_change_for_a_date(store: Store) -> None:
    """A second one is refused and told how to withdraw the first. Of two at the same moment, one wins."""
    tries = [announce(store), announce(store, msgspec.structs.replace(ORDER, price=Price(1, 1)))]
    done = await asyncio.gather(*tries, return_exceptions=True)
    [refused] = [one for one in done if isinstance(one, ControlError)]
    assert "cadenza class price forte --cancel " in refused.message
    assert len((await forte(store)).changes) == 1
    assert len(await list_newest(store)) == 1


async def test_a_cancelled_change_never_counts(store: Store) -> None:
    """It is gone before and after its date, a later one stays, the audit log has all, and the date is free again."""
    later_at = ORDER.from_at + DAY_MS
    for from_at in (ORDER.from_at, later_at):
        await announce(store, msgspec.structs.replace(ORDER, from_at=from_at))
    cancelled = await cancel_change(store, "forte", ORDER.from_at, COMMAND_LINE, NOW_MS)
    assert cancelled == PriceChange(ORDER.from_at, NEW)
    assert await forte(store, later_at - 1) == PriceSchedule(CONFIGURED["forte"], (PriceChange(later_at, NEW),))
    assert [event.event for event in await list_newest(store)] == ["class.price"] * 3
    await announce(store)


async def test_what_cannot_be_cancelled(store: Store) -> None:
    """No change of that date, one that counts, and one that counts too soon to tell every process."""
    await announce(store)
    with pytest.raises(ControlError, match="Changes to come: "):
        await cancel_change(store, "forte", ORDER.from_at + 1000, COMMAND_LINE, NOW_MS)
    with pytest.raises(ControlError, match="has no changes to come"):
        await cancel_change(store, "mezzo", ORDER.from_at, COMMAND_LINE, NOW_MS)
    with pytest.raises(ControlError, match="counts already"):
        await cancel_change(store, "forte", ORDER.from_at, COMMAND_LINE, ORDER.from_at)
    with pytest.raises(ControlError, match="too late"):
        await cancel_change(store, "forte", ORDER.from_at, COMMAND_LINE, ORDER.from_at - CANCEL_MS)
    assert len((await forte(store)).changes) == 1


async def test_the_store_wins_once_a_change_has_begun(store: Store) -> None:
    """Until then the config's price counts, as it is at each reading; afterwards it is not used, and that is said."""
    edited, default = Price(5, 5), CONFIGURED["forte"]
    await announce(store)
    before = (await read_schedules(store, {"forte": edited}, ORDER.from_at - 1))["forte"]
    after = (await read_schedules(store, {"forte": edited}, ORDER.from_at))["forte"]
    assert (before.at(ORDER.from_at - 1), after.at(ORDER.from_at)) == (edited, NEW)
    assert say_unused("forte", edited, default, before) is None
    assert "[prices.forte] in the config is not used" in (say_unused("forte", edited, default, after) or "")
    assert say_unused("forte", default, default, after) is None


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2026-12-01", 1_796_083_200_000),
        ("2026-12-01T00:00:00", 1_796_083_200_000),
        ("2026-12-01T00:00:00Z", 1_796_083_200_000),
        ("2026-12-01T01:00:00+01:00", 1_796_083_200_000),
    ],
)
def test_a_date_without_a_zone_is_utc(text: str, at_ms: int) -> None:
    """A date may have a time, and a zone."""
    assert parse_date(text) == at_ms


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01", "01.12.2026", "2026-12-01T00:00:00.5Z"])
def test_what_is_no_date(text: str) -> None:
    """The error shows how to write one."""
    with pytest.raises(ValueError, match="write it like 2026-12-01"):
        parse_date(text)
