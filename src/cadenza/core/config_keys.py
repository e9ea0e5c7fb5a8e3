"""How a key of the config is declared: `Annotated[type, check, "sentence"]` on a field of a frozen ConfigTable.

The check may be left out where the type says it: text, true or false, one of some words, a path, a table. A field
without a sentence is no key: it is filled in when the config is loaded. No message repeats what may be a secret.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, time
from difflib import get_close_matches
from typing import Any

import msgspec

from cadenza.core.money import NANO_PER_DOLLAR, parse_dollars, parse_price

NUMBER_MAX = 1_000_000_000
TYPE_NAMES = {str: "a text", bool: "a boolean", int: "a whole number", float: "a number with decimals", list: "a list"}
TYPE_NAMES |= {dict: "a table", date: "a date or a time", time: "a date or a time"}


class CheckError(ValueError):
    """A value that cannot be used. The sentence follows the key."""


class ConfigTable(msgspec.Struct, frozen=True):
    """A table of the config."""

    def mistakes(self) -> Iterable[tuple[str, str]]:
        """The rules for several keys at once: a key, or "" for the whole table, and a sentence."""
        return ()


class ValueCheck(msgspec.Struct, frozen=True):
    """What a value must be, in words, and the function that returns the value of the settings or raises ValueError.

    `schema` is what JSON Schema can say of it.
    """

    rule: str
    read: Callable[[Any], object]
    schema: Mapping[str, Any] = {}


class Like(msgspec.Struct, frozen=True):
    """The value in the example file, where it is not the default; `is_off`: in a comment."""

    value: object
    is_off: bool = False


class Contents(msgspec.Struct, frozen=True):
    """A file whose text is the value of the field `target`. It matches `pattern`, which `rule` says in words."""

    target: str
    pattern: str = "(?s:.+)"
    rule: str = ""


class Variable(msgspec.Struct, frozen=True):
    """A variable of the environment whose value is that of the field without `_env`. It is a secret: `what` names it.

    The value matches `pattern`, which `rule` says in words.
    """

    what: str
    example: str
    pattern: str = ".+"
    rule: str = ""


class Switch(msgspec.Struct, frozen=True):
    """The table may be false instead, which stands for "off" as the value of the key `name`."""

    name: str


def must_be(rule: str, fits: Callable[[Any], object], *types: type, **schema: object) -> ValueCheck:
    """A check for a value of one of these types; a boolean is not a number."""

    def read(value: object) -> object:
        if type(value) not in types:
            raise CheckError(f"must be {rule}, not {type_name(value)}")
        if not fits(value):
            raise CheckError(f"must be {rule}" if isinstance(value, str) else f"must be {rule}, not {value}")
        return value

    return ValueCheck(rule, read, schema)


def type_name(value: object) -> str:
    return next(TYPE_NAMES[kind] for kind in TYPE_NAMES if isinstance(value, kind))


def whole(low: int, high: int = NUMBER_MAX) -> ValueCheck:
    rule = f"a whole number from {low:,} to {high:,}"
    return must_be(rule, lambda value: low <= value <= high, int, minimum=low, maximum=high)


def above_zero(high: int = NUMBER_MAX) -> ValueCheck:
    rule = f"a number above 0 and up to {high:,}"
    return must_be(rule, lambda value: 0 < value <= high, int, float, exclusiveMinimum=0, maximum=high)


def one_line(chars_max: int) -> ValueCheck:
    rule = f"one line of at most {chars_max} characters"
    return must_be(rule, lambda value: len(value) <= chars_max and value.isprintable(), str, maxLength=chars_max)


def one_of(*words: str) -> ValueCheck:
    *others, last = [f'"{word}"' for word in words]
    rule = f"{', '.join(others)} or {last}" if others else last

    def read(value: object) -> object:
        if not isinstance(value, str):
            raise CheckError(f"must be {rule}, not {type_name(value)}")
        if value not in words:
            near = find_near(value, words)
            raise CheckError(f"must be {rule}" + (f'; did you mean "{near}"?' if near else ""))
        return value

    return ValueCheck(rule, read, {"enum": list(words)})


def matching(pattern: str, rule: str) -> ValueCheck:
    return must_be(rule, re.compile(pattern).fullmatch, str)


def list_of(words: str, read: Callable[[str], object]) -> ValueCheck:
    """A list of texts; `read` raises ValueError for one that cannot be used."""
    rule = f"a list of {words}"

    def read_all(value: object) -> object:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise CheckError(f"must be {rule}")
        try:
            return tuple(dict.fromkeys(map(read, value)))
        except CheckError:
            raise
        except ValueError:
            raise CheckError(f"must be {rule}") from None

    return ValueCheck(rule, read_all)


def exact(rule: str, parse: Callable[[str], int]) -> ValueCheck:
    """A decimal amount as nano-dollars. TOML's floats would lose digits."""

    def read(value: object) -> int:
        if isinstance(value, float):
            raise CheckError(f'must be quoted, so that it stays exact: "{value}"')
        if type(value) is not int and not isinstance(value, str):
            raise CheckError(f"must be {rule}, not {type_name(value)}")
        return parse(str(value))

    return ValueCheck(rule, read)


def amount(high: int) -> ValueCheck:
    """An amount in nano-dollars, up to so many dollars."""

    def read(value: int) -> int:
        if not 0 < value <= high * NANO_PER_DOLLAR:
            raise CheckError(f"must be above zero and at most {high:,} dollars")
        return value

    return ValueCheck(f"an amount above zero and at most {high:,} dollars", read)


FRACTION = must_be("a number from 0 to 1", lambda value: 0 <= value <= 1, int, float)
TEXT = must_be("a non-empty text without null characters", lambda value: value.strip() and "\0" not in value, str)
PATH = must_be("the path of a file", lambda value: value.strip() and "\0" not in value, str)
EXISTING_FILE = ValueCheck("the path of a file that exists", PATH.read)
BOOLEAN = must_be("true or false", lambda _: True, bool)
DOLLARS = exact('dollars in quotes, like "0.10"', parse_dollars)
PRICE = exact('dollars per million tokens in quotes, like "0.10"', parse_price)


def suggest(word: str, known: Collection[str]) -> str:
    """The nearest known name or, if none is near, all of them."""
    near = find_near(word, known)
    return f'did you mean "{near}"?' if near else f"known names: {', '.join(known) or 'none'}"


def find_near(word: str, known: Collection[str]) -> str | None:
    return next(iter(get_close_matches(word.lower(), known, n=1)), None)
