"""JSON schemas in words."""

from typing import Any

import pytest

from cadenza.parts.site.docs.schema_text import describe_schema, fields_of, in_words, kind_of


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["integer", "null"]}, "integer or null"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/A"}}, 'array of <a href="#schema-A">A</a>'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"enum": ["a", None]}, "<code>&#34;a&#34;</code>, <code>null</code>"),
        ({"const": 0}, "<code>0</code>"),
        ({}, "any"),
    ],
)
def test_types_are_in_words(schema: dict[str, Any], text: str) -> None:
    """A type is what a reader would call it, with a link to a schema that has a name."""
    assert str(kind_of(schema)) == text


def test_fields_of_inner_objects_have_dots() -> None:
    """The fields of an object, and of the items of an array, follow the field that they are in."""
    inner = {"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}}}
    schema = {"properties": {"a": inner, "list": {"type": "array", "items": inner}}}
    assert [(field.name, field.is_required) for field in fields_of(schema)] == [
        ("a", False),
        ("a.b", True),
        ("list", False),
        ("list[].b", True),
    ]


def test_limits_are_in_the_meaning() -> None:
    """Bounds and defaults are said after the description."""
    field = {"type": "integer", "description": "How many.", "minimum": 1, "maximum": 5000, "default": 5}
    [shown] = fields_of({"properties": {"count": field}})
    assert shown.text == "How many. From 1, up to 5,000, default <code>5</code>."


def test_descriptions_are_escaped() -> None:
    """Code in a description is marked as code, and everything is escaped."""
    assert str(in_words("`a<b` & c")) == "<code>a&lt;b</code> &amp; c"
    assert describe_schema("A", {"description": "<b>"}).text == "&lt;b&gt;"
