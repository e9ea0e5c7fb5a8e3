"""Orders: what their fields refuse, how they are typed, and that a repetition is known by all of them."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from cadenza.control.keys import RATE_MAX, CapOrder, KeyChange, KeyOrder
from cadenza.core.orders import FieldMistake, check_order, copied, fields_of, read_order, typed_values
from cadenza.core.records import KeyLimits, Principal
from cadenza.store.tables.keys import Key, KeyRow, NewKey

NUMBER = "a number above 0 and up to 1,000,000"
WHOLE = "a whole number from 1 to 1,000,000"
ORDER = KeyOrder("a key", 2.5, 7, CapOrder("5.00", "month"), scopes=("usage", "models"), expires="30")
TYPED = {"name": "a key", "requests_per_second": "2.5", "burst": "7", "cap": "5.00", "cap_period": "month"}


@pytest.mark.parametrize(
    ("given", "mistake"),
    [
        *(({"name": name}, "name: must be one line of at most 100 characters") for name in ("x" * 101, "two\nlines")),
        *(
            ({"requests_per_second": rate}, f"requests_per_second: must be {NUMBER}")
            for rate in (0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, RATE_MAX + 0.5, 1e300)
        ),
        *(({"burst": burst}, f"burst: must be {WHOLE}") for burst in (0, -1, RATE_MAX + 1, 2**63, -(2**63))),
        *(({"cap": CapOrder(limit)}, "cap.limit: ") for limit in ("-1", "1000000001", "five", "0.0000000001")),
        ({"scopes": ("models", "admin")}, 'scopes: must be "inference", "models" or "usage", not \'admin\''),
        ({"expires": "31"}, 'expires: must be "30", "90", "365" or "never", not \'31\''),
    ],
)
def test_a_field_that_cannot_be_used_is_named(given: dict[str, Any], mistake: str) -> None:
    """The sentence says what it must be; a change of the same fields is refused alike."""
    kinds = (KeyOrder, KeyChange) if given.keys() <= set(KeyChange.__struct_fields__) else (KeyOrder,)
    for kind in kinds:
        with pytest.raises(FieldMistake) as caught:
            check_order(kind(**given))
        assert caught.value.message.startswith(mistake)


def test_the_least_and_the_most_of_each_limit_are_accepted() -> None:
    """And null, which takes a limit away."""
    for per_s, burst in ((5e-324, 1), (RATE_MAX, RATE_MAX), (None, None)):
        change = KeyChange("x" * 100, per_s, burst, None)
        assert list(check_order(change).values()) == ["x" * 100, per_s, burst]


def test_what_is_typed_becomes_the_order() -> None:
    """By the names of its fields; spaces do not matter, and what was not typed is not set."""
    assert read_order(KeyOrder, {**TYPED, "scopes": ["usage", "models"], "expires": " 30 "}) == replace(
        ORDER, scopes=["usage", "models"]
    )
    assert read_order(KeyChange, {"burst": " 8 ", "cap_period": "month"}) == KeyChange(burst=8)
    assert read_order(KeyOrder, {"cap": "5"}).cap == CapOrder("5")


@pytest.mark.parametrize("typed", [{"burst": "", "cap": " "}, {"burst": "default", "cap": "none"}])
def test_an_empty_field_or_its_word_takes_a_value_away(typed: dict[str, str]) -> None:
    """An empty name is a name."""
    assert read_order(KeyChange, {**typed, "name": ""}) == KeyChange("", burst=None, cap=None)


@pytest.mark.parametrize("text", ["fast", "1.5", "0x10", "9" * 5000])
def test_a_number_that_cannot_be_read_is_named(text: str) -> None:
    """As the page and the command call it."""
    with pytest.raises(FieldMistake, match=f"^burst: must be {WHOLE}, not '") as caught:
        read_order(KeyChange, {"burst": text})
    assert caught.value.named("--burst").message.startswith("--burst: must be")


def test_a_form_has_what_was_ordered() -> None:
    """All digits of it; saved as it is, it changes nothing. A new form has the defaults."""
    for per_s, burst in ((2.5, 7), (1_000_000.0, 1_000_000), (0.0123456789, None), (None, 1)):
        change = KeyChange("version 1.0", per_s, burst, CapOrder("1234567.000000001", "month"))
        assert read_order(KeyChange, typed_values(KeyChange, change)) == change
    assert typed_values(KeyOrder) == dict.fromkeys(TYPED, "") | {
        "cap_period": "total",
        "scopes": [],
        "expires": "never",
        "reference": "",
    }


def test_a_repetition_is_known_by_every_field_but_its_reference() -> None:
    """Also if amounts are spelled otherwise and scopes stand in another order; another value is another order."""
    ordered = check_order(ORDER)
    again = replace(ORDER, cap=CapOrder("5", "month"), scopes=("models", "usage"), reference="one")
    assert check_order(again) == ordered
    assert ordered.keys() == {one.name for one in fields_of(KeyOrder)} - {"reference"}
    others: list[dict[str, Any]] = [
        {"name": "b"},
        {"requests_per_second": 3.0},
        {"burst": 8},
        {"cap": CapOrder("5")},
        {"cap": None},
        {"scopes": ()},
        {"expires": "90"},
    ]
    assert all(check_order(replace(ORDER, **other)) != ordered for other in others)


def test_a_limit_is_a_field_of_all_that_a_key_is() -> None:
    """Of the order, the change, the row, the record and who is asking: they are copied by name."""
    limits = KeyLimits.__struct_fields__
    for kind in (KeyOrder, KeyChange, NewKey, KeyRow, Key, Principal):
        assert set(limits) <= set(kind.__struct_fields__)
    assert copied(KeyLimits, ORDER, KeyChange(burst=None)) == KeyLimits(requests_per_second=2.5, burst=None)
