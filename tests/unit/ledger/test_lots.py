"""Granted credit that expires, without a store: what expires first is spent first."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cadenza.ledger.lots import CreditLot, spend

lots = st.lists(st.tuples(st.integers(0, 50), st.none() | st.integers(1, 5)), max_size=6).map(
    lambda found: [CreditLot(number, "a", "", left, expires_at) for number, (left, expires_at) in enumerate(found)]
)


@given(lots, st.lists(st.integers(0, 40), max_size=6))
def test_however_often_it_is_written_the_same_is_left(found: list[CreditLot], charges: list[int]) -> None:
    """After each charge or only at the end: the lots are emptied in the order in which they expire, nano by nano."""
    granted_nano = sum(lot.left_nano for lot in found)
    each_time, nanos = (
        found,
        [lot.id for lot in sorted(found, key=lambda one: (one.expires_at or 9, one.id)) for _ in range(lot.left_nano)],
    )
    for charge_nano in charges:
        granted_nano = max(0, granted_nano - charge_nano)
        each_time = spend(each_time, granted_nano)
    at_once = spend(found, granted_nano)
    left = nanos[len(nanos) - granted_nano :]
    assert {lot.id: lot.left_nano for lot in at_once} == {lot.id: left.count(lot.id) for lot in found}
    assert sorted(at_once, key=lambda one: one.id) == sorted(each_time, key=lambda one: one.id)


@given(lots, st.integers(0, 100))
def test_more_credit_than_the_lots_have_changes_none(found: list[CreditLot], more_nano: int) -> None:
    """What came back by a refund belongs to no lot."""
    left = spend(found, sum(lot.left_nano for lot in found) + more_nano)
    assert {lot.id: msgspec.structs.astuple(lot) for lot in left} == {
        lot.id: msgspec.structs.astuple(lot) for lot in found
    }
