"""What a single value of the file must be. A check returns the value as the settings hold it, or raises CheckError.

A mistake's sentence never repeats an address or anything else that could hold a secret.
"""

import re
from collections.abc import Callable, Collection, Mapping
from datetime import date, time
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from cadenza.core.money import parse_price

Table = dict[str, Any]
Check = Callable[[object], object]
Checks = Mapping[str, Check]

_TYPE_NAMES = {
    str: "a string",
    bool: "a boolean",
    int: "a whole number",
    float: "a number with decimals",
    list: "an array",
    dict: "a table",
    date: "a date or a time",
    time: "a date or a time",
}
_VARIABLE_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")

NUMBER_MAX = 1_000_000_000
RETENTION_RULE = 'must be exactly "zero": without zero data retention at every provider the service does not start'


class CheckError(ValueError):
    """A value that will not do. The text says what it must be; the key is put before it."""


def text(value: object) -> str:
    if not isinstance(value, str):
        raise CheckError(f"must be a string, not {_type_name(value)}")
    if not value.strip():
        raise CheckError("must not be empty")
    if "\0" in value:
        raise CheckError("must not hold a null character")
    return value


def integer(low: int, high: int | None = None) -> Check:
    """A whole number from `low` to `high`, both included."""

    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise CheckError(f"must be a whole number, not {_type_name(value)}")
        if high is None and value < low:
            raise CheckError(f"must be {low} or more, not {value}")
        if high is not None and not low <= value <= high:
            raise CheckError(f"must be from {low} to {high}, not {value}")
        return value

    return check


def positive(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise CheckError(f"must be a number, not {_type_name(value)}")
    if not 0 < value <= NUMBER_MAX:
        raise CheckError(f"must be above 0 and at most {NUMBER_MAX:,}, not {value}")
    return float(value)


def boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise CheckError(f"must be true or false, not {_type_name(value)}")
    return value


def one_of(*words: str) -> Check:
    """One of a few words."""

    def check(value: object) -> str:
        word = text(value)
        if word not in words:
            raise CheckError(f"must be {' or '.join(map(_quote, words))}; {suggest(word, words)}")
        return word

    return check


def table(value: object) -> Table:
    if not isinstance(value, dict):
        raise CheckError(f"must be a table, not {_type_name(value)}")
    return value


def tables(value: object) -> list[Table]:
    if isinstance(value, dict):
        raise CheckError("must be an array of tables: write its header in double brackets")
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise CheckError("must be an array of tables")
    return value


def price(value: object) -> int:
    """Nano-dollars a token, from dollars per million tokens."""
    if isinstance(value, float):
        raise CheckError(f'must be quoted, so that it stays exact: "{value}"')
    if isinstance(value, int) and not isinstance(value, bool):
        return parse_price(str(value))
    return parse_price(text(value))


def retention(value: object) -> str:
    if value != "zero":
        raise CheckError(RETENTION_RULE)
    return "zero"


def base_url(value: object) -> str:
    url = text(value)
    if not _is_web_address(url):
        raise CheckError('must be an http or https address, like "https://host/v1"')
    if "@" in urlsplit(url).netloc:
        raise CheckError(
            "must not hold a name or password; put the key into the environment and name it in api_key_env"
        )
    if "?" in url or "#" in url:
        raise CheckError("must not have a query or a fragment")
    return url.rstrip("/")


def variable_name(value: object) -> str:
    if not _VARIABLE_NAME.fullmatch(text(value)):
        raise CheckError(
            "must be the name of an environment variable, in capitals like ACME_API_KEY, and not the key itself"
        )
    return text(value)


def store_url(value: object) -> str:
    url = text(value)
    path = url.removeprefix("sqlite:///")
    is_sqlite_file = path != url and path.strip("/") and not path.endswith(("/", ":memory:")) and "?" not in path
    if not is_sqlite_file and not re.match("postgresql://.", url):
        raise CheckError('must be "sqlite:///path/of/a/file.db" or "postgresql://user@host/database"')
    return url


def shared_url(value: object) -> str:
    url = text(value)
    if url.startswith(("valkey://", "redis://")):
        raise CheckError('must be "memory://": this version keeps shared state in memory only')
    if url != "memory://":
        raise CheckError('must be "memory://"')
    return url


def suggest(word: str, known: Collection[str]) -> str:
    """The nearest known word or, where none is near, all of them."""
    near = get_close_matches(word.lower(), known, n=1)
    return f"did you mean {_quote(near[0])}?" if near else f"known here: {', '.join(known) or 'none'}"


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and not re.search(r"\s", url)


def _type_name(value: object) -> str:
    return next(name for type_, name in _TYPE_NAMES.items() if isinstance(value, type_))


def _quote(word: str) -> str:
    return f'"{word}"'
