"""What is wrong with a value, in words."""

import msgspec
import pytest

from cadenza.core.mistakes import describe_mistake


class Sent(msgspec.Struct):
    text: str | None = None
    number: int | float | None = None
    whole: int = 0
    either: str | list[int] = ""
    items: list[str] = []
    is_on: bool = False
    nothing: None = None
    kind: "Kind | None" = None


class Kind(msgspec.Struct):
    name: str


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ('{"text": 7}', "text: must be a string, not an integer"),
        ('{"number": "7"}', "number: must be a number, not a string"),
        ('{"whole": 1.5}', "whole: must be an integer, not a number with a fraction"),
        ('{"whole": true}', "whole: must be an integer, not true or false"),
        ('{"either": null}', "either: must be a string or an array, not null"),
        ('{"items": ["a", {}]}', "items[1]: must be a string, not an object"),
        ('{"is_on": []}', "is_on: must be true or false, not an array"),
        ('{"nothing": 1}', "nothing: must be null, not an integer"),
        ('{"kind": {}}', "kind.name: missing"),
        ('{"number": 1e999}', "number: number out of range"),
        ("[]", "The body: must be an object, not an array"),
    ],
)
def test_a_mistake_is_said_in_words(sent: str, words: str) -> None:
    """Where it is, what is expected there and what was sent, without the notation of types."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(sent, type=Sent)
    assert describe_mistake(str(caught.value)) == words


def test_a_mistake_in_a_part_is_named_by_its_whole_path() -> None:
    """A part that is read by itself is named by its place in the body."""
    assert describe_mistake("Expected `str`, got `int` - at `$[0].id`", "calls") == (
        "calls[0].id: must be a string, not an integer"
    )
    assert describe_mistake("Object missing required field `id`", "calls[1]") == "calls[1].id: missing"
