"""What is wrong with a value that was sent, in words: msgspec's own messages have the notation of types."""

import re

KINDS = {
    "null": "null",
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "array": "an array",
    "object": "an object",
}
EXPECTED = re.compile(r"Expected `([^`]+)`(?:, got `(\w+)`)?(.*)", re.DOTALL)
MISSING = re.compile(r"Object missing required field `([^`]+)`")


def describe_mistake(error: str, field: str = "") -> str:
    """'Expected `str | null`, got `int` - at `$.model`' -> 'model: must be a string, not an integer'.

    `field` is where the value that was checked stands, if it is not the whole body.
    """
    what, _, where = error.partition(" - at `$")
    path = field + where.rstrip("`") if field else where.rstrip("`").lstrip(".")
    if missing := MISSING.fullmatch(what):
        return f"{f'{path}.' if path else ''}{missing[1]}: missing"
    return f"{path or 'The body'}: {_in_words(what)}"


def _in_words(what: str) -> str:
    if not (match := EXPECTED.fullmatch(what)):
        return what[:1].lower() + what[1:]
    kinds, got, more = match.groups()
    names = [KINDS.get(kind, kind) for kind in kinds.split(" | ") if kind != "null"] or ["null"]
    if {"an integer", "a number"} <= set(names):
        names.remove("an integer")
    sent = "a number with a fraction" if got == "float" else KINDS.get(got, got)
    return f"must be {' or '.join(names)}{more}" + (f", not {sent}" if got else "")
