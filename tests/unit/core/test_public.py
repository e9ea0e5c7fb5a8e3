"""Records as other programs read them: times and amounts of public records become text, in records and in lists."""

from typing import Literal

import msgspec

from cadenza.core.content import Content
from cadenza.core.public import Public, public_type, to_public

NOON_MS = 1_800_000_000_000


class Price(Public, msgspec.Struct):
    """An amount."""

    limit_nano: int
    period: Literal["total", "month"] = "total"


class Thing(Public, Content, msgspec.Struct):
    """A thing that has a price."""

    id: str
    made_at: int
    ended_at: int | None
    uses: int
    price: Price | None = None


class OwnedThing(Thing):
    """A thing and its owner."""

    owner: str = "somebody"


class Page(msgspec.Struct):
    """Some things, and a counter that only looks like an amount."""

    data: list[Thing]
    spent_nano: int = 7


def test_times_and_amounts_become_text() -> None:
    """Also inside of other records and of lists; None, other numbers and records that are not public stay."""
    thing = OwnedThing("a", NOON_MS, None, 3, Price(1_500_000_000))
    assert msgspec.to_builtins(to_public(Page, Page([thing]))) == {
        "data": [
            {
                "id": "a",
                "made_at": "2027-01-15T08:00:00Z",
                "ended_at": None,
                "uses": 3,
                "price": {"limit": "1.50", "period": "total"},
            }
        ],
        "spent_nano": 7,
    }


def test_the_type_says_the_same() -> None:
    """The schema has the names, the text, the docstrings and what is required; content stays hidden."""
    schema = msgspec.json.schema_components([public_type(Page)])[1]
    assert schema["Thing"]["description"] == "A thing that has a price."
    assert schema["Thing"]["required"] == ["id", "made_at", "ended_at", "uses"]
    assert schema["Thing"]["properties"]["ended_at"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert schema["Price"]["properties"]["limit"] == {"type": "string"}
    assert "somebody" not in repr(to_public(Thing, OwnedThing("a", 1, 2, 3)))


def test_what_has_nothing_public_is_not_touched() -> None:
    """Its type is the same one, and so is the record."""
    price = msgspec.defstruct("Plain", [("at", int), ("cost_nano", int)])
    plain = price(at=1, cost_nano=2)
    assert public_type(price) is price
    assert to_public(price, plain) is plain
    assert to_public(None, None) is None
