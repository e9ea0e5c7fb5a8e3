"""JSON schemas in words, for the reference: the fields of an object, and their types with links to other schemas."""

from typing import Any

import msgspec
from markupsafe import Markup

SCHEMAS = "#/components/schemas/"
LIMITS = {
    "minimum": "from {}",
    "maximum": "up to {}",
    "exclusiveMaximum": "below {}",
    "maxLength": "at most {} characters",
    "maxItems": "at most {} items",
}
Schema = dict[str, Any]


class FieldText(msgspec.Struct, frozen=True):
    """A field or parameter: its name, with dots where it is inside another, its type, and what it is for."""

    name: str
    kind: Markup
    is_required: bool
    text: Markup


class SchemaText(msgspec.Struct, frozen=True):
    """A named schema. One that is a choice of others has a type instead of fields."""

    name: str
    text: Markup
    kind: Markup
    fields: list[FieldText]


def describe_schema(name: str, schema: Schema) -> SchemaText:
    fields = fields_of(schema)
    kind = Markup() if fields else kind_of({key: value for key, value in schema.items() if key != "description"})
    return SchemaText(name, in_words(schema.get("description", "")), kind, fields)


def fields_of(schema: Schema, before: str = "") -> list[FieldText]:
    """The fields of an object, with those of the objects and arrays in it that have no name of their own."""
    found: list[FieldText] = []
    for name, field in schema.get("properties", {}).items():
        shown = before + name
        found.append(FieldText(shown, kind_of(field), name in schema.get("required", ()), _field_text(field)))
        if "properties" in field:
            found += fields_of(field, f"{shown}.")
        elif "properties" in (items := field.get("items", {})):
            found += fields_of(items, f"{shown}[].")
    return found


def kind_of(schema: Schema) -> Markup:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(SCHEMAS)
        return Markup('<a href="#schema-{0}">{0}</a>').format(name)
    if literals := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return Markup(", ").join(map(_literal, literals))
    for choice in ("anyOf", "oneOf"):
        if choice in schema and "properties" not in schema:
            return Markup(" or ").join(dict.fromkeys(kind_of(one) for one in schema[choice]))
    kinds = schema.get("type", "any")
    if isinstance(kinds, list):
        return Markup(" or ").join(kind_of({**schema, "type": kind}) for kind in kinds)
    if kinds == "array":
        return Markup("array of {}").format(kind_of(schema["items"])) if "items" in schema else Markup("array")
    return Markup.escape(kinds)


def in_words(text: str) -> Markup:
    """A description, whose `code` is shown as code."""
    parts = text.split("`")
    return Markup().join(
        Markup("<code>{}</code>").format(part) if number % 2 else Markup.escape(part)
        for number, part in enumerate(parts)
    )


def _literal(value: object) -> Markup:
    return Markup("<code>{}</code>").format(msgspec.json.encode(value).decode())


def _field_text(field: Schema) -> Markup:
    limits = [words.format(f"{field[key]:,}") for key, words in LIMITS.items() if key in field]
    limits += ["not empty"] if 1 in (field.get("minLength"), field.get("minItems")) else []
    if field.get("default") not in (None, ""):
        limits.append(f"default `{msgspec.json.encode(field['default']).decode()}`")
    text = field.get("description", "")
    rest = ", ".join(limits)
    return in_words(f"{text} {rest[:1].upper()}{rest[1:]}." if rest else text)
