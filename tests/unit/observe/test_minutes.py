"""The counts of the last minutes."""

from collections import Counter

from cadenza.observe.minutes import MINUTE_S, MINUTES_MAX, MinuteRing

NAME = "cadenza_requests_total"
START_S = 1_800_000_000


def totals(count: int) -> Counter[tuple[str, str]]:
    return Counter({(NAME, "200"): count})


def test_minutes_have_what_was_counted_since_the_reading_before() -> None:
    """What was counted before the first reading is left out; a fallen total counts from zero."""
    ring = MinuteRing(START_S)
    for place, total in enumerate((100, 105, 112, 3)):
        ring.note(totals(total), START_S + place * MINUTE_S)
    assert [one["200"] for one in ring.series(START_S, MINUTE_S, 4, NAME)] == [0, 5, 7, 0]
    assert [one["200"] for one in ring.series(START_S, 2 * MINUTE_S, 2, NAME)] == [5, 7]
    assert ring.since(START_S + 2 * MINUTE_S)[NAME]["200"] == 7


def test_the_ring_is_bounded() -> None:
    """After a day the oldest minutes are gone."""
    ring = MinuteRing(START_S)
    for place in range(MINUTES_MAX + 10):
        ring.note(totals(place), START_S + place * MINUTE_S)
    assert ring.since(START_S)[NAME]["200"] == MINUTES_MAX
