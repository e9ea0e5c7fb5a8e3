"""The request header that turns memory off, search, or both."""

import pytest

from cadenza.core.errors import InvalidRequest
from cadenza.gateway.grounding import read_turned_off
from cadenza.http.exchange import Request

NAME = b"x-cadenza-grounding"


def request_with(*values: bytes) -> Request:
    return Request("POST", "/v1/chat/completions", b"", [(NAME, value) for value in values])


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ((b"none",), "memory search"),
        ((b" NONE\t",), "memory search"),
        ((b"none, none",), "memory search"),
        ((b"none", b"None"), "memory search"),
        ((b"", b"Memory=Off"), "memory"),
        ((b"search=off",), "search"),
        ((b"search=off, memory=off",), "memory search"),
        ((b"search=off", b"none"), "memory search"),
    ],
)
def test_parts_are_turned_off(values: tuple[bytes, ...], parts: str) -> None:
    """In any case, with blanks, and as often as a client or a proxy says it."""
    assert read_turned_off(request_with(*values)) == set(parts.split())


@pytest.mark.parametrize("values", [(), (b"",), (b" ",), (b"", b",")])
def test_an_empty_value_is_no_value(values: tuple[bytes, ...]) -> None:
    """As if the header were not there."""
    assert not read_turned_off(request_with(*values))


@pytest.mark.parametrize(
    "values",
    [(b"off",), (b"none,x",), (b"search",), (b"search=on",), (b"memory = off",), (b"none", b"off"), (b"\xff",)],
)
def test_any_other_value_is_refused(values: tuple[bytes, ...]) -> None:
    """A typing error must not leave memory and search on: the 400 says which values there are."""
    with pytest.raises(InvalidRequest, match=r"x-cadenza-grounding: a request can have .*`search=off`, and `none`"):
        read_turned_off(request_with(*values))
